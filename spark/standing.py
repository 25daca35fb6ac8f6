"""Where the job stands after a batch: what `driver/after-N` holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark.frontier import Mark


@dataclass
class Standing:
    """Where the job stands after a batch.

    Attributes:
        batch: the batch; -1 = before the first.
        marks: by slot.
        delivered: by group of the layout.
        totals: counts since the checkpoint was empty.
        carried: rows that wait for the frontier.
    """

    batch: int = -1
    marks: dict[int, Mark] = field(default_factory=dict)
    delivered: list[int] = field(default_factory=list)
    silent_s: dict[int, float] = field(default_factory=dict)
    layout: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    carried: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return what `of` reads."""
        return {
            "batch": self.batch,
            "marks": {str(slot): mark for slot, mark in self.marks.items()},
            "delivered": self.delivered,
            "silent_s": {str(slot): seconds for slot, seconds in self.silent_s.items()},
            "layout": self.layout,
            "totals": self.totals,
            "carried": self.carried,
        }

    @staticmethod
    def of(fields: dict[str, Any]) -> Standing:
        """Read from JSON."""
        return Standing(
            batch=fields["batch"],
            marks={int(slot): Mark.of(mark) for slot, mark in fields["marks"].items()},
            delivered=list(fields["delivered"]),
            silent_s={int(slot): float(seconds) for slot, seconds in fields["silent_s"].items()},
            layout=fields["layout"],
            totals=dict(fields["totals"]),
            carried=fields.get("carried", 0),
        )
