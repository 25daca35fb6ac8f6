"""Who owns a slot, decided by the slot's log alone (architecture, "Ownership").

An Ownership record counts only if its epoch is the current one + 1 at its place; any other control record counts only
if its epoch is the current one at its place. Everyone applies the rule in log order, so the first writer wins and all
agree. A blank Founding counts if its epoch is greater: what came before it is of no account.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tsunagi.runtime.messages import Founding, LogRecord

CONTROL = frozenset(
    {"edge_out", "model", "settings", "quarantine", "punctuation", "calibrated", "sensor_out", "helpers"}
)
"""Control records by the field of their body. Each counts only in the epoch of its writer; batches count in any."""


@dataclass(slots=True)
class Register:
    """The ownership of one slot as of a place in its log.

    Attributes:
        epoch: 0 = nobody has owned the slot yet.
        at: offset of the Ownership record in force, -1 = none.
        quarantined: offsets that are not to be processed.
        serial: of the last control record of this epoch that counted, 0 = none was authenticated.
        founding: how this generation was begun, None = it is the slot's first; founded_at: where that stands, -1 = not
            read.
    """

    epoch: int = 0
    owner: str = ""
    generation: int = 0
    first_step: int = 0
    at: int = -1
    void: int = 0
    serial: int = 0
    founding: Founding | None = None
    founded_at: int = -1
    quarantined: set[int] = field(default_factory=set)

    def read(self, offset: int, record: LogRecord) -> bool:
        """Take in one record; return whether it counts (tuples always do)."""
        kind = record.WhichOneof("body")
        if kind == "ownership":
            claim = record.ownership
            founds = claim.HasField("founding")
            blank = founds and claim.founding.blank
            if claim.epoch <= self.epoch if blank else claim.epoch != self.epoch + 1:
                self.void += 1
                return False
            if self.epoch == 0 or self.generation == 0 or founds:
                self.generation = claim.generation
                self.first_step = claim.first_step
            if founds:
                self.founding, self.founded_at = claim.founding, offset
            self.epoch, self.owner, self.at = claim.epoch, claim.node, offset
            self.serial = record.serial
            return True
        if kind in CONTROL:
            if getattr(record, kind).epoch != self.epoch:
                self.void += 1
                return False
            # A genuine record that somebody appends again (docs/howto/security.md), or that came late after all.
            if record.serial <= self.serial and self.serial:
                self.void += 1
                return False
            self.serial = record.serial
            if kind == "quarantine":
                self.quarantined.add(record.quarantine.offset)
        return True

    @property
    def began(self) -> int:
        """Outputs of inputs below this offset are of an earlier generation, and their readers have them."""
        return 0 if self.founding is None else self.founding.begin

    @property
    def declared(self) -> str:
        """Why the generation was begun, and what is lost, in words; "" = it is the slot's first."""
        founding = self.founding
        if founding is None:
            return ""
        lost = f"records {founding.lost_from}..{founding.lost_to - 1} are lost"
        if founding.lost_to <= founding.lost_from:
            lost = "what is lost is not known"
        return f"generation {self.generation:x} begins at offset {founding.begin}: {founding.reason}; {lost}"

    def copy(self) -> Register:
        """Return an independent copy."""
        return replace(self, quarantined=set(self.quarantined))
