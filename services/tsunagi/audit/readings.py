"""Accounts for the batches of one slot's log: each is in `recovered` as measured, in `late` or in `dead-letters`.

Nothing here knows when a step closes. A batch that claims the measured rows of its step is accounted for. A batch that
cannot claim them must have been set aside. If it was neither, after the system had enough time, it is lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from tsunagi.audit.evidence import Aside, AuditedOutput, Batch
from tsunagi.audit.late import Refused
from tsunagi.audit.rules import accuse_invented, accuse_second, accuse_values, close, is_measured, lost_text
from tsunagi.audit.tally import Tally

_JUDGED_AFTER = 50
"""A step is judged when this many later outputs have come: until then `late` may still tell which of two batches of the
step was set aside."""
_ASIDES = 20_000
"""How many records of `late` and `dead-letters` are remembered, the last ones. They may be read before their batches,
and a takeover may repeat them."""


@dataclass(slots=True)
class _Step:
    """The output of a step.

    Attributes:
        by_sensor: the row of each measured sensor.
        claims: the offset of the batch that claims the row of a sensor.
    """

    output: AuditedOutput
    by_sensor: dict[int, int]
    claims: dict[int, int] = field(default_factory=dict)


class ReadingBook:
    """Accounts for the batches of one slot.

    Args:
        tally: receives the findings.
        values: whether a measured row must have exactly the value of its reading. It must if `recover` is the only
            operator.
        kept: of how many steps the measured rows are kept. A batch may be set aside long after its step was closed.

    Attributes:
        batches: how many batches were taken in since the judging began.
        readings: how many tuples these batches have.
        aside: how many of these batches were set aside.
    """

    def __init__(self, tally: Tally, *, values: bool, kept: int) -> None:
        self._tally = tally
        self._values = values
        self._limit = kept
        self._base: int | None = None
        self._read_to = 0
        self._pending: dict[int, Batch] = {}
        self._waiting: dict[int, list[int]] = {}
        self._claimed: dict[int, Batch] = {}
        self._steps: OrderedDict[int, _Step] = OrderedDict()
        self._unjudged: deque[int] = deque()
        self._asides: OrderedDict[int, Aside] = OrderedDict()  # by offset
        self._refused: list[tuple[Batch, Aside]] = []
        self.batches = 0
        self.readings = 0
        self.aside = 0

    def begin(self, step: int) -> None:
        """Begin to judge, from this step on. Batches of earlier steps are forgotten."""
        self._base = step
        for offset, batch in list(self._pending.items()):
            if batch.step < step:
                self._forget(offset, batch.step)
            else:
                self._count(batch)
        self._steps.clear()
        self._unjudged.clear()
        self._claimed.clear()

    def take(self, batch: Batch) -> None:
        """Take a batch in. Batches must come in log order."""
        self._read_to = max(self._read_to, batch.offset + 1)
        if self._base is not None and batch.step < self._base:
            return
        if self._base is not None:
            self._count(batch)
        if batch.offset in self._asides:
            self._refuse(batch, self._asides[batch.offset])
            return
        self._pending[batch.offset] = batch
        self._waiting.setdefault(batch.step, []).append(batch.offset)
        if batch.step in self._steps:
            self._claim(batch.step)

    def read_to(self, offset: int) -> None:
        """Note that the log was read up to this offset, because not every record is a batch."""
        self._read_to = max(self._read_to, offset)

    def set_aside(self, aside: Aside) -> None:
        """Note that a batch is in `late` or `dead-letters`. A repeat of that, as after a takeover, changes nothing."""
        offset = aside.offset
        if offset in self._asides:
            return
        self._asides[offset] = aside
        if len(self._asides) > _ASIDES:
            self._asides.popitem(last=False)
        batch = self._pending.get(offset)
        if batch is not None:
            self._refuse(batch, aside)
            self._forget(offset, batch.step)
            return
        batch = self._claimed.pop(offset, None)
        if batch is not None:
            self._refuse(batch, aside)
            step = self._steps.get(batch.step)
            if step is not None:
                step.claims = {sensor: by for sensor, by in step.claims.items() if by != offset}
                self._claim(batch.step)

    def _refuse(self, batch: Batch, aside: Aside) -> None:
        if self._base is None:
            return
        self.aside += 1
        if len(batch.sensor):
            self._refused.append((batch, aside))

    def take_refused(self) -> list[Refused]:
        """Return the batches with readings that were set aside since the last call, in log order."""
        found, self._refused = sorted(self._refused, key=lambda item: item[0].offset), []
        steps = self._steps
        return [
            Refused(batch, aside, steps[batch.step].output if batch.step in steps else None) for batch, aside in found
        ]

    def close(self, output: AuditedOutput) -> None:
        """Take in the first output of a step, with which the step is closed."""
        if self._base is None or output.step < self._base:
            return
        measured = is_measured(output.quality)
        places = {sensor: place for place, sensor in enumerate(output.sensor.tolist()) if measured[place]}
        self._steps[output.step] = _Step(output, places)
        self._claim(output.step)
        self._unjudged.append(output.step)
        while len(self._unjudged) > _JUDGED_AFTER and self._judge(self._steps[self._unjudged[0]]):
            self._unjudged.popleft()
        while len(self._steps) > self._limit:
            number, oldest = self._steps.popitem(last=False)
            if self._unjudged and self._unjudged[0] == number:
                self._unjudged.popleft()
            for offset in set(oldest.claims.values()):
                self._claimed.pop(offset, None)

    def unaccounted(self, before_us: int) -> list[Batch]:
        """Return the batches that were appended before that time and are nowhere yet."""
        return [batch for batch in self._pending.values() if batch.appended_us < before_us]

    def expire(self, before_us: int) -> None:
        """Count the batches as lost that were appended before that time and are nowhere."""
        for batch in self.unaccounted(before_us):
            step = self._steps.get(batch.step)
            missing = len(batch.sensor)
            if step is not None:
                missing = sum(sensor not in step.by_sensor for sensor in batch.sensor.tolist())
            if step is None or missing:
                self._tally.lose(lost_text(batch, missing, "recovered"), max(1, missing))
            else:  # another batch of the same edge and step has claimed all its rows
                accuse_second(batch, self._tally)
            self._forget(batch.offset, batch.step)

    def finish(self) -> None:
        """Judge the last steps, of which nothing can change any more."""
        while self._unjudged and self._judge(self._steps[self._unjudged[0]]):
            self._unjudged.popleft()

    def _count(self, batch: Batch) -> None:
        self.batches += 1
        self.readings += len(batch.sensor)

    def _forget(self, offset: int, step: int) -> None:
        self._pending.pop(offset, None)
        waiting = self._waiting.get(step, [])
        if offset in waiting:
            waiting.remove(offset)
        if not waiting:
            self._waiting.pop(step, None)

    def _claim(self, number: int) -> None:
        """Let the batches of a step claim its measured rows, in log order."""
        step = self._steps[number]
        for offset in sorted(self._waiting.get(number, [])):
            batch = self._pending[offset]
            ids = batch.sensor.tolist()
            if offset > step.output.name.offset or any(i not in step.by_sensor or i in step.claims for i in ids):
                continue  # the batch came after the step had closed, or lacks rows, or another batch was first
            self._forget(offset, number)
            self._claimed[offset] = batch
            step.claims.update(dict.fromkeys(ids, offset))
            self._compare(batch, step)

    def _compare(self, batch: Batch, step: _Step) -> None:
        if not self._values or len(batch.sensor) == 0:
            return
        places = [step.by_sensor[sensor] for sensor in batch.sensor.tolist()]
        wrong = ~close(step.output.mean[places], batch.value)
        if wrong.any():
            accuse_values(batch, batch.sensor[wrong], "recovered", self._tally)

    def _judge(self, step: _Step) -> bool:
        """Judge the measured rows of a step; return False if the log has not been read far enough yet."""
        if self._read_to <= step.output.name.offset:
            return False
        nobody = [sensor for sensor in step.by_sensor if sensor not in step.claims]
        if nobody:
            accuse_invented(step.output.place, nobody, self._tally)
        return True
