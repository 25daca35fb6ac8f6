"""Who owns a slot, decided by the slot's log alone (architecture, "Ownership").

The *epoch* is the number of an ownership. An Ownership record counts only if its epoch is one more than the epoch at
its place in the log. Any other control record counts only if its epoch is the one at its place. All replicas apply the
rule in log order, so the first writer wins and all agree.

The *generation* is the number of the slot's log. An Ownership record with a Founding begins a new one after the log has
lost records. If the Founding is blank, there is no state to go on from, and any greater epoch counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tsunagi.runtime.messages import Founding, LogRecord

CONTROL = frozenset(
    {"edge_out", "model", "settings", "quarantine", "punctuation", "calibrated", "sensor_out", "helpers", "past"}
)
"""Control records, by the field of their body. They count only in the epoch of their writer. Batches always count."""


@dataclass(slots=True)
class Register:
    """The ownership of one slot as of a place in its log.

    Attributes:
        epoch: the present epoch; 0 = nobody has owned the slot yet.
        owner: the node that owns the slot.
        generation: the present generation.
        first_step: the first step that the slot computes in this generation.
        at: offset of the Ownership record in force; -1 = not read.
        void: how many records were void.
        serial: serial number of the last control record of this epoch that counted; 0 = it had none, since records are
            not authenticated.
        founding: the Founding that began this generation; None = it is the slot's first generation.
        founded_at: offset of the record with that Founding; -1 = not read.
        quarantined: offsets of records that are not processed.
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
        """Take in one record; return whether it counts (batches always do)."""
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
            # A genuine record that somebody has appended again (docs/howto/security.md), or that came late.
            if record.serial <= self.serial and self.serial:
                self.void += 1
                return False
            self.serial = record.serial
            if kind == "quarantine":
                self.quarantined.add(record.quarantine.offset)
        return True

    @property
    def began(self) -> int:
        """The offset of this generation's first input. Outputs of earlier inputs belong to earlier generations."""
        return 0 if self.founding is None else self.founding.begin

    @property
    def declared(self) -> str:
        """Words that say why the generation was begun and what is lost; "" = it is the slot's first generation."""
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
