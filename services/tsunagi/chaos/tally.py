"""What was found wrong, counted; the first problems are kept in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

_PROBLEMS = 40


@dataclass(slots=True)
class Tally:
    """Findings so far.

    Attributes:
        lost: steps, rows and readings that stand nowhere.
        duplicated: rows that stand twice, and repeats of a name with another content.
        inverted: outputs, blocks and rows out of order.
        wrong: what is neither, by kind (values that nobody measured, a second primary, ...).
        repeats: records under a name already read, with the same content: what a takeover may leave, and readers drop.
        unjudged: repeats of something older than is kept here.
        problems: the first of them in words.
    """

    lost: int = 0
    duplicated: int = 0
    inverted: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    repeats: int = 0
    unjudged: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found (repeats are no finding)."""
        return not (self.lost or self.duplicated or self.inverted or sum(self.wrong.values()))

    def problem(self, text: str) -> None:
        """Note what was wrong and where."""
        if len(self.problems) < _PROBLEMS:
            self.problems.append(text)

    def amiss(self, kind: str, text: str, count: int = 1) -> None:
        """Count something that is neither lost, nor doubled, nor out of order."""
        self.wrong[kind] += count
        self.problem(text)

    def copy(self) -> Tally:
        """Return an independent copy."""
        return replace(self, wrong=Counter(self.wrong), problems=list(self.problems))

    def since(self, before: Tally) -> Tally:
        """Return what was added after `before` was copied."""
        return Tally(
            lost=self.lost - before.lost,
            duplicated=self.duplicated - before.duplicated,
            inverted=self.inverted - before.inverted,
            wrong=self.wrong - before.wrong,
            repeats=self.repeats - before.repeats,
            unjudged=self.unjudged - before.unjudged,
            problems=self.problems[len(before.problems) :],
        )

    def verdict(self, missing: Iterable[str] = ()) -> str:
        """Return "ok", or what was found, in a few words.

        Args:
            missing: what had not come back when patience ended.
        """
        parts = [
            f"{word} {count}"
            for word, count in (("lost", self.lost), ("duplicated", self.duplicated), ("inverted", self.inverted))
            if count
        ]
        parts += [f"{kind} {count}" for kind, count in sorted(self.wrong.items()) if count]
        parts += [f"not recovered: {text}" for text in missing]
        return ", ".join(parts) or "ok"
