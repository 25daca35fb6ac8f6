"""What a primary writes beside its outputs, and when."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from tests.unit.hashes import SHA
from tests.unit.slot.small_slot import EDGES, FIRST, SLOT, Writer, load, make_config, owned, play
from tsunagi.runtime.log import LATE, RECOVERED
from tsunagi.runtime.messages import EXACT, Context, Late, Level0Ack, Level1Ack
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.runtime.settings import Settings, StandbySettings
from tsunagi.slot.deciding import READ_BACK_S, OwnerView
from tsunagi.slot.frames import measured_run
from tsunagi.slot.operators import Frame
from tsunagi.slot.outputs import Output
from tsunagi.slot.packed import PackedColumns
from tsunagi.slot.plain_outputs import plain_outputs
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act
from tsunagi.standby.primary import Primary
from tsunagi.standby.queue import PendingQueue

GENERATION = 7


class Term:
    """A primary over a slot whose log is at hand."""

    def __init__(self, *, tail: Name = NO_NAME, writer: Writer | None = None, **standby: float) -> None:
        self.settings = Settings(standby=StandbySettings(**({"ack_s": 0.25, "context_s": 1.0} | standby)))
        self.primary = Primary(SLOT, "n1", self.settings, PendingQueue(), tail, 0.0, generation=GENERATION)
        self.slot = Slot(SLOT, load)
        self.writer = writer or owned(make_config())
        play(self.slot, self.writer.records)

    def step(self, step: int) -> list[Output]:
        """Process a step of every edge; return what was emitted."""
        outputs = []
        for edge in EDGES:
            outputs += self.slot.apply(self.writer.batch(edge, step))
        return [output for action in self.primary.emit(outputs) for output in action.outputs]  # type: ignore[union-attr]

    def tries(self, now: float) -> list[act.Action]:
        return self.primary.acknowledge(self.slot, self.slot.register, now)

    def acks(self, now: float) -> list[Level0Ack | Level1Ack]:
        found: list[Level0Ack | Level1Ack] = []
        for action in self.primary.acknowledge(self.slot, self.slot.register, now):
            if isinstance(action, act.SendAck):
                found.append(action.ack.level0 if action.ack.HasField("level0") else action.ack.level1)
            elif isinstance(action, act.SaveContext):
                self.saved = Context.FromString(action.value)
            elif isinstance(action, act.Note):
                self.note = action.event
        return found


def test_what_stands_in_recovered_is_not_written_again_but_side_records_are() -> None:
    term = Term(tail=Name(4, 0))
    outputs = [
        Output(Name(4, 0), RECOVERED, 1, 0, Late()),
        Output(Name(4, 1), LATE, 1, 0, Late(reason="closed")),
        Output(Name(5, 0), RECOVERED, 1, 0, Late(reason="x")),
    ]
    (emit,) = term.primary.emit(outputs)
    assert isinstance(emit, act.Emit)
    assert [output.name for output in emit.outputs] == [Name(4, 1), Name(5, 0)]
    assert term.primary.emit(outputs[:1]) == []


@pytest.mark.parametrize(("tail", "left"), [(2, [3, 4, 5]), (3, [4, 5]), (5, [])])
def test_of_outputs_kept_as_columns_those_behind_the_tail_are_written(tail: int, left: list[int]) -> None:
    term = Term(tail=Name(tail, 0))
    run = measured_run(1, 1, np.zeros(3, np.uint32), np.ones(3), np.ones(3, np.int64), np.arange(3))
    outputs = plain_outputs(np.array([[3, 4, 5]] * 4), PackedColumns(run), run.origin, 1)
    assert outputs is not None
    emitted = [output for action in term.primary.emit(outputs) for output in action.outputs]  # type: ignore[union-attr]
    assert [output.name for output in emitted] == [Name(offset, 0) for offset in left]
    assert term.primary.emitted == term.primary.quality_counts[EXACT] == len(term.primary.pending) == len(left)


def test_values_are_counted_by_quality_as_they_are_written() -> None:
    term = Term()
    outputs = [output for step in (FIRST, FIRST + 1) for output in term.step(step)]
    frames = [output.body for output in outputs if isinstance(output.body, Frame)]
    assert frames
    expected = np.bincount(np.concatenate([frame.quality for frame in frames]), minlength=4)
    assert term.primary.quality_counts.tolist() == expected.tolist()
    assert expected.sum() == sum(len(frame.sensor) for frame in frames)
    assert term.primary.emitted == len(frames)


def test_a_resume_point_says_when_the_log_appended_what_stands_before_it() -> None:
    term = Term()
    term.step(FIRST)
    assert term.slot.appended_us == term.writer.records[-1].appended_us
    term.primary.pending.delivered(term.slot.last_name, RECOVERED, GENERATION)
    term.acks(1.1)
    term.primary.on_context_saved(3, term.slot.register)
    (level1,) = [ack for ack in term.acks(2.2) if isinstance(ack, Level1Ack)]
    assert level1.appended_us == term.slot.appended_us
    assert term.primary.level1_offset == level1.offset


def test_a_level0_ack_speaks_of_what_has_arrived() -> None:
    term = Term()
    (first,) = term.step(FIRST)
    (second,) = term.step(FIRST + 1)
    (ack,) = term.acks(0.3)
    assert (ack.offset, ack.last_offset) == (first.name.offset, -1)
    term.primary.pending.delivered(first.name, RECOVERED, GENERATION)
    (ack,) = term.acks(0.6)
    assert (ack.offset, ack.last_offset, ack.epoch, ack.node) == (second.name.offset, first.name.offset, 1, "n1")
    term.primary.pending.delivered(second.name, RECOVERED, GENERATION)
    (ack,) = term.acks(0.9)
    assert ack.offset == term.slot.position
    assert term.acks(1.2) == []  # nothing new


def test_a_new_owner_acknowledges_what_it_found_written() -> None:
    term = Term(tail=Name(4, 1))
    assert (term.primary.level0_offset, term.primary.level1_offset) == (-1, -1)
    (ack,) = term.acks(0.3)
    assert (ack.last_offset, ack.last_index) == (4, 1)
    assert (term.primary.level0_offset, term.primary.level1_offset) == (ack.offset, -1)


def test_acks_keep_their_interval() -> None:
    term = Term()
    assert len(term.acks(0.3)) == 1
    term.step(FIRST)
    term.writer.batch("e1", FIRST + 1)
    assert term.acks(0.5) == []


def test_a_level1_ack_waits_for_the_outputs_before_its_context() -> None:
    term = Term()
    (output,) = term.step(FIRST)
    term.acks(1.1)
    assert term.saved == term.slot.context()
    term.primary.on_context_saved(17, term.slot.register)
    assert all(isinstance(ack, Level0Ack) for ack in term.acks(1.4))
    term.primary.pending.delivered(output.name, RECOVERED, GENERATION)
    level1 = [ack for ack in term.acks(1.7) if isinstance(ack, Level1Ack)]
    assert [(ack.offset, ack.context_offset, ack.last_offset) for ack in level1] == [
        (term.saved.offset, 17, output.name.offset)
    ]


def test_a_state_that_cannot_be_written_down_keeps_no_owner_from_going_on() -> None:
    term = Term()
    term.step(FIRST)
    with patch.object(term.slot, "context", side_effect=OverflowError("int too large to convert")):
        said = term.tries(1.1)
        detail = f"before offset {term.slot.position}: OverflowError: int too large to convert"
        assert said[0] == act.NoContext(detail)
        assert not any(isinstance(action, act.NoContext | act.SaveContext) for action in term.tries(1.2))
        assert isinstance(term.tries(2.2)[0], act.NoContext)
    assert not term.primary.saving
    assert isinstance(term.tries(3.3)[0], act.SaveContext)


def test_while_one_waits_no_newer_context_takes_its_place() -> None:
    term = Term()
    (output,) = term.step(FIRST)
    term.acks(1.1)
    first = term.saved
    term.primary.on_context_saved(17, term.slot.register)
    for turn in range(5):  # outputs always take longer to arrive than contexts to come
        term.step(FIRST + 1 + turn)
        term.acks(2.2 + 1.1 * turn)
        assert term.saved is first
    term.primary.pending.delivered(output.name, RECOVERED, GENERATION)
    assert any(isinstance(ack, Level1Ack) and ack.offset == first.offset for ack in term.acks(9.0))
    term.acks(10.1)
    assert term.saved is not first


def test_a_context_is_written_when_something_is_new_whatever_its_size_and_before_retention_takes_the_last() -> None:
    term = Term()
    term.acks(1.1)
    first = term.saved
    term.primary.on_context_saved(0, term.slot.register)
    term.acks(1.5)
    term.acks(9.0)
    assert term.saved is first
    retention_s = term.settings.kafka.retention_s
    term.acks(retention_s / 4 + 2.0)
    assert term.saved is not first
    assert term.saved == first
    term.primary.on_context_saved(1, term.slot.register)
    acks = term.acks(retention_s / 4 + 3.0)
    assert [ack.context_offset for ack in acks if isinstance(ack, Level1Ack)] == [1]
    small = Term(context_bytes=10)
    small.acks(1.1)
    assert small.primary.saving


def kinds(actions: list[act.Action]) -> list[str]:
    return [str(action.record.WhichOneof("body")) for action in actions if isinstance(action, act.Append)]


def test_settings_come_first_then_the_model_and_what_gets_lost_is_written_again() -> None:
    writer = Writer()
    writer.own(1)
    term = Term(writer=writer)
    wish = Wish(make_config(), SHA)
    assert kinds(term.primary.decide(OwnerView(term.slot, wish, 0.0))) == ["settings"]
    assert kinds(term.primary.decide(OwnerView(term.slot, wish, READ_BACK_S - 0.1))) == []
    assert kinds(term.primary.decide(OwnerView(term.slot, wish, READ_BACK_S))) == ["settings"]
    play(term.slot, [writer.settings(make_config())])
    assert kinds(term.primary.decide(OwnerView(term.slot, wish, READ_BACK_S, model_ready=False))) == []
    assert kinds(term.primary.decide(OwnerView(term.slot, wish, READ_BACK_S))) == ["model"]
    play(term.slot, [writer.model(SHA)])
    assert kinds(term.primary.decide(OwnerView(term.slot, wish, 9.0))) == []
