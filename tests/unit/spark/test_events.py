"""Events in a query core: each is in the step of its time, whatever the cut into batches, restarts and slots."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.unit.spark.test_query_core import FIRST, KINDS, MOST, READINGS, STEP_US, rows_of
from tests.unit.spark.test_query_core import advance as advance_readings
from tsunagi.query.definitions import Definition, definitions_of, fingerprints, program_of
from tsunagi.query.encoding import EncodedBlock
from tsunagi.query.errors import QueryError
from tsunagi.query.events import event_streams
from tsunagi.query.form import table_columns
from tsunagi.query.typed import rows_of as typed_rows
from tsunagi.query.values import Kind
from tsunagi.runtime.messages import Recovered, ResultBlock
from tsunagi_spark.complete_rows import CompleteRows, no_rows
from tsunagi_spark.events import Events, packed
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.query_core import QueryCore
from tsunagi_spark.query_program import QueryProgram

TEXT = """
CREATE STREAM bids (lot TEXT, price DOUBLE, paid BOOLEAN);
CREATE STREAM lots (lot TEXT, seller TEXT);
CREATE QUERY tops AS SELECT lot, MAX(price) AS top, COUNT(*) AS n, LAST(price) AS last
  FROM bids [RANGE 5 SECONDS] GROUP BY lot;
CREATE QUERY sold AS ISTREAM (SELECT b.lot, l.seller, b.price FROM bids b [RANGE 4 SECONDS], lots l [RANGE 9 SECONDS]
  WHERE b.lot = l.lot AND b.paid);
CREATE QUERY lasts AS SELECT lot, price FROM bids [PARTITION BY lot ROWS 2 SLIDE 2];
CREATE QUERY beside AS SELECT b.lot, r.sensor, r.value, b.price FROM bids b, readings r WHERE r.value > b.price;
"""
BIDS = {"time": Kind.TIMESTAMP, "lot": Kind.TEXT, "price": Kind.DOUBLE, "paid": Kind.BOOLEAN}
LOTS = {"time": Kind.TIMESTAMP, "lot": Kind.TEXT, "seller": Kind.TEXT}
SLOTS = 3


def core_of(text: str = TEXT, serial: int = 1) -> QueryCore:
    program = QueryProgram(serial, tuple(definitions_of(text, "test")), KINDS, STEP_US)
    assert not program_of(program.definitions, STEP_US, KINDS)[1]
    return QueryCore(program, frozenset(plan.name for plan in program.compiled.published))


def again(core: QueryCore, files: dict[int, bytes], text: str = TEXT, serial: int = 1) -> QueryCore:
    made, batch = core_of(text, serial), 1 + max(files, default=0)
    state, files[batch] = core.dump(batch, MOST)
    made.load(state, Path("state"), lambda at: files[at.file][at.offset : at.offset + at.length])
    return made


Log = list[tuple[int, str, Recovered]]
"""(slot, stream, events of one step) in the order in which slots pass them on."""


def log_of(steps: int, seed: int = 1) -> Log:
    """Return events of each slot and step; several of them have the same time."""
    chance = random.Random(seed)
    found: Log = []
    for step in range(FIRST, FIRST + steps):
        for slot in range(SLOTS):
            times = sorted(step * STEP_US - chance.choice((0, 0, 5, 7)) for _ in range(chance.randint(0, 4)))
            bids = [
                {
                    "time": time,
                    "lot": f"lot-{chance.randint(1, 5)}",
                    "price": chance.choice((None, chance.randint(-8, 8) / 4)),
                    "paid": chance.random() < 0.5,
                }
                for time in times
            ]
            lots = [{"time": time, "lot": f"lot-{chance.randint(1, 5)}", "seller": None} for time in times[:1]]
            for stream, cells, kinds in (("bids", bids, BIDS), ("lots", lots, LOTS)):
                if cells:
                    columns = table_columns(cells, kinds)
                    found.append((slot, stream, Recovered(query=stream, step=step, rows=len(cells), column=columns)))
    return found


def blocks_of(log: Log) -> list[bytes]:
    """Return what the decoders of slots make of a part of the log."""
    return [
        packed(slot, [(stream, typed_rows(message)) for at, stream, message in log if at == slot])
        for slot in range(SLOTS)
    ]


def advance(core: QueryCore, came: CompleteRows, log: Log, upto: int) -> list[EncodedBlock]:
    first = int(came.rows["step"][0]) if len(came.rows["step"]) else NEVER
    return list(core.advance(came, first, upto, READINGS, [data for data in blocks_of(log) if data]))


def test_what_is_given_does_not_depend_on_batches_restarts_or_which_slot_is_ahead() -> None:
    steps = 60
    log = log_of(steps)
    whole = advance(core_of(), rows_of(0, steps), log, FIRST + steps - 1)
    wanted = sorted(block.value for block in whole)
    assert {block.query for block in whole} == {"tops", "sold", "lasts", "beside"}
    for seed in range(4):
        chance = random.Random(seed)
        core, at, found = core_of(), 0, []
        files: dict[int, bytes] = {}
        ahead = dict.fromkeys(range(SLOTS), 0)
        while at < steps:
            upto = min(steps, at + chance.randint(1, 12))
            reach = {slot: max(ahead[slot], min(steps, upto + chance.choice((0, 0, 2, 9)))) for slot in ahead}
            came = [item for item in log if FIRST + ahead[item[0]] <= item[2].step < FIRST + reach[item[0]]]
            ahead = reach
            found += advance(core, rows_of(at, upto), came, FIRST + upto - 1)
            at = upto
            if chance.random() < 0.5:
                core = again(core, files)
        assert sorted(block.value for block in found) == wanted
        assert len(core.events) == 0


def test_a_fleet_without_a_reading_has_steps_all_the_same() -> None:
    log = log_of(30)
    core = core_of(TEXT[: TEXT.index("CREATE QUERY beside")])
    found = advance(core, no_rows(), log, FIRST + 29)
    assert core.done == FIRST + 29
    assert min(block.step for block in found if not ResultBlock.FromString(block.value).definition) == min(
        message.step for _, stream, message in log if stream == "bids"
    )


def test_events_that_come_too_late_are_counted() -> None:
    log = log_of(30)
    core = core_of()
    advance(core, rows_of(0, 20), [item for item in log if item[2].step < FIRST + 20], FIRST + 19)
    late = [item for item in log if FIRST + 10 <= item[2].step < FIRST + 12]
    assert advance(core, no_rows(), late, FIRST + 19) == []
    assert {item.late for item in core.figures.values()} == {sum(message.rows for *_, message in late)}


def test_columns_that_an_edge_does_not_know_are_null_and_unknown_streams_are_passed_over() -> None:
    core = core_of()
    old = Recovered(
        query="bids",
        step=FIRST,
        rows=1,
        column=table_columns([{"time": FIRST * STEP_US, "lot": "a", "price": 2}], {**LOTS, "price": Kind.BIGINT}),
    )
    strange = Recovered(query="strange", step=FIRST, rows=1, column=old.column)
    came = [(0, "bids", old), (0, "strange", strange)]
    found = advance(core, rows_of(0, 1), came, FIRST)
    (block,) = (ResultBlock.FromString(item.value) for item in found if item.query == "tops" and item.rows)
    values = {column.name: column for column in block.column}
    assert values["lot"].text == ["a"]
    assert values["top"].valid == b"\0", "a column of another type is NULL"
    assert np.frombuffer(values["n"].value, "<i8").tolist() == [1]


def test_a_stream_more_changes_no_query_that_does_not_read_it() -> None:
    """A query keeps its state as long as its digest is the same."""
    plain = "CREATE QUERY n AS SELECT sensor, COUNT(*) AS n FROM readings [RANGE 5 SECONDS] GROUP BY sensor"

    def digests(text: str) -> dict[str, str]:
        return fingerprints(program_of(definitions_of(text, "test"), STEP_US, KINDS)[0])

    assert digests(plain)["n"] == digests(f"{TEXT}; {plain}")["n"]
    more = TEXT.replace("seller TEXT", "seller TEXT, town TEXT")
    assert digests(TEXT)["tops"] == digests(more)["tops"]
    assert digests(TEXT)["sold"] != digests(more)["sold"]


def test_a_core_without_events_writes_the_state_that_it_always_wrote() -> None:
    core = core_of("CREATE QUERY n AS SELECT COUNT(*) AS n FROM readings")
    advance_readings(core, rows_of(0, 5), FIRST + 4)
    assert core.events == Events()
    assert b"events" not in core.dump(1, MOST)[0]


def test_rows_of_events_need_a_key_to_be_counted_by() -> None:
    text = "CREATE STREAM s (x DOUBLE); CREATE QUERY q AS SELECT x FROM s [ROWS 3]"
    _, refused = program_of(definitions_of(text, "test"), STEP_US, KINDS)
    assert "expected [PARTITION BY columns ROWS n]" in str(refused["q"])
    keyed = text.replace("(x", "(k TEXT KEY, x")
    assert not program_of(definitions_of(keyed, "test"), STEP_US, KINDS)[1]


def test_streams_are_known_without_what_queries_need() -> None:
    found = event_streams(definitions_of(f"{TEXT}; CREATE FUNCTION f AS 'nowhere:g'", "test"))
    assert {name: stream.key for name, stream in found.items()} == {"bids": "", "lots": ""}
    with pytest.raises(QueryError, match="stands twice"):
        event_streams([Definition("s", "CREATE STREAM s (x DOUBLE, x TEXT)", "test")])


def test_texts_that_no_row_has_any_more_are_forgotten() -> None:
    """New texts come for ever. What is kept of a window grows with its rows alone."""
    core = core_of(
        "CREATE STREAM bids (lot TEXT); CREATE QUERY q AS SELECT a.lot FROM bids a [RANGE 3 SECONDS], "
        "bids b [RANGE 2 SECONDS] WHERE a.lot = b.lot AND a.time < b.time"
    )
    sizes = []
    for step in range(FIRST, FIRST + 200):
        cells = [{"time": step * STEP_US, "lot": f"lot-{step}-{number}" + "x" * 100} for number in range(100)]
        columns = table_columns(cells, {"time": Kind.TIMESTAMP, "lot": Kind.TEXT})
        came = [(0, "bids", Recovered(query="bids", step=step, rows=100, column=columns))]
        advance(core, no_rows(), came, step)
        sizes.append(len(core.dump(1, MOST)[0]))
    assert sizes[-1] < 4 * sizes[20]
    assert max(sizes) < 1_000_000, "of 2 MB that came"


def test_events_have_the_columns_of_the_sensor_that_their_key_names() -> None:
    text = (
        "CREATE STREAM doors (door TEXT KEY, open BOOLEAN, unit TEXT); "
        "CREATE QUERY q AS SELECT site, group, COUNT(*) AS n, MIN(threshold) AS t FROM doors [RANGE 2 SECONDS] "
        "GROUP BY site, group; CREATE QUERY own AS SELECT door, unit, edge FROM doors"
    )
    core = core_of(text)
    kinds = {"time": Kind.TIMESTAMP, "door": Kind.TEXT, "open": Kind.BOOLEAN, "unit": Kind.TEXT}
    cells = [
        {"time": FIRST * STEP_US, "door": door, "open": True, "unit": "mine"} for door in ("s1", "s3", "s1", "none")
    ]
    came = [(0, "doors", Recovered(query="doors", step=FIRST, rows=4, column=table_columns(cells, kinds)))]
    found = advance(core, no_rows(), came, FIRST)
    blocks = {item.query: typed_rows(ResultBlock.FromString(item.value)) for item in found if item.rows}
    rows = zip(*(column.to_list() for column in blocks["q"].columns.values()), strict=True)
    assert sorted(map(repr, rows)) == sorted(
        map(repr, [(None, None, 1, None), ("site-0", "g1", 1, 0.5), ("site-1", "g1", 2, 0.5)])
    )
    assert blocks["own"].columns["unit"].to_list() == ["mine"] * 4, "a column of its own comes first"
    assert set(blocks["own"].columns["edge"].to_list()) == {"e1", None}
