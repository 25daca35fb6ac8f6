"""Queries that are computed apart by an OPK give what one core gives that has all rows."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.spark import test_events as of_events
from tests.unit.spark.test_query_core import FIRST, READINGS, STEP_US, layout_of, program, rows_of
from tests.unit.spark.test_query_task import checkpoint, without_kafka
from tsunagi.query.encoding import EncodedBlock
from tsunagi.runtime.messages import ResultBlock
from tsunagi_spark import query_task
from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.merge import Ordered
from tsunagi_spark.programs import opks_of, runs_direct
from tsunagi_spark.queries import QueryAnswers
from tsunagi_spark.query_core import QueryCore, partition_of
from tsunagi_spark.query_program import QueryProgram
from tsunagi_spark.query_task import parts_of, run_queries, state_files
from tsunagi_spark.task_context import BatchContext

TEXT = """
CREATE STREAM bids (lot TEXT, price DOUBLE, paid BOOLEAN);
CREATE STREAM lots (lot TEXT, seller TEXT);
CREATE VIEW tops AS SELECT lot, MAX(price) AS top, COUNT(*) AS n FROM bids [RANGE 5 SECONDS] GROUP BY lot;
CREATE QUERY top AS SELECT lot, top, n FROM tops WHERE n > 1 ORDER WITHIN lot;
CREATE QUERY sold AS ISTREAM (SELECT b.lot, l.seller, b.price FROM bids b [RANGE 4 SECONDS], lots l [RANGE 9 SECONDS]
  WHERE b.lot = l.lot AND b.paid) ORDER WITHIN lot;
CREATE QUERY sites AS SELECT site, AVG(value) AS mean, COUNT(*) AS n FROM readings [RANGE 6 SECONDS SLIDE 2 SECONDS]
  GROUP BY site ORDER WITHIN site;
CREATE QUERY lasts AS DSTREAM (SELECT site, sensor, value FROM readings [ROWS 3]) ORDER WITHIN site;
CREATE QUERY beside AS SELECT r.site, b.lot, r.value FROM readings r, bids b WHERE r.site = b.lot ORDER WITHIN site;
CREATE QUERY groups AS SELECT group, SUM(value) AS total FROM readings [RANGE 3 SECONDS]
  GROUP BY group ORDER WITHIN group;
CREATE QUERY all AS SELECT COUNT(DISTINCT lot) AS n FROM bids [RANGE 3 SECONDS];
"""
MORE = "; CREATE QUERY more AS SELECT lot, COUNT(*) AS n FROM lots [RANGE 7 SECONDS] GROUP BY lot ORDER WITHIN lot"
CORES = 2


def log_of(steps: int) -> of_events.Log:
    """Return events, some of whose lots are called as sites are."""
    log = of_events.log_of(steps)
    for _, _, message in log:
        for column in message.column:
            if column.name == "lot":
                column.text[:] = [text.replace("lot-4", "site-1").replace("lot-5", "site-2") for text in column.text]
    return log


def test_which_queries_have_an_opk() -> None:
    made = program(TEXT)
    found = {name: str(opk) for opk, names in made.apart.items() for name in names}
    assert found == {
        "top": "bids.lot",
        "sold": "bids.lot, lots.lot",
        "sites": "readings.site",
        "lasts": "readings.site",
        "beside": "bids.lot, readings.site",
    }
    assert made.split == {"groups"}
    assert made.whole == {"all"}
    assert not runs_direct(made, None, layout_of(CORES))


@pytest.mark.parametrize(
    ("text", "opk"),
    [
        ("SELECT site, value FROM readings ORDER WITHIN site", "readings.site"),
        ("SELECT site, value FROM readings", None),
        ("SELECT value, site FROM readings ORDER WITHIN value", None),
        ("SELECT quality, value FROM readings ORDER WITHIN quality", None),
        ("SELECT UPPER(site) AS site FROM readings ORDER WITHIN site", None),
        ("SELECT site, role, COUNT(*) AS n FROM readings GROUP BY site, role ORDER WITHIN site, role", "readings.site"),
        ("SELECT role, COUNT(*) AS n FROM readings GROUP BY site, role ORDER WITHIN role", "readings.role"),
        ("SELECT site, COUNT(*) AS n FROM readings [RANGE UNBOUNDED] GROUP BY site ORDER WITHIN site", "readings.site"),
        ("SELECT a.site FROM readings a, readings b WHERE a.site = b.site ORDER WITHIN site", "readings.site"),
        ("SELECT a.site FROM readings a, readings b WHERE a.site = b.role ORDER WITHIN site", None),
        ("SELECT a.site FROM readings a, readings b WHERE a.value = b.value ORDER WITHIN site", None),
        ("SELECT a.site FROM readings a, v WHERE a.site = v.site ORDER WITHIN site", "readings.site"),
        ("SELECT v.site FROM readings a, v WHERE a.site = v.site ORDER WITHIN site", "readings.site"),
        ("SELECT a.site FROM readings a LEFT JOIN v ON a.site = v.site ORDER WITHIN site", "readings.site"),
        ("SELECT v.site FROM readings a LEFT JOIN v ON a.site = v.site ORDER WITHIN site", None),
        ("SELECT a.site FROM readings a, v, doors d WHERE a.site = v.site AND v.site = d.by ORDER WITHIN site", "both"),
        ("SELECT d.site FROM doors d ORDER WITHIN site", "doors.site"),
        ("SELECT d.site FROM doors [ROWS 3] d ORDER WITHIN site", "doors.site"),
        ("SELECT d.by FROM doors [ROWS 3] d ORDER WITHIN by", None),
        ("SELECT d.by FROM doors [PARTITION BY by, door ROWS 3] d ORDER WITHIN by", "doors.by"),
        ("SELECT d.number FROM doors d ORDER WITHIN number", "doors.number"),
        ("SELECT d.number FROM doors d, readings r WHERE d.number = r.role ORDER WITHIN number", "error"),
    ],
)
def test_the_opk_is_what_a_column_of_order_within_comes_from(text: str, opk: str | None) -> None:
    base = (
        "CREATE STREAM doors (door TEXT KEY, by TEXT, number BIGINT); "
        "CREATE VIEW v AS SELECT site, COUNT(*) AS n FROM readings [RANGE 5 SECONDS] GROUP BY site; CREATE QUERY q AS "
    )
    kinds = {"site": program().kinds["site"], "role": program().kinds["site"]}
    made = QueryProgram(1, program(base + text).definitions, kinds, STEP_US)
    if opk == "error":
        assert "q" not in made.compiled.queries
        return
    found = {name: str(key) for key, names in made.apart.items() for name in names}.get("q")
    assert found == ("doors.by, readings.site" if opk == "both" else opk)


def test_every_process_finds_the_same_opk() -> None:
    """The driver and Spark's workers find it each for itself, and a set of texts has another order in each of them."""
    code = (
        "from tests.unit.spark.test_query_core import program; "
        "text = 'CREATE QUERY q AS SELECT a.site FROM readings a, readings b WHERE a.site = b.site AND a.site = b.role "
        "AND b.role = a.role AND a.edge = a.site ORDER WITHIN site'; "
        "from tests.unit.spark.test_query_core import KINDS; "
        "from dataclasses import replace; "
        "made = replace(program(text), kinds={**KINDS, 'role': KINDS['site']}); "
        "print(sorted(map(str, made.apart)), sorted(made.compiled.queries))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(6)
    }
    assert found == {b"['readings.role'] ['q']\n"}


def ordered_of(first: int, last: int, core: int) -> Ordered:
    """Return what a P-SORT core has complete: the groups are g0 and g1."""
    came = rows_of(first, last)
    came = came.some(came.rows["sensor"] % 2 == core)
    rows: dict[str, Any] = dict(came.rows)
    whole = np.zeros(0, dtype=np.int64)
    counted = QueryAnswers(whole, whole, np.zeros(0))
    return Ordered(came.step * 0, came.step, came.appended_us, came.step * 0, RecoveredRows(**rows), counted)


@pytest.mark.parametrize("seed", range(3))
def test_apart_and_on_one_core_they_give_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, sent = 60, without_kafka(monkeypatch, layout_of(CORES))
    programs = {1: program(TEXT, 1), 2: program(TEXT + MORE, 2), 3: program(TEXT, 3)}
    store, job = checkpoint(tmp_path, programs, CORES)
    log = log_of(steps)
    chance = random.Random(seed)
    at, batch, before = 0, 0, 0
    while at < steps:
        upto = min(steps, at + chance.randint(1, 9))
        serial = 1 if at < 20 else 2 if at < 45 else 3
        now, earlier = programs[serial], programs.get(before)
        context = BatchContext(
            *("query", batch, 1, 1, {}, (NEVER, NEVER) if at == 0 else (FIRST + at - 1,) * 2, frozenset(), frozenset()),
            program=serial,
            program_before=before,
            split=True,
            whole=True,
            opks=opks_of(now, earlier),
        )
        came = of_events.blocks_of([item for item in log if FIRST + at <= item[2].step < FIRST + upto])
        events = [data for data in came if data]
        handed = [
            list(parts_of(job, context, ordered_of(at, upto, core), FIRST + upto - 1, events if core else []))
            for core in range(CORES)
        ]
        for number in range(CORES):
            reports = list(run_queries(job, context, number, [parts[number] for parts in handed]))
            assert not [item["fault"] for report in reports for item in report["queries"].values() if item["fault"]]
        if chance.random() < 0.4:
            query_task._kept.clear()
        assert all((store.root / name).exists() for name in state_files(now, batch, CORES))
        at, batch, before = upto, batch + 1, serial

    whole = QueryCore(programs[1], frozenset(plan.name for plan in programs[1].compiled.published))
    rows = rows_of(0, steps)
    given = list(whole.advance(rows, int(rows.rows["step"][0]), FIRST + steps - 1, READINGS, of_events.blocks_of(log)))
    assert {block.query for block in given} == {"top", "sold", "sites", "lasts", "beside", "groups", "all"}

    def told(block: EncodedBlock) -> tuple[int, bytes, bytes]:
        return partition_of(block.query, block.group, CORES), block.key, block.value

    of_more = [value for _, key, value in sent.records if key.startswith(b"more/")]
    assert len([value for value in of_more if ResultBlock.FromString(value).definition]) == 2, "it begins, and it ends"
    assert len(of_more) > 20
    others = [item for item in sent.records if not item[1].startswith(b"more/")]
    assert sorted(others) == sorted(map(told, given))
