"""Which record of `plan` is in force: the same for everybody, whatever is repeated and however it is read."""

from __future__ import annotations

import random
from typing import Any

import pytest
import structlog

from tsunagi.audit.evidence import read_placement as judged_placement
from tsunagi.edge.publish import EdgePlacementReader
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.log import PLAN, LogError, Producer, Record
from tsunagi.runtime.messages import (
    VERSION,
    Act,
    Assignment,
    HelperRequest,
    Placement,
    Plan,
    RecoveryTarget,
    SlotMove,
    StandbyTarget,
    Workers,
)
from tsunagi.runtime.placement import read_placement
from tsunagi.runtime.plan import MOST, Words, word_of
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.system.plan import append_plan
from tsunagi.worker.plan_book import PlanBook

TABLE = SensorTable(tuple(Sensor(number, f"s{number}", "e") for number in range(3)))
LOGGER = structlog.get_logger()


def random_plan(draw: random.Random, *, numbered: bool = True) -> Plan:
    """Return any record that somebody may write; serials are few, so that many meet."""
    serial, slot = draw.randint(int(numbered), 4), draw.randrange(2)
    bodies: list[dict[str, Any]] = [
        {"placement": Placement(serial=serial, slots=2, slot=pack_sensors([draw.randrange(2)] * 3))},
        {"assignment": Assignment(slot=slot, owner=f"n{draw.randrange(4)}", serial=serial)},
        {"helpers": HelperRequest(slot=slot, epoch=draw.randrange(3), sensor=pack_sensors([draw.randrange(3)]))},
        {"target": StandbyTarget(slot=slot, batch_size=draw.randrange(9))},
        {"recovery": RecoveryTarget(eps=draw.choice((0.1, 0.2, 0.3)))},
        {"workers": Workers(count={"local": draw.randrange(9)}, by="operator")},
        {"move": SlotMove(slot=slot, to=f"n{draw.randrange(4)}")},
    ]
    return Plan(version=VERSION, serial=serial, **draw.choice(bodies))


def in_force(records: list[tuple[int, Plan]]) -> dict[str, bytes]:
    """Return what is in force, by key, for somebody who reads the records in this order."""
    words, found = Words(), {}
    for offset, plan in records:
        if words.take(plan, offset):
            word = word_of(plan)
            assert word is not None
            found[word.key] = plan.SerializeToString(deterministic=True)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_records_appended_again_change_nothing_in_whatever_order_they_are_read(seed: int) -> None:
    draw = random.Random(seed)
    written = list(enumerate(random_plan(draw) for _ in range(40)))
    wanted = in_force(written)
    assert len(wanted) > 5
    again = [draw.choice(written)[1] for _ in range(40)]
    repeated = [*written, *enumerate(again, len(written))]
    assert in_force(repeated) == wanted
    for _ in range(5):
        draw.shuffle(repeated)
        assert in_force(repeated) == wanted


@pytest.mark.parametrize("seed", range(10))
def test_of_a_release_before_the_last_in_the_log_is_in_force_until_there_is_one_with_a_serial(seed: int) -> None:
    draw = random.Random(seed)
    written = list(enumerate(random_plan(draw, numbered=False) for _ in range(60)))
    found = in_force(written)
    draw.shuffle(written)
    assert in_force(written) == found
    unnumbered = [(offset, Plan(recovery=RecoveryTarget(eps=offset))) for offset in range(1, 4)]
    assert in_force(unnumbered)["recovery"] == unnumbered[-1][1].SerializeToString()
    numbered = Plan(recovery=RecoveryTarget(eps=0.5), serial=1)
    assert in_force([(0, numbered), *unnumbered])["recovery"] == numbered.SerializeToString()


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"placement": Placement(serial=4)}, ("placement", 0, 4)),
        ({"assignment": Assignment(slot=2, serial=4)}, ("assignment/2", 0, 4)),
        ({"helpers": HelperRequest(slot=2, epoch=7)}, ("helpers/2", 7, 3)),
        ({"target": StandbyTarget(slot=2)}, ("target/2", 0, 3)),
        ({"recovery": RecoveryTarget()}, ("recovery", 0, 3)),
        ({"workers": Workers()}, ("workers", 0, 3)),
        ({"move": SlotMove(slot=2)}, ("move/2", 0, 3)),
        ({"act": Act(by="olga", at_us=5)}, ("act/5/olga", 0, 3)),
        ({"system": {"id": "abc"}}, ("system/abc", 0, 3)),
        ({}, None),
    ],
)
def test_what_a_record_speaks_of_is_its_key(body: dict[str, Any], word: tuple[str, int, int] | None) -> None:
    assert word_of(Plan(version=VERSION, serial=3, **body)) == word


def test_a_record_that_is_read_again_is_no_news() -> None:
    words = Words()
    assert words.in_force("recovery") == (0, -1)
    told = Plan(version=VERSION, serial=3, recovery=RecoveryTarget())
    assert words.take(told, 5)
    assert not words.take(told, 5)
    assert words.in_force("recovery") == (3, 5)


def test_a_serial_that_nobody_can_have_counted_to_is_passed_over() -> None:
    words = Words()
    assert not words.take(Plan(recovery=RecoveryTarget(), serial=MOST + 1), 0)
    assert words.take(Plan(recovery=RecoveryTarget(), serial=7), 1)
    assert (words.next("recovery"), words.next("recovery"), words.next("workers")) == (8, 9, 1)


@pytest.mark.parametrize("seed", range(10))
def test_edges_workers_spark_and_the_judge_take_the_same_placement(seed: int) -> None:
    draw = random.Random(seed)
    log = MemoryLog(ManualClock(), {PLAN: 1})
    for _ in range(draw.randint(2, 8)):
        slot = [draw.randrange(2) for _ in TABLE.sensors]
        placement = Placement(serial=draw.randint(1, 3), slots=2, slot=pack_sensors(slot), table_sha256=TABLE.digest())
        key = draw.choice((b"placement", b"anything"))
        log.append(PLAN, 0, key, Plan(version=VERSION, placement=placement).SerializeToString())
    edge = EdgePlacementReader(log, TABLE, ManualClock(), LOGGER)
    while edge.poll():
        pass
    book = PlanBook(Settings(), "gw-1", TABLE, LOGGER)
    for record in log.records(PLAN):
        book.on_plan(Plan.FromString(record.value or b""), record.offset)
    found = [edge.current, book.placement, read_placement(log)]
    assert found[0] is not None
    assert found == [found[0]] * 3
    assert pack_sensors(judged_placement(log.records(PLAN))) == found[0].slot


def test_a_command_takes_the_next_serial_and_wins_over_whoever_writes_at_the_same_moment() -> None:
    log = _Raced(MemoryLog(ManualClock(), {PLAN: 1}), races=2)
    for eps in (0.5, 0.25):
        append_plan(log, {"recovery": Plan(version=VERSION, recovery=RecoveryTarget(eps=eps))})  # type: ignore[arg-type]
        words, last = Words(), None
        for record in log.records():
            plan = Plan.FromString(record.value or b"")
            last = plan if words.take(plan, record.offset) else last
        assert last is not None
        assert last.recovery.eps == eps
    log.races = 99
    with pytest.raises(LogError, match="others write recovery at the same time"):
        append_plan(log, {"recovery": Plan(version=VERSION, recovery=RecoveryTarget(eps=1.0))})  # type: ignore[arg-type]


class _Raced:
    """A log on which somebody else writes the same serial a moment earlier, so many times."""

    def __init__(self, log: MemoryLog, races: int) -> None:
        self._log = log
        self.races = races
        self.reader = log.reader

    def records(self) -> list[Record]:
        return self._log.records(PLAN)

    def producer(self) -> Producer:
        if self.races:
            self.races -= 1
            words = Words()
            for record in self.records():
                words.take(Plan.FromString(record.value or b""), record.offset)
            rival = Plan(version=VERSION, recovery=RecoveryTarget(eps=9.0), serial=words.next("recovery"))
            self._log.append(PLAN, 0, b"recovery", rival.SerializeToString())
        return self._log.producer()
