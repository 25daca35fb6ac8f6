"""Who owns a slot, decided by the slot's log alone (DESIGN section 2).

An Ownership record counts only if its epoch is the current one + 1 at its place; any other control record counts only
if its epoch is the current one at its place. Everyone applies the rule in log order, so the first writer wins and all
agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from services.runtime.messages import LogRecord

CONTROL = frozenset(
    {"edge_out", "model", "settings", "quarantine", "punctuation", "calibrated", "sensor_out", "helpers"}
)


@dataclass(slots=True)
class Register:
    """The ownership of one slot as of a place in its log.

    Attributes:
        epoch: 0 = nobody has owned the slot yet.
        at: offset of the Ownership record in force, -1 = none.
        quarantined: offsets that are not to be processed.
        previous_at: offset of the Ownership record before that, -1 = none.
        serial: of the last control record of this epoch that counted, 0 = none was authenticated.
    """

    epoch: int = 0
    owner: str = ""
    generation: int = 0
    first_step: int = 0
    settings_hash: str = ""
    at: int = -1
    previous_at: int = -1
    previous_owner: str = ""
    void: int = 0
    serial: int = 0
    quarantined: set[int] = field(default_factory=set)

    def read(self, offset: int, record: LogRecord) -> bool:
        """Take in one record; return whether it counts (tuples always do)."""
        kind = record.WhichOneof("body")
        if kind == "ownership":
            claim = record.ownership
            if claim.epoch != self.epoch + 1:
                self.void += 1
                return False
            if self.epoch == 0 or self.generation == 0:
                self.generation = claim.generation
                self.first_step = claim.first_step
            self.previous_at, self.previous_owner = self.at, self.owner
            self.epoch, self.owner, self.at = claim.epoch, claim.node, offset
            self.settings_hash = claim.settings_hash
            self.serial = record.serial
            return True
        if kind in CONTROL:
            if getattr(record, kind).epoch != self.epoch:
                self.void += 1
                return False
            # A genuine record that somebody appends again (docs/security.md), or that came late after all.
            if record.serial <= self.serial and self.serial:
                self.void += 1
                return False
            self.serial = record.serial
            if kind == "quarantine":
                self.quarantined.add(record.quarantine.offset)
        return True

    def copy(self) -> Register:
        """Return an independent copy."""
        return replace(self, quarantined=set(self.quarantined))
