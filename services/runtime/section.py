"""What every table of the configuration is: frozen, and strict about its keys."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_Given = TypeVar("_Given")


def _named(kind: str, value: _Given) -> _Given:
    """An empty path would be the working directory: the variable of a script that is not set."""
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"expected a {kind}")
    return value


Directory = Annotated[Path, BeforeValidator(partial(_named, "directory"))]
File = Annotated[Path, BeforeValidator(partial(_named, "file"))]

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A table of the file: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
