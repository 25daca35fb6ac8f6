"""What every section of the configuration is made of: the base class, the types of values, and the error."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_Given = TypeVar("_Given")

MICROSECONDS = 1_000_000
LONGEST_S = 1e9
"""Longest time that the configuration may say, seconds."""


class ConfigError(ValueError):
    """The configuration cannot be used; the message names file, key, what was found and what was expected."""


def _named(kind: str, value: _Given) -> _Given:
    """An empty path would be the working directory: the variable of a script that is not set."""
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"expected a {kind}")
    return value


Directory = Annotated[Path, BeforeValidator(partial(_named, "directory"))]
File = Annotated[Path, BeforeValidator(partial(_named, "file"))]

Seconds = Annotated[float, Field(ge=1e-3, le=LONGEST_S)]
"""A time, seconds: a millisecond to 31 years, so that it is at least 1 as whole milliseconds, exact as microseconds in
a float64, and what the system's timers take."""

SecondsOrNone = Annotated[float, Field(ge=0, le=LONGEST_S)]
"""A time, seconds, that may be 0."""

Positive = Annotated[float, Field(ge=1e-6, le=1e12)]
"""An amount, rate or factor; what is smaller or larger is a mistyped unit."""

Limit = Annotated[float, Field(ge=1e-3, le=math.inf)]
"""A limit; infinity means none."""

NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Few = Annotated[int, Field(ge=1, le=10_000)]
"""A number of partitions, workers or cores: no cluster has more."""

Bytes = Annotated[int, Field(ge=1, le=2**50)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A table of the file: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
