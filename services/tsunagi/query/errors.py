"""The error of a query, which says where in its text it is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a text of queries: the name of its file, line and column, both from 1; line 0 means the whole text."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}, column {self.column}" if self.line else self.source


class QueryError(ValueError):
    """A query cannot be understood or cannot be run; the message names place, found and expected.

    Attributes:
        place: where in the text it is.
        problem: the message without the place.
    """

    def __init__(self, place: Place, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place, self.problem = place, problem


def near(name: str, known: Iterable[str]) -> str:
    """Return words that propose the known name that is most like this one; "" if none is."""
    folded = {item.lower(): item for item in known}
    found = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[found[0]]}?" if found else ""


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return the names in a row, at most so many of them."""
    found = list(names)
    return ", ".join(found[:most]) + (", ..." if len(found) > most else "")
