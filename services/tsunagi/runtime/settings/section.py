"""The base class of all sections of the configuration, the types of their values, and the error."""

from __future__ import annotations

import math
import zoneinfo
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_Given = TypeVar("_Given")

MICROSECONDS = 1_000_000
"""The number of microseconds in a second."""
LONGEST_S = 1e9
"""Longest time that a setting may have, in seconds: about 31 years."""


class ConfigError(ValueError):
    """The configuration cannot be used; the message names file, key, what was found and what was expected."""


def _named(kind: str, value: _Given) -> _Given:
    """Refuse an empty path. It would mean the working directory, as if a script's variable were not set by mistake."""
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"expected a {kind}")
    return value


def _zone(name: str) -> str:
    try:
        return name if not name else zoneinfo.ZoneInfo(name).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"found {name!r}, expected a time zone such as Europe/Berlin") from None


Zone = Annotated[str, AfterValidator(_zone)]
"""The name of a time zone, as Europe/Berlin; empty = none."""

Directory = Annotated[Path, BeforeValidator(partial(_named, "directory"))]
File = Annotated[Path, BeforeValidator(partial(_named, "file"))]

Seconds = Annotated[float, Field(ge=1e-3, le=LONGEST_S)]
"""A time in seconds, from a millisecond to 31 years. It is at least one whole millisecond, its microseconds are exact
in a float64, and the timers of the system accept it."""

SecondsOrNone = Annotated[float, Field(ge=0, le=LONGEST_S)]
"""A time in seconds that may be 0."""

Positive = Annotated[float, Field(ge=1e-6, le=1e12)]
"""An amount, rate or factor. A smaller or larger number has a mistyped unit."""

Limit = Annotated[float, Field(ge=1e-3, le=math.inf)]
"""A limit. Infinity means that there is no limit."""

Number = Annotated[float, Field(ge=-1e300, le=1e300)]
"""Any number that a device may send, or that its numbers are scaled by."""

NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Few = Annotated[int, Field(ge=1, le=10_000)]
"""A number of partitions, workers or cores. No cluster has more than the greatest one."""

Bytes = Annotated[int, Field(ge=1, le=2**50)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A table of the configuration file. It cannot be changed, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
