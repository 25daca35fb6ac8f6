"""Protocol bugs planted in the real objects, to prove that the schedules and the checker find such bugs.

Each is a context manager that patches one method of the code under test while a schedule runs. The checker runs
afterwards, on the code as it is.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from google.protobuf.message import Message

from tsunagi.owner.closer import Closer
from tsunagi.owner.deciders import HelperDecider
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.runtime.clock import SteadyClock
from tsunagi.runtime.door import decode
from tsunagi.runtime.heartbeat import Namesake
from tsunagi.runtime.log import TUPLES, Record
from tsunagi.runtime.memory_clients import MemoryProducer
from tsunagi.runtime.messages import Ack, Context, Heartbeat, LogRecord, SlotSettings, TupleBatch
from tsunagi.runtime.moving import AGREED, HELD, SensorSlots
from tsunagi.runtime.names import Name
from tsunagi.scaler.mover import Mover
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.deciding import OwnerView
from tsunagi.slot.outputs import Output
from tsunagi.slot.ownership import Register
from tsunagi.slot.recover import Recover
from tsunagi.slot.slot import Slot
from tsunagi.slot.steps import StepBook
from tsunagi.standby import actions as act
from tsunagi.standby.detector import Detector
from tsunagi.standby.intake import Intake
from tsunagi.standby.primary import Primary
from tsunagi.standby.promotion import Promotion
from tsunagi.standby.queue import PendingQueue, SilentQueue
from tsunagi.standby.replica import Replica
from tsunagi.standby.speculation import Speculation
from tsunagi.standby.stages.base import STAY, StageHandler, StageTurn
from tsunagi.standby.stages.own import OwnStage
from tsunagi.standby.stages.promote import ClaimStage
from tsunagi.standby.stages.watch import WatchStage
from tsunagi.standby.trust import Trust
from tsunagi.worker.host import ReplicaHost
from tsunagi.worker.slot_reader import SlotReader
from tsunagi.worker.writer import Writer

Plant = Callable[[], AbstractContextManager[Any]]

_on_tail = Replica.on_tail
_read = Register.read
_acknowledge = Primary.acknowledge
_trim = SilentQueue.trim
_accept = StepBook._accept
_settings = Slot._settings
_decide = Closer.decide
_jump = Intake.jump
_do = ReplicaHost._do
_save_context = Primary._save_context
_primary_decide = Primary.decide
_on_records = Intake.on_records
_send = MemoryProducer.send


def _begins_after_its_own(
    self: Replica, generation: int, name: Name, now: float, appended_us: int = 0, *, lost: bool = False
) -> list[act.Action]:
    """The new owner takes what it has computed itself for written."""
    return _on_tail(self, generation, max(name, self.slot.last_name), now, appended_us, lost=lost)


def _ownership_without_epoch(self: Register, offset: int, record: LogRecord) -> bool:
    if record.WhichOneof("body") == "ownership":
        self.epoch = record.ownership.epoch - 1
    return _read(self, offset, record)


def _void_counts(self: Register, offset: int, record: LogRecord) -> bool:
    kind = record.WhichOneof("body")
    return _read(self, offset, record) or kind in ("edge_out", "punctuation")


def _floor(self: PendingQueue, position: int) -> int:
    return position


def _level1_early(self: Primary, *args: Any, **options: Any) -> list[act.Action]:
    todo = _acknowledge(self, *args, **options)
    if self._resume is not None and self.level1_offset < self._resume.offset:
        self.level1_offset = self._resume.offset
        todo.append(act.SendAck(Ack(version=1, level1=self._resume)))
    return todo


def _level1_of_another_position(self: Primary, slot: Slot, now: float) -> list[act.Action]:
    todo = _save_context(self, slot, now)
    if todo and self._saving is not None:
        position, name, size, appended_us = self._saving
        self._saving = position + 1, name, size, appended_us
    return todo


def _trim_nothing(self: SilentQueue, offset: int) -> None:
    del offset


def _trim_too_far(self: SilentQueue, offset: int) -> None:
    _trim(self, offset + 12)


def _take_nothing(self: SilentQueue, tail: Name) -> list[Output]:
    self.clear(0)
    return []


def _no_open_batches(self: StepBook) -> list[TupleBatch]:
    return []


def _duplicates_count(self: StepBook, batch: TupleBatch, appended_us: int) -> tuple[str, bool]:
    edge = self.edges.get(batch.edge)
    if edge is not None and self.cursor <= batch.step <= edge.last_step:
        self.open.setdefault(batch.step, {})[batch.edge] = batch
        return "", True
    return _accept(self, batch, appended_us)


def _not_readmitted(self: StepBook, batch: TupleBatch, appended_us: int) -> tuple[str, bool]:
    edge = self.edges.get(batch.edge)
    before = None if edge is None else edge.out_from
    found = _accept(self, batch, appended_us)
    if edge is not None and before is not None:
        edge.out_from = before
    return found


def _set_aside_lost(self: Slot, record: Record, settings: SlotSettings, outputs: list[Output]) -> None:
    self._set_aside.clear()
    _settings(self, record, settings, outputs)


def _goes_on(self: OwnStage, records: list[Record], now: float) -> StageTurn:
    """An owner takes in what it has read, whoever owns the slot by it."""
    self.shared.intake.on_records(records)
    return STAY


def _count_alone(self: Detector, at: float, own_count: int, now: float) -> float:
    return now - at


def _always_connected(self: Closer, view: OwnerView) -> list[Any]:
    return _decide(self, replace(view, connected=True))


def _jump_without_replay(self: Intake, position: int, register: Register, digest: int = 0) -> None:
    _jump(self, position, register, digest)
    self.next = max(position, self.end)


def _follow_one_late(self: ReplicaHost, replica: Replica, action: act.Action) -> list[act.Action]:
    if isinstance(action, act.Follow):
        action = replace(action, offset=action.offset + 1)
    return _do(self, replica, action)


def _passes_one_over(self: Intake, records: Sequence[Record], **options: bool) -> None:
    """Takes a record that was read twice for a new one."""
    if records and 0 < records[0].offset == self.next == self.scanned:
        self.next = self.scanned = self.next + 1
    _on_records(self, records, **options)


def _last_claim_wins(self: Register, offset: int, record: LogRecord) -> bool:
    """The last of several claims to one epoch wins."""
    if record.WhichOneof("body") == "ownership" and record.ownership.epoch == self.epoch > 0:
        self.epoch -= 1
    return _read(self, offset, record)


def _edges_forgotten(self: StepBook) -> list[Any]:
    return []


def _epoch_to_come(self: Primary, *args: Any, **options: Any) -> list[act.Action]:
    """Control records carry the epoch to come, as if nobody had to read his own promotion back."""
    todo = _primary_decide(self, *args, **options)
    for action in todo:
        if isinstance(action, act.Append) and action.record.WhichOneof("body") == "edge_out":
            action.record.edge_out.epoch += 1
    return todo


_due = WatchStage._due
_begin = Speculation.begin


def _survived_in_silence(self: WatchStage, now: float) -> StageTurn:
    """What the owner survived is processed silently, also by one who writes in its place."""
    speculation, self._speculation = self._speculation, None
    beat = self.shared.detector.owner_beat(self.shared.succession.owner, self.shared.slot_id)
    if speculation is not None and beat is not None:
        self._process_silently(self._survived(beat))
    self._speculation = speculation
    return _due(self, now)


def _behind_its_own(self: Speculation, generation: int, tail: Name, appended_us: int) -> None:
    """What the standby has computed it takes for written."""
    _begin(self, generation, tail, appended_us)
    self.owes = False


_slot_context = Slot.context
_help = HelperDecider.decide


def _without_helpers(self: Slot) -> Context:
    context = _slot_context(self)
    context.ClearField("helpers")
    return context


def _not_read_back(self: HelperDecider, view: OwnerView) -> list[Any]:
    """The owner goes by its helpers at once, not from where they stand in the log."""
    decided = list(_help(self, view))
    for decision in decided:
        if isinstance(decision, LogRecord):
            view.slot._help(decision.helpers)
    return decided


def _follows_anew(self: Recover, model: Model, step: int) -> None:
    """A filter that is to go on with a refit forgets what it knew, where it has lost nothing else to tell by."""
    del step
    if self._filter is not None and self._filter.model.names == model.names:
        self._filter = Recovery(model, eps=self._filter._eps, delta=self._filter._delta)


def _dropped(self: MemoryProducer, topic: str, partition: int, key: bytes | None, value: bytes, *args: Any) -> None:
    if topic != TUPLES or not (key or b"").startswith(b"edge") or zlib.crc32(value) % 100:  # one in a hundred is lost
        _send(self, topic, partition, key, value, *args)


def _plant(target: type, method: str, bug: Any) -> Plant:
    return partial(patch.object, target, method, bug)


def _nothing_wrong(*_: Any) -> None:
    return None


def _not_forsaken(*_: Any, **__: Any) -> bool:
    return False


def _any_tail(self: Replica, *args: Any, **options: Any) -> list[act.Action]:
    """A name beyond the log's end, or of another record, is believed."""
    with patch.object(Intake, "caused", lambda *_: True), patch.object(SilentQueue, "contradicts", lambda *_: False):
        return _on_tail(self, *args, **options)


_claim = ClaimStage.enter


def _same_generation(self: ClaimStage, now: float) -> list[act.Action]:
    with patch.object(self.shared, "new_generation", lambda: self.shared.scan.generation or 1):
        return _claim(self, now)


def _one_key(self: Writer, slot: int, ack: Ack, partition: int) -> None:
    """Acknowledgements of both levels have one key, so compaction keeps the last of either."""
    self._acknowledge(f"{slot}/{self._node}", ack, partition)


def _follows_jumps(self: SteadyClock, *, may_go_back: bool = True) -> int:
    """Every jump of the wall clock is followed."""
    del may_go_back
    before_us = self.now_us()
    self.__init__(self._clock)  # type: ignore[misc]
    return self.now_us() - before_us


def _never_proven(self: Promotion, *args: Any) -> None:
    _gather_evidence(self, *args)
    self.proven = False


def _dies_of_its_state(self: Primary, slot: Slot, now: float) -> list[act.Action]:
    todo = _save_context(self, slot, now)
    if any(isinstance(action, act.NoContext) for action in todo):
        raise ValueError("the state cannot be written down")
    return todo


def _open_batches_lost(self: Slot, record: Record, settings: SlotSettings, outputs: list[Output]) -> None:
    """Who changes the settings forgets what waits in open steps."""
    if isinstance(self.book, StepBook):
        self.book.open.clear()
    _settings(self, record, settings, outputs)


def _whatever_is_there(parts: Iterable[Context]) -> Context | None:
    """What is there of a context's parts is taken for all of it."""
    return decode(Context, b"".join(part.piece for part in parts))


def _heartbeats_alone(self: Closer, view: OwnerView) -> list[Any]:
    """An edge whose heartbeats stay away is gone, whatever its batches say."""
    return _decide(self, replace(view, lost=dict.fromkeys(view.lost, math.inf)))


def _no_fault(_message: Message) -> str:
    return ""


def _hears_nobody(self: Namesake, beat: Heartbeat) -> str:
    return ""


@contextmanager
def _lost_outputs_passed_over() -> Iterator[None]:
    """Nobody notices that `recovered` has lost its end."""
    with patch.object(PendingQueue, "place", lambda *_: True), patch.object(SlotReader, "stands", lambda *_: True):
        yield


def _absent_nowhere(_config: SlotConfig, _step: int) -> frozenset[int]:
    return frozenset()


_next_phase = Mover._next


def _agreed_at_once(mover: Mover, slots: SensorSlots, owned: Any, newest: int) -> tuple[str, int]:
    if slots.phase == HELD:
        return AGREED, newest * mover._slide_us
    return _next_phase(mover, slots, owned, newest)


_gather_evidence = Promotion.gather_evidence

PLANTED_IN_LOST_LOGS: dict[str, Plant] = {
    "records are not compared": _plant(StageHandler, "_compare", _nothing_wrong),
    "the last output is taken for one of this log": _plant(Replica, "on_tail", _any_tail),
    "a new generation keeps its name": _plant(ClaimStage, "enter", _same_generation),
    "outputs that the log has lost are passed over": _lost_outputs_passed_over,
    "nobody begins a generation": _plant(Trust, "forsaken", _not_forsaken),
}
"""The same, for logs that lose records; `test_lost_log` says which fault finds each."""

PLANTED: dict[str, Plant] = {
    "a new owner begins after the wrong name": _plant(Replica, "on_tail", _begins_after_its_own),
    "an ownership counts whatever its epoch": _plant(Register, "read", _ownership_without_epoch),
    "the last of several claims wins": _plant(Register, "read", _last_claim_wins),
    "a void control record counts": _plant(Register, "read", _void_counts),
    "a control record carries another epoch": _plant(Primary, "decide", _epoch_to_come),
    "an ack claims outputs that are on their way": _plant(PendingQueue, "floor", _floor),
    "a Level-1-Ack does not wait for its outputs": _plant(Primary, "acknowledge", _level1_early),
    "a Level-1-Ack names another position": _plant(Primary, "_save_context", _level1_of_another_position),
    "the silent queue is not trimmed": _plant(SilentQueue, "trim", _trim_nothing),
    "the silent queue is trimmed too far": _plant(SilentQueue, "trim", _trim_too_far),
    "a new owner forgets its silent queue": _plant(SilentQueue, "take", _take_nothing),
    "a context lacks the open batches": _plant(StepBook, "open_batches", _no_open_batches),
    "a context lacks the edges": _plant(StepBook, "edge_states", _edges_forgotten),
    "a duplicate counts": _plant(StepBook, "_accept", _duplicates_count),
    "an edge that is out stays out": _plant(StepBook, "_accept", _not_readmitted),
    "what was set aside is lost": _plant(Slot, "_settings", _set_aside_lost),
    "a deposed primary goes on": _plant(OwnStage, "on_records", _goes_on),
    "silence counts while one's own heartbeats stay away": _plant(Detector, "_count", _count_alone),
    "an outage of the broker is held against the edges": _plant(Closer, "decide", _always_connected),
    "a jump to a context without replay": _plant(Intake, "jump", _jump_without_replay),
    "a primary follows its log from one record late": _plant(ReplicaHost, "_do", _follow_one_late),
    "a speculation passes over what the owner survived": _plant(WatchStage, "_due", _survived_in_silence),
    "a speculation begins behind what was computed": _plant(Speculation, "begin", _behind_its_own),
    "a reader passes a record over": _plant(Intake, "on_records", _passes_one_over),
    "a context lacks the helpers": _plant(Slot, "context", _without_helpers),
    "a context lacks the helpers' readings": _plant(StepBook, "lent_batches", _no_open_batches),
    "an owner goes by helpers that are not in the log": _plant(HelperDecider, "decide", _not_read_back),
    "a refit makes the filter forget": _plant(Recover, "_follow", _follows_anew),
    "a batch that an edge hands over is lost": _plant(MemoryProducer, "send", _dropped),
    "compaction takes acknowledgements that count": _plant(Writer, "send_ack", _one_key),
    "an edge follows every jump of its machine's clock": _plant(SteadyClock, "look", _follows_jumps),
    "what nobody may compute with is computed with": partial(patch, "tsunagi.runtime.door.fault", _no_fault),
    "two owners that die on a record prove nothing": _plant(Promotion, "gather_evidence", _never_proven),
    "an owner dies of a state that it cannot write down": _plant(Primary, "_save_context", _dies_of_its_state),
    "new settings forget the open batches": _plant(Slot, "_settings", _open_batches_lost),
    "a context is taken though parts of it are lost": partial(
        patch, "tsunagi.worker.slot_reader.join", _whatever_is_there
    ),
    "an edge whose heartbeats stay away is gone": _plant(Closer, "decide", _heartbeats_alone),
    "two processes of one name go on": _plant(Namesake, "hear", _hears_nobody),
    "a sensor that moves stays in its old slot as well": _plant(SlotConfig, "absent", _absent_nowhere),
    "sensors move before all slots are ready": _plant(Mover, "_next", _agreed_at_once),
}
"""What is wrong -> how it is planted."""
