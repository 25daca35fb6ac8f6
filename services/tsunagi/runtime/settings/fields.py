"""[[source.fields]] of the configuration: where in a device's message its readings stand."""

from __future__ import annotations

from string import Formatter
from typing import Literal

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import Field, field_validator, model_validator

from tsunagi.runtime.settings.section import Number, Section, Zone

EVERY = "*"
"""The entry of `values` that stands for every number of the message."""
BELOW = f".{EVERY}"
"""An entry of `values` that ends so stands for every number below the path before it."""


class FieldSettings(Section):
    """Which readings a message has. Paths are JMESPath: `temperature`, `tags.host`, `data[0].v`."""

    topic: str = Field(
        "", description="topics it is for: levels, {name} names one, + and # as usual, {edge} is this edge; empty = all"
    )
    each: str = Field("", description="path of a list whose items each have readings; empty = the message itself")
    values: tuple[str, ...] | dict[str, str] = Field(
        (EVERY,),
        description="paths of the values, or names with their paths; * = every number of the message, PATH.* = of PATH",
    )
    sensor: str = Field(
        "{field}",
        description="the sensor's name; {field} is the value's name or path, {key} the record's key, {edge} this edge, "
        "other {names} are levels of the topic, or paths",
    )
    time: str = Field("time", description="path of the time; empty = the time of arrival")
    time_unit: Literal["s", "ms", "us", "ns"] = Field("s", description="unit of times that are numbers")
    time_format: str = Field("", description="form of times that are texts, as in strptime; empty = ISO 8601")
    time_zone: Zone = Field(
        "", description="zone of texts that name none, as Europe/Berlin; empty = they must name one"
    )
    scale: Number = Field(1.0, description="what a number is multiplied by")
    offset: Number = Field(0.0, description="what is added to it then")
    words: dict[str, Number] = Field(default_factory=dict, description="texts that are values: {ON = 1, OFF = 0}")
    missing: tuple[str | Number, ...] = Field((), description='what says that there is no value: ["NA", -999]')
    decimal: Literal[".", ","] = Field(".", description="decimal sign of numbers that are texts")

    @field_validator("each", "time")
    @classmethod
    def _path(cls, path: str) -> str:
        _check(path)
        return path

    @field_validator("values")
    @classmethod
    def _paths(cls, values: tuple[str, ...] | dict[str, str]) -> tuple[str, ...] | dict[str, str]:
        if not values:
            raise ValueError("found none, expected paths of values, or *")
        for path in values.values() if isinstance(values, dict) else values:
            if not path:
                raise ValueError("found an empty path, expected one such as temperature; @ is the message itself")
            if path != EVERY:
                _check(path)
        return values

    @model_validator(mode="after")
    def _named(self) -> FieldSettings:
        try:
            names = [name for _, name, form, conversion in Formatter().parse(self.sensor) if name is not None]
        except ValueError as error:
            raise ValueError(f"sensor = {self.sensor!r}: {error}, expected text with {{names}}") from None
        for name in names:
            if not name:
                raise ValueError(f"sensor = {self.sensor!r}: found {{}}, expected a name, as {{field}}")
            _check(name)
        paths = self.values.values() if isinstance(self.values, dict) else self.values
        several = len(self.values) > 1 or any(path == EVERY or path.endswith(BELOW) for path in paths)
        if several and "field" not in names:
            raise ValueError(f"sensor = {self.sensor!r} is one name for several values: expected {{field}} in it")
        return self


def _check(path: str) -> None:
    """Raise ValueError unless a text is a JMESPath expression, or empty."""
    if not path:
        return
    try:
        jmespath.compile(path)
    except JMESPathError:
        raise ValueError(f"found {path!r}, expected a path (JMESPath) such as tags.host or data[0].v") from None
