"""Clocks that are wrong, records that nobody can read, and a Spark that dies, stays away and forgets."""

from __future__ import annotations

import itertools
import logging
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.stream import STEPS, Inputs
from tests.e2e.system import SLOTS, Rig
from tests.e2e.verdict import Verdict, slot_sensors, validate, wait_exact
from tsunagi.broker.broker import Broker
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.log import ACKS, DEAD_LETTERS, HEARTBEATS, PLAN, RECOVERED, TUPLES, LogError, Record
from tsunagi.runtime.messages import Ack, DeadLetter, Heartbeat, LogRecord, Plan, Recovered, TupleBatch
from tsunagi.runtime.names import Name, pack_key, unpack_key
from tsunagi.system import processes
from tsunagi.system.topics import read_partition

LOGGER = logging.getLogger(__name__)
OFFSET_S = 600.0
FAST, SLOW = "edge-3", "edge-4"
AWAY_S = 120.0
GARBAGE = b"\xff\xff\xff\xff no protobuf begins so"
FUTURE = 99


class Story:
    """The system, and what the tests have put into it.

    Attributes:
        strange: (topic, partition, offset) of records that belong to nobody.
        wrong_clock: incarnations of edges whose clock was wrong.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.strange: list[tuple[str, int, int]] = []
        self.wrong_clock: set[int] = set()

    def validate(self) -> Verdict:
        """Validate; batches of wrong clocks are accounted for here."""

        def wrong(batch: TupleBatch) -> bool:
            return batch.incarnation in self.wrong_clock

        verdict = validate(self.rig, ignore=wrong, strange=self.strange)
        for letter in verdict.skipped:
            aside = verdict.asides.get((letter.slot, letter.offset))
            assert aside is not None, f"{letter.batch.edge}, slot {letter.slot}, offset {letter.offset}: not set aside"
            assert aside.reason in {"ahead", "closed", "duplicate", "replaced"}
        return verdict

    def write(self, topic: str, partition: int, key: bytes | None, value: bytes) -> int:
        """Append a record that belongs to nobody; return its offset."""
        places: list[int] = []

        def delivered(error: LogError | None, offset: int) -> None:
            assert error is None
            places.append(offset)

        producer = self.rig.log.producer()
        producer.send(topic, partition, key, value, delivered)
        assert producer.flush(60) == 0
        producer.close()
        self.strange.append((topic, partition, places[0]))
        return places[0]

    def letters(self) -> dict[tuple[str, int, int], DeadLetter]:
        """Return what stands in dead-letters, by origin."""
        found = [DeadLetter.FromString(item.value or b"") for item in read_partition(self.rig.log, DEAD_LETTERS, 0)]
        return {(letter.topic, letter.partition, letter.offset): letter for letter in found}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, broker: Broker, inputs: Inputs) -> Iterator[Story]:
    rig = Rig(tmp_path_factory.mktemp("spark"), inputs, servers=broker.servers, prefix="spark.")
    try:
        rig.start(clocks={FAST: OFFSET_S, SLOW: -OFFSET_S})
        yield Story(rig)
    finally:
        rig.close()


def test_edges_whose_clocks_are_wrong_close_and_hold_nobodys_steps(story: Story) -> None:
    rig = story.rig
    rig.advance()
    for edge in (FAST, SLOW):
        story.wrong_clock.add(rig.fleet.beats[edge].message.incarnation)
    verdict = story.validate()
    reasons = {
        edge: {verdict.asides[item.slot, item.offset].reason for item in verdict.skipped if item.batch.edge == edge}
        for edge in (FAST, SLOW)
    }
    assert reasons == {FAST: {"ahead"}, SLOW: {"closed"}}
    assert {item.slot for item in verdict.skipped} == set(range(SLOTS))
    for edge in (FAST, SLOW):
        assert verdict.estimated(slot_sensors(rig, edge), rig.origin_us, verdict.last_step * STEPS.slide_us) == 1.0
        processes.terminate([rig.process(edge)])
        rig.edge_back(edge)
    wait_exact(rig, [FAST, SLOW], story.validate)


def test_a_killed_spark_driver_repeats_only_what_a_reader_drops(story: Story) -> None:
    story.rig.kill_spark()
    story.rig.start_spark()
    story.rig.advance()
    story.validate()


def test_records_that_nobody_can_read_are_set_aside_and_everyone_lives_on(story: Story) -> None:
    rig = story.rig
    rig.wait_protected()
    running = rig.pids()
    expected: dict[tuple[str, int, int], str] = {}
    future = LogRecord(version=FUTURE, batch=TupleBatch(edge="edge-1"))
    for slot, (value, reason) in itertools.product(
        range(SLOTS),
        ((GARBAGE, "unreadable"), (b"", "unreadable"), (future.SerializeToString(), "version")),
    ):
        expected[TUPLES, slot, story.write(TUPLES, slot, b"edge-1", value)] = reason
    last = read_partition(rig.log, RECOVERED, 0)[-1]
    for key, value, reason in (
        (b"no name", GARBAGE, "unreadable"),
        (later_name(last), GARBAGE, "unreadable"),
        (later_name(last), Recovered(version=FUTURE).SerializeToString(), "version"),
    ):
        expected[RECOVERED, 0, story.write(RECOVERED, 0, key, value)] = reason
    for topic, message in ((PLAN, Plan()), (ACKS, Ack()), (HEARTBEATS, Heartbeat(node="gw-1"))):
        message.version = FUTURE
        story.write(topic, 0, b"strange", GARBAGE)
        story.write(topic, 0, b"strange", message.SerializeToString())
    rig.wait(lambda: story.letters().keys() >= expected.keys(), f"dead letters of {sorted(expected)}")
    found = story.letters()
    assert {place: found[place].reason for place in expected} == expected
    assert all(found[place].detail for place in expected)
    worker = rig.watches[0].owner
    for topic, reason in itertools.product((PLAN, ACKS, HEARTBEATS), ("unreadable", "version")):
        sample = f'tsunagi_dead_letters_total{{reason="{reason}",topic="{topic}"}}'
        rig.wait(lambda sample=sample: rig.metric(worker, sample) == 1.0, f"{sample} of {worker}")  # type: ignore[misc]
    rig.advance()
    story.validate()
    assert rig.pids() == running


def test_two_minutes_without_spark_cost_lag_and_no_takeover(story: Story) -> None:
    rig = story.rig
    rig.wait_protected()
    rig.kill_spark()
    away_until = time.monotonic() + AWAY_S
    # A takeover meanwhile, with an unreadable record where the new owner looks for the last output.
    owner, epoch = rig.watches[0].owner, rig.watches[0].epoch
    rig.signal(owner, signal.SIGSTOP)  # it writes nothing after the record
    story.write(RECOVERED, 0, b"no name", GARBAGE)
    rig.signal(owner, signal.SIGKILL)
    assert rig.wait_owner(0, epoch) != owner
    rig.wait_protected()
    newest = rig.live.newest()
    rig.wait(lambda: time.monotonic() > away_until, "two minutes", 2 * AWAY_S)
    assert rig.live.newest() == newest
    rig.start_spark()
    rig.advance()
    story.validate()


def test_an_emptied_checkpoint_sends_the_same_blocks_and_readers_drop_the_repeats(story: Story) -> None:
    rig = story.rig
    rig.kill_spark()
    rig.empty_checkpoint()
    before = story.validate().checked.findings.repeats
    rig.start_spark()
    rig.advance()
    verdict = story.validate()
    blocks = sum(len(taken) for taken in verdict.checked.delivery.blocks.values())
    LOGGER.info("repeats dropped: %s of %s blocks", verdict.checked.findings.repeats, blocks)
    assert verdict.checked.findings.repeats > before + 100
    verdict.tell()


def test_the_outputs_of_every_slot_come_out_again_in_a_replay(story: Story) -> None:
    said: list[str] = []
    assert replay_slots(story.rig.settings, (), said.append) == 0, "\n".join(said)


def later_name(record: Record) -> bytes:
    """Return a key that could come next in a partition of `recovered`, though nothing will have that name."""
    generation, slot, name = unpack_key(record.key)
    return pack_key(generation, slot, Name(name.offset + 1_000_000, 0))
