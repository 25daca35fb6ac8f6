"""Where the job stands after a batch: the content of `driver/after-N`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tsunagi_spark.frontier import SlotMark


@dataclass
class JobStanding:
    """Where the job stands after a batch.

    Attributes:
        batch: number of the batch; -1 before the first.
        marks: for each slot, how far it has been read.
        delivered: for each group of the layout, the last step that was sent.
        totals: counts since the checkpoint was empty.
        carried: number of rows that wait for the frontier.
        topic_ids: for each topic, the id that its cluster gave it (`Log.topic_id`), to which the positions belong.
        ends: for each partition of `results`, where it ended after the batch.
        faults: texts that say where the log was found not to be the one that was read; kept until the checkpoint is
            emptied.
        program: serial of the statements in CQL that were in force; 0 if there have been none.
    """

    batch: int = -1
    marks: dict[int, SlotMark] = field(default_factory=dict)
    delivered: list[int] = field(default_factory=list)
    silent_s: dict[int, float] = field(default_factory=dict)
    layout: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    carried: int = 0
    topic_ids: dict[str, str] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    program: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values for `of`."""
        return {
            "batch": self.batch,
            "marks": {str(slot): mark for slot, mark in self.marks.items()},
            "delivered": self.delivered,
            "silent_s": {str(slot): seconds for slot, seconds in self.silent_s.items()},
            "layout": self.layout,
            "totals": self.totals,
            "carried": self.carried,
            "topic_ids": self.topic_ids,
            "ends": {str(partition): end for partition, end in self.ends.items()},
            "faults": self.faults,
            "program": self.program,
        }

    @staticmethod
    def of(fields: dict[str, Any]) -> JobStanding:
        """Read the fields from JSON values."""
        return JobStanding(
            batch=fields["batch"],
            marks={int(slot): SlotMark.of(mark) for slot, mark in fields["marks"].items()},
            delivered=list(fields["delivered"]),
            silent_s={int(slot): float(seconds) for slot, seconds in fields["silent_s"].items()},
            layout=fields["layout"],
            totals=dict(fields["totals"]),
            carried=fields.get("carried", 0),
            topic_ids=dict(fields.get("topic_ids", {})),
            ends={int(partition): int(end) for partition, end in fields.get("ends", {}).items()},
            faults=list(fields.get("faults", [])),
            program=fields.get("program", 0),
        )
