"""Queries whose rows are added up before the shuffle give what one core gives that has all rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.spark import test_events as of_events
from tests.unit.spark.test_opk import CORES, log_of, ordered_of
from tests.unit.spark.test_query_core import FIRST, READINGS, layout_of, program, rows_of
from tests.unit.spark.test_query_task import checkpoint, without_kafka
from tsunagi.query.encoding import EncodedBlock
from tsunagi.runtime.messages import ResultBlock
from tsunagi_spark import query_task
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.programs import runs_direct, sums_up
from tsunagi_spark.query_core import QueryCore, partition_of
from tsunagi_spark.query_program import QueryProgram
from tsunagi_spark.query_task import parts_of, run_queries, state_files
from tsunagi_spark.summed_rows import SummedRows
from tsunagi_spark.task_context import BatchContext

STREAMS = """
CREATE STREAM bids (lot TEXT, price DOUBLE, paid BOOLEAN);
CREATE STREAM lots (lot TEXT, seller TEXT);
"""
TEXT = (
    STREAMS
    + """
CREATE QUERY sites AS SELECT site, AVG(value) AS mean, STDDEV(value) AS sd, MIN(value) AS least, MAX(value) AS top,
  COUNT(*) FILTER (WHERE value > threshold) AS high FROM readings [RANGE 6 SECONDS SLIDE 2 SECONDS] GROUP BY site;
CREATE QUERY all AS SELECT COUNT(*) AS n, SUM(value) AS total FROM readings;
CREATE QUERY now AS ISTREAM (SELECT site, unit, SUM(value) AS total FROM readings [NOW] WHERE value > -1
  GROUP BY site, unit);
CREATE VIEW counts AS SELECT site, COUNT(*) AS n FROM readings [RANGE 9 SECONDS] WHERE value > 0 GROUP BY site;
CREATE QUERY shares AS SELECT c.site, c.n, p.paid FROM counts c, paid p WHERE c.n > p.paid;
CREATE VIEW paid AS SELECT COUNT(*) FILTER (WHERE paid) AS paid FROM bids [RANGE 3 SECONDS];
CREATE QUERY bids_a_step AS SELECT COUNT(price) AS n, MAX(price) AS top FROM bids [RANGE 5 SECONDS SLIDE 5 SECONDS];
"""
)
MORE = """; CREATE QUERY more AS
  SELECT site, SUM(value) AS total, COUNT(*) AS n FROM readings [RANGE 7 SECONDS] GROUP BY site"""
SUMMED = {"sites", "all", "now", "shares", "bids_a_step"}


def query_of(text: str) -> QueryProgram:
    made = program(f"{STREAMS}; CREATE VIEW v AS SELECT site, COUNT(*) AS n FROM readings GROUP BY site; {text}")
    assert "q" in made.compiled.queries, text
    return made


@pytest.mark.parametrize(
    ("text", "summed"),
    [
        ("SELECT site, AVG(value) AS x FROM readings [RANGE 5 SECONDS] GROUP BY site", True),
        ("SELECT AVG(value) AS x FROM readings [RANGE 5 SECONDS]", True),
        ("SELECT COUNT(sensor) AS x FROM readings [NOW]", True),
        ("SELECT v.n FROM v WHERE v.n > 1", True),
        ("SELECT a.n FROM v a, v b WHERE a.site = b.site", True),
        ("SELECT sensor, AVG(value) AS x FROM readings [RANGE 5 SECONDS] GROUP BY sensor", False),
        ("SELECT quality, COUNT(*) AS x FROM readings [RANGE 5 SECONDS] GROUP BY quality", False),
        ("SELECT UPPER(site) AS s, COUNT(*) AS x FROM readings [RANGE 5 SECONDS] GROUP BY UPPER(site)", False),
        ("SELECT site, LAST(value) AS x FROM readings [RANGE 5 SECONDS] GROUP BY site", False),
        ("SELECT site, MAX(sensor) AS x FROM readings [RANGE 5 SECONDS] GROUP BY site", False),
        ("SELECT site, COUNT(DISTINCT sensor) AS x FROM readings [RANGE 5 SECONDS] GROUP BY site", False),
        ("SELECT site, APPROX_QUANTILE(value, 0.5) AS x FROM readings [RANGE 5 SECONDS] GROUP BY site", False),
        ("SELECT site, AVG(value) AS x FROM readings [RANGE UNBOUNDED] GROUP BY site", False),
        ("SELECT site, AVG(value) AS x FROM readings [ROWS 5] GROUP BY site", False),
        ("SELECT r.sensor, v.n FROM readings r, v WHERE r.site = v.site", False),
        ("SELECT site, AVG(value) AS x FROM readings [RANGE 5 SECONDS] GROUP BY site ORDER WITHIN site", False),
        ("SELECT lot, COUNT(*) AS n FROM bids [RANGE 5 SECONDS] GROUP BY lot", False),
        ("SELECT COUNT(*) AS n FROM bids [RANGE 5 SECONDS]", True),
    ],
)
def test_rows_are_added_up_where_there_are_fewer_groups_than_sensors(text: str, summed: bool) -> None:
    made = query_of(f"CREATE QUERY q AS {text}")
    assert ("q" in made.summed, "q" in made.whole) == (summed, not summed and "ORDER" not in text)


def test_nothing_runs_on_the_p_sort_cores_alone_where_sums_have_to_move() -> None:
    made = program(TEXT)
    assert made.summed == SUMMED
    assert not made.whole
    assert not runs_direct(made, None, layout_of(CORES))
    assert sums_up(None, made)
    assert not sums_up(made := query_of("CREATE QUERY q AS SELECT sensor FROM readings ORDER WITHIN sensor"), made)


def test_a_program_of_an_earlier_version_goes_on_as_it_was() -> None:
    made = QueryProgram.load(program(TEXT).dump().replace(b'"by_sums": true', b'"by_sum": true'))
    assert (set(made.summed), set(made.whole)) == (set(), SUMMED)


@pytest.mark.parametrize("seed", range(8))
def test_added_up_and_on_one_core_they_give_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cores are complete up to different steps; one query comes and goes; state is read anew at any batch."""
    steps, sent = 60, without_kafka(monkeypatch, layout_of(CORES))
    programs = {1: program(TEXT, 1), 2: program(TEXT + MORE, 2), 3: program(TEXT, 3)}
    store, job = checkpoint(tmp_path, programs, CORES)
    log = log_of(steps)
    chance = random.Random(seed)
    at, batch, before = [0] * CORES, 0, 0
    while min(at) < steps:
        serial = 1 if min(at) < 20 else 2 if min(at) < 45 else 3
        upto = [min(steps, max(place, min(at) + chance.randint(0, 9))) for place in at]
        context = BatchContext(
            *("query", batch, 1, 1, {}, tuple(FIRST + place - 1 if place else NEVER for place in at)),
            *(frozenset(), frozenset()),
            program=serial,
            program_before=before,
            sums=sums_up(programs[serial], programs.get(before)),
        )
        came = of_events.blocks_of([item for item in log if FIRST + at[1] <= item[2].step < FIRST + upto[1]])
        events = [data for data in came if data]
        handed = [
            list(parts_of(job, context, ordered_of(*ends, core), FIRST + min(upto) - 1, events if core else []))
            for core, ends in enumerate(zip(at, upto, strict=True))
        ]
        for number in range(CORES):
            reports = list(run_queries(job, context, number, [parts[number] for parts in handed]))
            queries = [item for report in reports for item in report["queries"].values()]
            assert not any(item["fault"] or item["late"] for item in queries)
        if chance.random() < 0.4:
            query_task._kept.clear()
        assert all((store.root / name).exists() for name in state_files(programs[serial], batch, CORES))
        at, batch, before = upto, batch + 1, serial

    def told(block: EncodedBlock) -> tuple[int, bytes, bytes]:
        return partition_of(block.query, block.group, CORES), block.key, block.value

    whole = QueryCore(programs[1], frozenset(plan.name for plan in programs[1].compiled.published))
    rows = rows_of(0, steps)
    given = list(whole.advance(rows, int(rows.rows["step"][0]), FIRST + steps - 1, READINGS, of_events.blocks_of(log)))
    assert {block.query for block in given} == SUMMED
    others = [item for item in sent.records if not item[1].startswith(b"more/")]
    assert sorted(others) == sorted(map(told, given))

    of_more = [ResultBlock.FromString(value) for _, key, value in sent.records if key.startswith(b"more/")]
    began, ended = (block for block in of_more if block.definition)
    text = MORE.removeprefix("; ")
    alone = QueryCore(program(text, 1), frozenset({"more"}), begin=began.step + 1)
    expected = [
        block for block in alone.advance(rows, int(rows.rows["step"][0]), ended.step, READINGS) if block.appended_us
    ]
    found = [item for item in sent.records if item[1].startswith(b"more/")]
    found = [item for item, block in zip(found, of_more, strict=True) if not block.definition]
    assert len(expected) > 15
    assert sorted(found) == sorted(map(told, expected))


def test_what_comes_too_late_is_counted() -> None:
    """A slot that was left behind comes back: its rows stand in the results as readings alone."""
    made = program(TEXT)
    core = QueryCore(made, made.summed, summed=True)
    core.know(NEVER)

    def given(first: int, last: int, upto: int) -> list[EncodedBlock]:
        rows = rows_of(first, last)
        sums = SummedRows.added_up(rows, [], made, READINGS)
        return list(core.advance(rows.without_rows(), FIRST + first, FIRST + upto, READINGS, (), [sums]))

    assert given(0, 10, 9)
    late = len(rows_of(4, 8).rows["step"])
    given(4, 8, 9)
    assert {figures.late for figures in core.figures.values()} == {late}
