"""The form of tuples of several columns. It is apart from the parser, which most processes do not need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tsunagi.query.values import Kind


class TupleForm(NamedTuple):
    """The columns of a stream that a statement creates.

    Attributes:
        key: the column that names the sensor.
        kinds: the other columns, without the time.
    """

    key: str
    kinds: Mapping[str, Kind]
