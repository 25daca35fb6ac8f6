"""Fifty queries in CQL over a whole system, while an owner, a secondary, an edge and the Spark driver are killed."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.stream import STEPS, Inputs
from tests.e2e.system import Rig
from tests.spark.answers import Truth, plain
from tsunagi.broker.broker import Broker
from tsunagi.local.queries import add_queries, drop_query, list_queries
from tsunagi.query.results import QueryResults
from tsunagi.runtime.results import Block, ResultsReader
from tsunagi.runtime.sensors import read_sensors

RANGES = ("[NOW]", "[RANGE 2 SECONDS]", "[RANGE 2.4 SECONDS SLIDE 0.8 SECONDS]")
GROUPED = ("COUNT(*) AS n", "SUM(value) AS total", "AVG(value) AS mean, MAX(value) AS top", "STDDEV(value) AS sd")
KEYS = ("sensor", "group", "edge")
ADDED = (
    "CREATE QUERY added AS SELECT edge, COUNT(*) AS n FROM readings [RANGE UNBOUNDED] GROUP BY edge ORDER WITHIN edge"
)


FILLED = "CREATE QUERY filled AS SELECT group, SUM(value) AS total FROM readings [RANGE 2 SECONDS] GROUP BY group"


def fifty() -> Iterator[str]:
    """Yield the statements of fifty queries: grouped by several keys, changes alone, joins, last rows."""
    number = itertools.count()
    for window, measures, key in itertools.product(RANGES, GROUPED, KEYS):
        select = f"SELECT {key}, {measures} FROM readings {window} GROUP BY {key}"
        yield f"CREATE QUERY q{next(number)} AS {select} ORDER WITHIN {key}"
    for window, key in itertools.product(RANGES, KEYS):
        select = (
            f"SELECT {key}, COUNT(*) AS n FROM readings {window} WHERE value > 50 GROUP BY {key} HAVING COUNT(*) > 1"
        )
        yield f"CREATE QUERY q{next(number)} AS ISTREAM ({select})"
    yield f"CREATE VIEW n AS SELECT sensor, COUNT(*) AS n FROM readings {RANGES[1]} GROUP BY sensor"
    for where in ("r.value > 50", "n.n < 10", "r.quality <> 'exact'"):
        select = f"SELECT r.sensor, r.value, n.n FROM readings r, n WHERE r.sensor = n.sensor AND {where}"
        yield f"CREATE QUERY q{next(number)} AS {select} ORDER WITHIN sensor"
    for rows in (1, 3):
        yield f"CREATE QUERY q{next(number)} AS DSTREAM (SELECT sensor, value FROM readings [ROWS {rows}])"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, broker: Broker, inputs: Inputs) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("queries")
    written = directory / "fifty.sql"
    written.write_text(";\n".join(fifty()), encoding="utf-8")
    changes = {"query": {"files": [str(written)]}}
    found = Rig(directory, inputs, servers=broker.servers, prefix="fifty.", changes=changes)
    try:
        found.start()
        yield found
    finally:
        found.close()


def test_no_row_of_fifty_queries_is_lost_or_doubled_whoever_dies(rig: Rig) -> None:
    rig.wait_protected()
    rig.kill_owner(0)
    rig.advance()
    add_queries(rig.settings, [ADDED], lambda _line: None)
    add_queries(rig.settings, [FILLED], lambda _line: None, "1h")  # as if it had been there from the beginning
    rig.wait_protected()
    rig.signal(rig.fleet.standby_ready(1), signal.SIGKILL)
    edge = rig.inputs.table.edges[0]
    rig.kill_edge(edge)
    rig.advance()
    rig.kill_spark()
    rig.start_spark()
    rig.edge_back(edge)
    rig.wait_filled("filled")
    drop_query(rig.settings, "added", lambda _line: None)
    with QueryResults(rig.log, rig.settings, ("added",)) as reader:
        rig.wait(
            lambda: any(block.definition == "-" for block in reader.blocks()), "the end of the query that was dropped"
        )
    rig.advance()
    # Up to the frontier of a batch that has ended all is out; the batch that runs may be half sent, and long.
    last = next(beat.message.spark.frontier for beat in rig.fleet.beats.values() if beat.message.role == "spark")
    answers = rig.answers()
    blocks = readings_of(rig)
    truth = Truth.of_blocks(blocks, read_sensors(rig.settings.sensors), STEPS.slide_us)
    listed = list_queries(rig.settings)
    assert [item for item in listed if item["fault"] or item["late"]] == []
    rig.kill_all()

    text = ";".join((*fifty(), FILLED))
    names = sorted({block.query for block in answers if block.definition} - {"added"})
    assert len(names) == 51
    assert len({block.step for block in answers if block.definition and block.query in ("q0", "filled")}) == 1
    found = {name: [row for block in answers if block.query == name for row in block.rows] for name in names}
    wrong, silent = [], []
    for name in names:
        (since,) = (block.step for block in answers if block.query == name and block.definition)
        wanted = truth.answers(text, name, since, last)
        rows = [plain(row) for row in found[name] if row.step <= last]
        if sorted(map(repr, rows)) != sorted(map(repr, wanted)):
            lost = Counter(row[0] for row in wanted) - Counter(row[0] for row in rows)
            more = Counter(row[0] for row in rows) - Counter(row[0] for row in wanted)
            wrong.append(f"{name} since {since} to {last}: rows lost {dict(lost)}, rows more {dict(more)}")
        orders: dict[str, int] = {}
        for row in found[name]:
            assert row.step >= orders.get(row.group, 0), f"{name}: out of order within {row.group!r}"
            orders[row.group] = row.step
        if not rows:
            silent.append(name)
    assert wrong == [], "\n".join(wrong[:3])
    assert len(silent) < 5, f"queries without a row prove nothing: {silent}"
    begun, ended = (next(block.step for block in answers if block.definition == word) for word in (ADDED, "-"))
    added = [plain(row) for block in answers if block.query == "added" for row in block.rows]
    assert added
    assert sorted(added) == sorted(truth.answers(ADDED, "added", begun, ended))


def readings_of(rig: Rig) -> list[Block]:
    """Return the readings as a reader sees them, without repeats."""
    with ResultsReader(rig.log, rig.settings) as results:
        return list(results.blocks())
