"""Counts what was found wrong, and keeps the first problems in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

_PROBLEMS = 50
"""How many problems are kept in words. All findings are counted, and the first ones show best what went wrong."""


@dataclass(slots=True)
class Tally:
    """The findings so far.

    Attributes:
        lost: how many rows and readings are nowhere.
        duplicated: how many rows are there twice, or were repeated under their name with another content.
        inversions: how many outputs, blocks and rows were out of order, by group or by partition of `recovered`.
        wrong: how many other findings there were, by kind (values that nobody measured, a second primary, ...).
        repeats: how many records came under a name that was already read. Takeovers cause them, and readers drop them.
        unjudged: how many repeats could not be compared, because the first record is not kept any more.
        problems: the first findings in words.
    """

    lost: int = 0
    duplicated: int = 0
    inversions: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    repeats: int = 0
    unjudged: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def inverted(self) -> int:
        """How many outputs, blocks and rows were out of order."""
        return self.inversions.total()

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was found. Repeats are not wrong."""
        return not (self.lost or self.duplicated or self.inverted or self.wrong.total())

    def problem(self, text: str) -> None:
        """Keep a sentence that says what was wrong and where, if it is one of the first."""
        if len(self.problems) < _PROBLEMS:
            self.problems.append(text)

    def lose(self, text: str, count: int) -> None:
        """Count rows or readings that are nowhere."""
        self.lost += count
        self.problem(text)

    def double(self, text: str, count: int) -> None:
        """Count rows that are there twice, or that were repeated with another content."""
        self.duplicated += count
        self.problem(text)

    def repeat(self, place: str, rows: int, *, same: bool) -> None:
        """Count a record whose name was already read. If its content differs, its rows count as duplicated too."""
        self.repeats += 1
        if not same:
            self.double(f"{place}: repeated with another content", max(1, rows))

    def invert(self, where: str, text: str, count: int = 1) -> None:
        """Count outputs, blocks or rows that are out of order in a group, or in a partition of `recovered`."""
        self.inversions[where] += count
        self.problem(text)

    def amiss(self, kind: str, text: str, count: int = 1) -> None:
        """Count something that is neither lost, nor doubled, nor out of order."""
        self.wrong[kind] += count
        self.problem(text)

    def copy(self) -> Tally:
        """Return an independent copy."""
        return replace(
            self, inversions=Counter(self.inversions), wrong=Counter(self.wrong), problems=list(self.problems)
        )

    def since(self, before: Tally) -> Tally:
        """Return what was added after `before` was copied."""
        return Tally(
            lost=self.lost - before.lost,
            duplicated=self.duplicated - before.duplicated,
            inversions=self.inversions - before.inversions,
            wrong=self.wrong - before.wrong,
            repeats=self.repeats - before.repeats,
            unjudged=self.unjudged - before.unjudged,
            problems=self.problems[len(before.problems) :],
        )

    def verdict(self, missing: Iterable[str] = ()) -> str:
        """Return "ok", or what was found, in a few words.

        Args:
            missing: what had not come back when the time to wait was over.
        """
        parts = [
            f"{word} {count}"
            for word, count in (("lost", self.lost), ("duplicated", self.duplicated), ("inverted", self.inverted))
            if count
        ]
        parts += [f"{kind} {count}" for kind, count in sorted(self.wrong.items()) if count]
        parts += [f"not recovered: {text}" for text in missing]
        return ", ".join(parts) or "ok"


def number(value: float | None, form: str = ".3f", unit: str = "") -> str:
    """Return a figure as text; "-" if nothing was measured."""
    return "-" if value is None else format(value, form) + unit


@dataclass(slots=True)
class Findings(Tally):
    """What the check of a whole run found and counted.

    Attributes:
        tuples_in: tuples in the slots' logs, with repeats.
        rows_out: rows of the results for the steps of the CSV, without repeats.
        rows_outside: rows of the results for steps before or after those of the CSV.
        not_sent: the steps that edges did not send while they were dead.
        late, dead: tuples that went to `late` and to `dead-letters`.
        slow: tuples of `late` that reached the log after their steps had waited for them long enough.
    """

    tuples_in: int = 0
    rows_out: int = 0
    rows_outside: int = 0
    not_sent: list[dict[str, object]] = field(default_factory=list)
    late: int = 0
    dead: int = 0
    slow: int = 0
