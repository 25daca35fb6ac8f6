"""A slot whose log strangers write into: forged records, genuine ones appended again, and batches of absurd shape."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from tests.unit.hashes import SHA
from tests.unit.slot.small_slot import (
    EDGES,
    FIRST,
    SLIDE_US,
    SLOT,
    Encoded,
    Writer,
    batch,
    load,
    make_config,
    owned,
    play,
    random_log,
)
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.columns import floats, pack_floats, pack_sensors, sensors
from tsunagi.runtime.keys import CONTROL, EDGE
from tsunagi.runtime.log import DEAD_LETTERS, RECOVERED, Record
from tsunagi.runtime.messages import VERSION, DeadLetter, EdgeOut, LogRecord, Punctuation, Recovered, TupleBatch
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.edges import OUT_AGAIN_US
from tsunagi.slot.outputs import MAX_DETAIL, MAX_LETTER_BYTES, MAX_LETTER_KEY_BYTES
from tsunagi.slot.slot import Slot
from tsunagi.slot.steps import StepBook

INT64_MAX, INT64_MIN = (1 << 63) - 1, -(1 << 63)


class Signed:
    """Gives records signers and serials, as genuine writers and their readers do."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._serial = 0

    def genuine(self, record: Record) -> None:
        message = _parsed(record)
        if message is None:  # what is unreadable is nobody's
            self.append(record, "")
            return
        if message.WhichOneof("body") == "batch":
            self.append(record, EDGE + message.batch.edge)
            return
        self._serial += 1
        message.serial = self._serial
        self.append(replace(record, value=message.SerializeToString()), CONTROL)

    def append(self, record: Record, signer: str) -> None:
        self.records.append(replace(record, offset=len(self.records), signer=signer))


def outputs_of(records: list[Record]) -> tuple[list[bytes], Encoded]:
    """Return the outputs' values without their names, and the dead letters."""
    played = play(Slot(SLOT, load), records)
    values = []
    for topic, _, value in played:
        if topic == RECOVERED:
            frame = _frame(value)
            values.append(frame)
    return values, [item for item in played if item[0] == DEAD_LETTERS]


def _frame(value: bytes) -> bytes:
    message = Recovered.FromString(value)
    for name in ("offset", "index", "appended_us"):
        message.ClearField(name)
    return message.SerializeToString(deterministic=True)


def forgeries(draw: random.Random, record: Record) -> list[tuple[Record, str]]:
    """Return what an edge with its own key can append: (record, signer)."""
    me = draw.choice(EDGES)
    other = draw.choice([edge for edge in EDGES if edge != me])
    step = FIRST + draw.randint(-3, 60)

    def made(**body: object) -> Record:
        return replace(record, key=me.encode(), value=LogRecord(version=VERSION, **body).SerializeToString())  # type: ignore[arg-type]

    return [
        (made(edge_out=EdgeOut(epoch=draw.randint(1, 3), edge=other, from_step=step)), EDGE + me),
        (made(punctuation=Punctuation(epoch=1, step=step)), EDGE + me),
        (made(batch=batch(other, step, incarnation=9)), EDGE + me),
        (made(batch=batch(other, step, incarnation=9)), ""),
        (replace(record, value=record.value), ""),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_forged_records_change_no_output_and_all_agree(seed: int) -> None:
    config = make_config({"use": "recover"})
    draw = random.Random(seed)
    clean, attacked = Signed(), Signed()
    forged = 0
    for record in random_log(seed, config):
        message = _parsed(record)
        if message is not None and message.WhichOneof("body") == "quarantine":
            continue  # it names an offset, and offsets are others with forged records between
        clean.genuine(record)
        attacked.genuine(record)
        if draw.random() < 0.4:
            lie, signer = draw.choice(forgeries(draw, record))
            attacked.append(lie, signer)
            forged += 1
    assert forged > 5
    expected, letters = outputs_of(clean.records)
    found, more = outputs_of(attacked.records)
    assert found == expected
    assert len(more) == len(letters) + forged
    reasons = [DeadLetter.FromString(value).reason for _, _, value in more]
    assert reasons.count("forged") > forged / 2  # (what nobody can read is "unreadable", whoever wrote it)
    # The independent loop says the same, name by name.
    played = play(Slot(SLOT, load), attacked.records)
    names = [name for topic, name, _ in played if topic == RECOVERED]
    assert [item.name for item in recompute(attacked.records, load)] == names


def _parsed(record: Record) -> LogRecord | None:
    try:
        return LogRecord.FromString(record.value or b"")
    except DecodeError:
        return None


@pytest.mark.parametrize("seed", range(30))
def test_genuine_records_appended_again_change_no_output(seed: int) -> None:
    # (A batch refused as too far ahead counts when it comes again in its time; it is what its edge has said of it.)
    config = make_config({"use": "recover"}, max_ahead_us=1 << 50)
    draw = random.Random(seed)
    clean, attacked = Signed(), Signed()
    for record in random_log(seed, config):
        message = _parsed(record)
        if message is not None and message.WhichOneof("body") in ("quarantine", "settings") and record.offset > 3:
            continue
        clean.genuine(record)
        attacked.genuine(record)
        if draw.random() < 0.5:
            again = draw.choice(attacked.records)
            attacked.append(replace(again, appended_us=record.appended_us), again.signer or "")
    assert outputs_of(attacked.records)[0] == outputs_of(clean.records)[0]
    played = play(Slot(SLOT, load), attacked.records)
    names = [name for topic, name, _ in played if topic == RECOVERED]
    assert [item.name for item in recompute(attacked.records, load)] == names


def test_an_edge_out_appended_again_in_its_epoch_is_void_also_after_a_restore() -> None:
    writer = owned(make_config())
    for edge in EDGES[:2]:
        writer.batch(edge, FIRST)
    writer.out("e3", FIRST)
    for edge in reversed(EDGES):  # e3 first: it is taken back
        writer.batch(edge, FIRST + 1)
    log = Signed()
    for record in writer.records:
        log.genuine(record)
    out = next(item for item in log.records if (_parsed(item) or LogRecord()).WhichOneof("body") == "edge_out")
    slot = Slot(SLOT, load)
    play(slot, log.records)
    assert slot.book is not None
    assert slot.book.awaited(FIRST + 2) == list(EDGES)
    restored = Slot(SLOT, load)
    restored.restore(slot.context())
    for one in (slot, restored):
        play(one, [replace(out, offset=one.position)])
        assert one.book is not None
        assert one.book.awaited(FIRST + 2) == list(EDGES)
        assert one.register.void == 1
    # Without a number it counts, some time later: the number is what holds it back.
    unsigned = Slot(SLOT, load)
    play(unsigned, writer.records)
    again_us = writer.records[4].appended_us + OUT_AGAIN_US
    play(unsigned, [replace(writer.records[4], offset=unsigned.position, appended_us=again_us)])
    assert unsigned.book is not None
    assert unsigned.book.awaited(FIRST + 2) == list(EDGES[:2])


def test_auth_stands_in_the_settings_hash_only_when_it_is_on() -> None:
    off, on, other = make_config(), make_config(auth="aa"), make_config(auth="bb")
    assert len({off.hash, on.hash, other.hash}) == 3
    assert "auth" not in off.text()
    assert SlotConfig.parse(off.text()) == off
    assert SlotConfig.parse(on.text()) == on


# ---- absurd batches ------------------------------------------------------------------------------------------------


def accept(given: TupleBatch, appended_us: int = FIRST * SLIDE_US) -> str:
    return StepBook(make_config(), FIRST).accept(given, appended_us)


def shaped(step: int = FIRST, **fields: object) -> TupleBatch:
    found = batch("e1", FIRST)
    found.step = step
    found.event_time_us = step * SLIDE_US if abs(step * SLIDE_US) < INT64_MAX else FIRST * SLIDE_US
    for name, value in fields.items():
        setattr(found, name, value)
    return found


MANY = np.arange(100_000, dtype=np.uint32)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (shaped(), ""),
        (shaped(sensor=pack_sensors([0, 0])), "damaged"),
        (shaped(sensor=pack_sensors([2, 0])), "damaged"),
        (shaped(sensor=pack_sensors([0] * 100_000), value=pack_floats([1.0] * 100_000)), "damaged"),
        (shaped(sensor=pack_sensors(MANY), value=pack_floats(MANY), count=b""), "unknown-sensor"),
        (shaped(value=pack_floats([1.0])), "damaged"),
        (shaped(value=b"123"), "damaged"),
        (shaped(sensor=b"12345", value=b"1234567890"), "damaged"),
        (shaped(count=pack_sensors([1] * 50_000)), "damaged"),
        (shaped(count=b""), ""),
        (shaped(sensor=b"", value=b"", count=b""), ""),
        (shaped(sensor=pack_sensors([0, 0xFFFFFFFF])), "unknown-sensor"),
        (shaped(step=INT64_MAX), "damaged"),
        (shaped(step=INT64_MIN), "damaged"),
        (shaped(step=INT64_MAX // SLIDE_US), "ahead"),
        (shaped(step=-(INT64_MAX // SLIDE_US)), "closed"),
        (shaped(event_time_us=INT64_MIN), "damaged"),
        (shaped(event_time_us=INT64_MAX), "damaged"),
        (shaped(edge="x" * 100_000), "unknown-edge"),
    ],
)
def test_absurd_batches_have_a_reason(given: TupleBatch, reason: str) -> None:
    assert accept(given) == reason


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1.7e308, -1.7e308, 5e-324])
def test_no_value_reaches_other_sensors(bad: float) -> None:
    """What one edge claims, however absurd, leaves the estimates of the other edges' sensors finite."""
    config = make_config({"use": "recover"})
    writer = owned(config)
    writer.model(SHA)
    for step in range(FIRST, FIRST + 20):
        writer.now_us = step * SLIDE_US
        writer.batch("e1", step, {0: bad, 2: bad})
        writer.batch("e2", step)
        writer.batch("e3", step, {5: 1.0})  # 8 is missing, and is estimated
    played = play(Slot(SLOT, load), writer.records)
    rows = [Recovered.FromString(value) for topic, _, value in played if topic == RECOVERED]
    assert len(rows) == 20
    for row in rows:
        of = dict(zip(sensors(row.sensor).tolist(), floats(row.mean).tolist(), strict=True))
        assert np.isfinite(of[8])
        assert abs(of[8]) < 1e6


def test_what_an_edge_writes_cannot_make_a_letter_that_the_log_refuses() -> None:
    """The owner would die of it, and the next one: a letter is small whatever stood in the record."""
    config = make_config()
    writer: Writer = owned(config)
    huge = TupleBatch(edge="\x00" * 900_000, step=FIRST, event_time_us=FIRST * SLIDE_US)
    record = writer.add(batch=huge)
    writer.records[-1] = replace(record, key=b"k" * 1_000_000)
    writer.raw(b"\xff" * 1_000_000)
    limit = MAX_LETTER_BYTES + MAX_LETTER_KEY_BYTES + 4 * MAX_DETAIL + 1024
    letters = [item for item in play(Slot(SLOT, load), writer.records) if item[0] == DEAD_LETTERS]
    assert len(letters) == 2
    assert all(len(value) < limit for _, _, value in letters)


def test_a_punctuation_of_a_time_far_ahead_closes_nothing() -> None:
    """By it every step up to that time would close, one after the other, for as long as nobody kills the worker."""
    config = make_config()
    writer = owned(config)
    for edge in EDGES:
        writer.batch(edge, FIRST)
        writer.out(edge, FIRST + 1)
    writer.punctuation(1 << 50)
    played = play(Slot(SLOT, load), writer.records)
    assert [topic for topic, _, _ in played] == [RECOVERED]
    assert len(list(recompute(writer.records, load))) == 1


def test_extremes_of_int64_in_control_records_overflow_nothing() -> None:
    writer = owned(make_config())
    for extreme in (INT64_MAX, INT64_MIN):
        writer.out("e1", extreme)
        writer.quarantine(extreme)
    writer.punctuation(INT64_MIN)
    for edge in EDGES:
        writer.batch(edge, FIRST)
    slot = Slot(SLOT, load)
    played = play(slot, writer.records)
    # Only the greatest number says something in one of them: that an edge is waited for.
    assert [topic for topic, _, _ in played] == [DEAD_LETTERS] * 4 + [RECOVERED]
    Slot(SLOT, load).restore(slot.context())
    assert struct.calcsize("<q") == 8
