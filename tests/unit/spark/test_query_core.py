"""The query core by itself: what it gives does not depend on batches, and what it cannot run does no harm."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tsunagi.query.definitions import definitions_of, program_of
from tsunagi.query.encoding import EncodedBlock
from tsunagi.query.readings import Readings, attribute_kinds
from tsunagi.query.values import Array
from tsunagi.query.windows import Stored
from tsunagi.runtime.columns import Floats, pack_sensors
from tsunagi.runtime.messages import Placement, ResultBlock
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi_spark.complete_rows import CompleteRows, no_rows
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.layout import Layout, make_layout
from tsunagi_spark.programs import runs_direct
from tsunagi_spark.query_core import QueryCore
from tsunagi_spark.query_program import QueryProgram

STEP_US = 1_000_000
FIRST = 850_000_000
SENSORS = 6
TABLE = SensorTable(
    tuple(Sensor(n, f"s{n}", "e1", f"g{n % 2}", threshold=0.5, attributes=(f"site-{n % 3}",)) for n in range(SENSORS)),
    ("site",),
)
READINGS = Readings(TABLE, STEP_US)
KINDS = attribute_kinds(TABLE)
TEXT = """
CREATE VIEW n AS SELECT sensor, COUNT(*) AS n, SUM(value) AS total FROM readings [RANGE 7 SECONDS] GROUP BY sensor;
CREATE QUERY shares AS SELECT r.sensor, r.group, r.value / n.total AS share FROM readings r, n
  WHERE r.sensor = n.sensor ORDER WITHIN group;
CREATE QUERY sites AS ISTREAM (SELECT site, STDDEV(value) AS sd, MAX(value) AS top
  FROM readings [RANGE 12 SECONDS SLIDE 4 SECONDS] GROUP BY site HAVING COUNT(*) > 2);
CREATE QUERY lasts AS DSTREAM (SELECT sensor, value FROM readings [ROWS 3] WHERE value > threshold);
"""
MOST = 10**9
FILES: dict[int, bytes] = {}
"""The files of panes, by number, of all tests."""


def program(text: str = TEXT, serial: int = 1) -> QueryProgram:
    return QueryProgram(serial, tuple(definitions_of(text, "test")), KINDS, STEP_US)


def core_of(text: str = TEXT, serial: int = 1) -> QueryCore:
    made = program(text, serial)
    return QueryCore(made, frozenset(plan.name for plan in made.compiled.published))


def advance(core: QueryCore, came: CompleteRows, upto: int) -> list[EncodedBlock]:
    first = int(came.rows["step"][0]) if len(came.rows["step"]) else NEVER
    return list(core.advance(came, first, upto, READINGS))


def rows_of(first: int, last: int, seed: int = 1) -> CompleteRows:
    """Return rows of the steps first <= step < last; a sensor may be missing in a step."""
    chance = random.Random(seed)
    kept = [
        (step, sensor, chance.gauss(0, 1), chance.choice((0, 0, 0, 1)))
        for step in range(200)
        for sensor in range(SENSORS)
        if chance.random() < 0.8
    ]
    some = [row for row in kept if first <= row[0] < last]
    estimated = np.array([row[3] for row in some], dtype=np.uint8)
    rows: dict[str, Array] = {
        "step": np.array([FIRST + row[0] for row in some], dtype=np.int64),
        "sensor": np.array([row[1] for row in some], dtype=np.uint32),
        "mean": np.array([row[2] for row in some]),
        "sd": estimated * 0.5,
        "quality": estimated,
        "bound": estimated * 1.0,
    }
    steps = np.arange(FIRST + first, FIRST + last)
    return CompleteRows(rows, steps, steps * STEP_US + 77)


def again(core: QueryCore, text: str = TEXT, serial: int = 1) -> QueryCore:
    """Go on from the state that the core writes down."""
    made = core_of(text, serial)
    batch = 1 + max(FILES, default=0)
    state, panes = core.dump(batch, MOST)
    FILES[batch] = panes
    made.load(state, Path("state"), lambda where: FILES[where.file][where.offset : where.offset + where.length])
    return made


def sent(blocks: list[EncodedBlock]) -> list[bytes]:
    return [block.value for block in blocks]


def test_what_is_given_does_not_depend_on_batches_or_restarts() -> None:
    whole = sent(advance(core_of(), rows_of(0, 100), FIRST + 99))
    assert len(whole) > 200
    for seed in range(3):
        chance = random.Random(seed)
        core, at = core_of(), 0
        found: list[EncodedBlock] = []
        while at < 100:
            upto = min(100, at + chance.randint(1, 30))
            # Some groups are ahead of the frontier, and their rows wait.
            found += advance(core, rows_of(at, upto), FIRST + max(0, upto - 1 - chance.choice((0, 0, 3))))
            at = upto
            if chance.random() < 0.5:
                core = again(core)
        found += advance(core, no_rows(), FIRST + 99)
        assert sorted(sent(found)) == sorted(whole)  # of one query and group they come in order:
        for query in ("shares", "sites", "lasts"):
            assert [b for b in sent(found) if query.encode() in b] == [b for b in whole if query.encode() in b]


def test_rows_that_come_too_late_are_counted() -> None:
    core = core_of()
    advance(core, rows_of(0, 20), FIRST + 19)
    late = rows_of(10, 15)
    again_core = again(core)
    assert advance(again_core, late, FIRST + 19) == []
    assert {item.late for item in again_core.figures.values()} == {len(late.rows["step"])}
    added = again(again_core, f"{TEXT}; CREATE QUERY more AS SELECT COUNT(*) AS n FROM readings", 2)
    advance(added, rows_of(20, 22), FIRST + 21)
    advance(added, late, FIRST + 21)
    assert added.figures["more"].late == 0, "these are of before it began"
    assert added.figures["lasts"].late == 2 * len(late.rows["step"])


def test_a_query_that_is_the_same_keeps_its_state_when_others_change() -> None:
    whole = advance(core_of(), rows_of(0, 60), FIRST + 59)
    core = core_of()
    found = advance(core, rows_of(0, 30), FIRST + 29)
    changed = TEXT.replace("HAVING COUNT(*) > 2", "HAVING COUNT(*) > 3") + (
        "; CREATE QUERY more AS SELECT COUNT(*) AS n FROM readings [RANGE 5 SECONDS]"
    )
    core = again(core, changed, 2)
    found += advance(core, rows_of(30, 60), FIRST + 59)
    for query in ("shares", "lasts"):
        assert sent([b for b in found if b.query == query]) == sent([b for b in whole if b.query == query])
    defined = [(block.query, block.step) for block in found if not block.rows]
    assert defined[-2:] == [("sites", FIRST + 29), ("more", FIRST + 29)]
    assert {block.step for block in found if block.query == "more" and block.rows} == set(range(FIRST + 30, FIRST + 60))
    gone = again(core, "CREATE QUERY more AS SELECT COUNT(*) AS n FROM readings [RANGE 5 SECONDS]", 3)
    ended = [
        (block.query, ResultBlock.FromString(block.value).definition) for block in advance(gone, no_rows(), FIRST + 59)
    ]
    assert ended == [("lasts", "-"), ("shares", "-"), ("sites", "-")]


def fail_above(values: Floats) -> Floats:
    """Fail as a function of a user may."""
    if (values > 2.0).any():
        raise ZeroDivisionError("a bug of the user")
    return values


def test_a_query_that_fails_stops_with_those_that_read_it_and_no_other() -> None:
    text = f"CREATE FUNCTION broken AS '{__name__}:fail_above';" + TEXT
    text += "; CREATE VIEW bad AS SELECT sensor, broken(value) AS v FROM readings;"
    text += "CREATE QUERY reader AS SELECT b.sensor FROM bad b"
    core = core_of(text)
    found = advance(core, rows_of(0, 60), FIRST + 59)
    assert core.figures["bad"].fault == "ZeroDivisionError: a bug of the user"
    assert core.figures["reader"].fault == "it reads bad, which has stopped"
    core = again(core, text)
    found += advance(core, rows_of(60, 90), FIRST + 89)
    assert core.figures["reader"].fault
    plain = advance(core_of(), rows_of(0, 90), FIRST + 89)
    for query in ("shares", "sites", "lasts"):
        assert sent([b for b in found if b.query == query]) == sent([b for b in plain if b.query == query])


def test_a_query_with_too_much_state_stops() -> None:
    core = core_of()
    advance(core, rows_of(0, 30), FIRST + 29)
    core.dump(1, 2_500)
    stopped = {name for name, item in core.figures.items() if item.fault}
    assert stopped
    assert stopped < core.figures.keys()
    assert all("[query] state_mb" in core.figures[name].fault for name in stopped)
    assert len(again(core).dump(2, MOST)[0]) < 20_000


def test_nothing_is_given_before_the_first_reading() -> None:
    core = core_of()
    assert advance(core, no_rows(), NEVER) == []
    core = again(core)
    first = advance(core, rows_of(5, 6), FIRST + 5)
    assert {block.step for block in first if not block.rows} == {FIRST + 4}


def test_a_long_gap_in_time_is_worked_off_in_pieces() -> None:
    text = "CREATE QUERY c AS ISTREAM (SELECT COUNT(*) AS n FROM readings [RANGE 5 SECONDS])"
    core = core_of(text)
    advance(core, rows_of(0, 5), FIRST + 4)
    later = rows_of(0, 5)
    later.rows["step"][:] += 50_000
    found = advance(core, CompleteRows(later.rows, later.step + 50_000, later.appended_us), FIRST + 50_004)
    assert len(found) <= 12
    assert core.done == FIRST + 50_004


@pytest.mark.parametrize("order", [0, 1])
def test_statements_may_stand_in_any_order(order: int) -> None:
    parts = definitions_of(TEXT, "test")
    found, refused = program_of(parts[::-1] if order else parts, STEP_US, KINDS)
    assert not refused
    assert set(found.queries) == {"n", "shares", "sites", "lasts"}


def test_queries_that_can_be_split_give_the_same_on_several_cores() -> None:
    made = program()
    assert (set(made.split), set(made.whole), set(made.summed)) == ({"shares"}, {"lasts"}, {"sites"})
    rows = rows_of(0, 60)
    whole = [block for block in advance(core_of(), rows, FIRST + 59) if block.query == "shares"]
    found: list[EncodedBlock] = []
    for core in range(2):
        part = rows.some(rows.rows["sensor"] % 2 == core)  # the groups are g0 and g1
        found += advance(QueryCore(made, made.split, tells=core == 0), part, FIRST + 59)
    assert sorted(block.value for block in found) == sorted(block.value for block in whole)


def test_what_is_written_for_a_batch_does_not_grow_with_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panes of whole blocks are written once, and their files are let go when no window needs them."""
    monkeypatch.setattr("tsunagi.query.windows._CELLS", 60)  # as if there were thousands of keys: blocks of ten panes
    text = "CREATE QUERY long AS SELECT sensor, SUM(value) AS total FROM readings [RANGE 100 SECONDS] GROUP BY sensor"
    core, states, panes = core_of(text), [], []
    for batch in range(100):
        advance(core, rows_of(2 * batch, 2 * batch + 2), FIRST + 2 * batch + 1)
        state, written = core.dump(batch, MOST)
        states.append(len(state))
        panes.append(len(written))
        core.panes.forget(batch - 4)
    assert max(states[50:]) < 1.5 * max(states[10:20])
    assert sum(size > 0 for size in panes) < 50
    assert len(core.panes.needed) * 10 < 120
    assert core.figures["long"].state_bytes > 2 * max(states)


def test_a_core_that_knows_an_earlier_batch_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's two Python workers take turns with a core: each is a batch behind when its turn comes."""
    monkeypatch.setattr("tsunagi.query.windows._CELLS", 60)
    text = """CREATE QUERY long AS SELECT sensor, SUM(value) AS total, COUNT(DISTINCT value) AS n, MAX(value) AS top
      FROM readings [RANGE 100 SECONDS] GROUP BY sensor"""
    files: dict[int, bytes] = {}
    states: list[bytes] = []
    read: list[int] = []

    def get(where: Stored) -> bytes:
        read.append(where.file)
        return files[where.file][where.offset : where.offset + where.length]

    def loaded(batch: int, like: QueryCore | None) -> QueryCore:
        found = core_of(text)
        found.load(states[batch], Path("state"), get, like)
        return found

    alone = core_of(text)
    taking_turns: list[QueryCore | None] = [None, None]
    counts = []
    for batch in range(90):
        core = loaded(batch - 1, taking_turns[batch % 2]) if batch else core_of(text)
        counts.append(len(read))
        came = rows_of(2 * batch, 2 * batch + 2)
        given = sent(advance(core, came, FIRST + 2 * batch + 1))
        assert given == sent(advance(alone, came, FIRST + 2 * batch + 1))
        state, files[batch] = core.dump(batch, MOST)
        assert core.figures["long"].fault == ""
        states.append(state)
        taking_turns[batch % 2] = core
    later = np.diff(counts)[30:]
    assert 0 < later.max() <= 2 * 2, "of each of two windows, the blocks of a batch or two"
    read.clear()
    loaded(80, None)
    assert len(read) > 12


def test_queries_run_on_the_p_sort_cores_only_where_nothing_has_to_move() -> None:
    shares = program(TEXT.split("CREATE QUERY sites", maxsplit=1)[0])
    layout = layout_of(cores=2)
    places = tuple(layout.holds.argmax(axis=1).tolist())
    there = replace(shares, places=places)
    assert runs_direct(there, None, layout)
    assert not runs_direct(None, None, layout)
    assert not runs_direct(replace(program(), places=places), None, layout), "some need all rows"
    assert not runs_direct(there, program(), layout), "some that needed all rows have to be ended"
    moved = replace(layout, sensor_core=1 - layout.sensor_core)
    assert not runs_direct(there, None, moved)
    cut = replace(layout, sensor_core=np.arange(len(layout)) // 2 % 2, order="optimised")
    assert not runs_direct(there, None, cut)
    assert there.places_in(layout).tolist() == list(places)
    assert replace(shares, places=places[:1]).places_in(layout).tolist() == [places[0], layout.home[1]]


def layout_of(cores: int) -> Layout:
    placement = Placement(serial=1, slots=1, slot=pack_sensors([0] * SENSORS))
    return make_layout(TABLE, placement, cores, "none")
