"""Slots with queries over tuples of several columns: typed batches, states, statements that come and go."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.slot.small_slot import FIRST, SENSORS, SLOT, Encoded, load, owned, play
from tests.unit.slot.test_tuples import config, play_runs, tuple_log
from tsunagi.query import tuple_runs
from tsunagi.query.typed import rows_of
from tsunagi.replay.compare import compare
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.columns import floats
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RECOVERED, Record
from tsunagi.runtime.messages import Context, DeadLetter, LogRecord, Recovered, TupleBatch, TypedColumn
from tsunagi.runtime.names import pack_key
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import Frame, OperatorFailedError, Run
from tsunagi.slot.operators import Operator, OperatorError, build_chain
from tsunagi.slot.parsing import parse
from tsunagi.slot.slot import Slot

STREAM = "CREATE STREAM trades (symbol TEXT KEY, price DOUBLE, note TEXT, volume BIGINT)"
LAST = (
    "CREATE QUERY last AS SELECT symbol, SUM(price * volume) AS money, COUNT(*) AS n FROM trades [ROWS 4] "
    "GROUP BY symbol"
)
ALL = (
    "CREATE QUERY total AS SELECT symbol, COUNT(*) AS n, SUM(volume) AS pieces FROM trades [RANGE UNBOUNDED] "
    "GROUP BY symbol"
)
RAIN = "CREATE QUERY rain AS ISTREAM (SELECT symbol, note FROM trades WHERE note LIKE 'r%')"
READINGS = "CREATE QUERY high AS SELECT sensor, value FROM readings WHERE value > 0"
HOUR = (
    "CREATE QUERY hour AS SELECT symbol, COUNT(*) AS n, AVG(price) AS mean FROM trades [RANGE 1 HOUR] GROUP BY symbol"
)
CHAINS: dict[str, tuple[tuple[str, ...], tuple[dict[str, Any], ...]]] = {
    "columns": ((STREAM, LAST, ALL, RAIN), ()),
    "columns behind an operator": ((STREAM, LAST, RAIN), ({"use": "select", "at_least": -0.5},)),
    "a state that grows too large": ((STREAM, ALL, HOUR), ()),
    "readings": ((READINGS,), ()),
}


def queries(*statements: str, operators: tuple[dict[str, Any], ...] = ()) -> SlotConfig:
    found: SlotConfig = replace(config(*operators), statements=statements)
    return found


def columns(rows: int, draw: random.Random) -> list[TypedColumn]:
    """Return drawn columns: some values are NULL, and now and then a column is missing."""
    price = np.array([draw.randint(-8, 8) / 4 for _ in range(rows)])
    volume = np.array([draw.randint(0, 9) for _ in range(rows)], dtype=np.int64)
    valid = bytes(draw.choice((0, 1, 1)) for _ in range(rows))
    texts = draw.sample(["rain", "ray", "sun", ""], 3)
    codes = np.array([draw.randrange(3) for _ in range(rows)], dtype=np.uint32)
    found = [
        TypedColumn(name="price", kind="DOUBLE", value=price.tobytes()),
        TypedColumn(name="note", kind="TEXT", value=codes.tobytes(), text=texts),
        TypedColumn(name="volume", kind="BIGINT", value=volume.tobytes(), valid=valid),
        TypedColumn(name="new", kind="BOOLEAN", value=bytes(rows)),  # the slot's statement does not know it yet
    ]
    return found if draw.random() < 0.9 else found[:1]


def typed(records: list[Record], seed: int) -> list[Record]:
    """Return a log whose batches have columns; a few of them are damaged."""
    draw = random.Random(seed)
    found = []
    for record in records:
        message = parse(record)[0]
        if message is not None and message.WhichOneof("body") == "batch":
            message.batch.column.extend(columns(len(message.batch.sensor) // 4, draw))
            if draw.random() < 0.05:
                message.batch.column[0].value += b"\0"
            record = replace(record, value=message.SerializeToString())  # noqa: PLW2901
        found.append(record)
    return found


@pytest.mark.parametrize("chain", CHAINS)
def test_resumed_anywhere_and_cut_anyhow_the_same_follows(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuple_runs, "_MEASURED", 16)
    statements, operators = CHAINS[chain]
    settings = queries(*statements, operators=operators)
    if HOUR in statements:
        settings = replace(settings, state_bytes=4_000)
    records = tuple_log(1 + list(CHAINS).index(chain), settings)
    records = typed(records, 7) if STREAM in statements else records
    straight = Slot(SLOT, load)
    outputs = [play(straight, [record]) for record in records]
    flat = [item for made in outputs for item in made]
    answers = [told for topic, _, value in flat if topic == RECOVERED if (told := Recovered.FromString(value)).query]
    assert {message.query for message in answers} == {text.split()[2] for text in statements if "QUERY" in text}
    assert len(answers) > 50
    assert {topic for topic, _, _ in flat} == {RECOVERED, LATE, DEAD_LETTERS}
    assert flat == sorted(flat, key=lambda item: item[1])
    for seed in range(3):
        cut = Slot(SLOT, load)
        assert play_runs(cut, records, seed) == flat
        assert cut.context() == straight.context()  # the state is the same bytes, too
    if HOUR in statements:
        assert straight.chain is not None
        assert straight.chain.stream is not None
        assert straight.chain.stream.faults.keys() == {"hour"}
        assert answers[-1].query == "total"
    source = Slot(SLOT, load)
    for place, record in enumerate(records):
        if source.book is not None and place % 9 == 0:
            message = Context.FromString(source.context().SerializeToString())
            other = Slot(SLOT, load)
            other.restore(message)
            assert other.context() == message
            reach = slice(place, place + 40)
            assert play_runs(other, records[reach], place) == [item for made in outputs[reach] for item in made]
        source.apply(record)


def test_a_replay_says_the_same_and_sees_a_changed_row() -> None:
    statements, _ = CHAINS["columns"]
    records = typed(tuple_log(3, queries(*statements)), 5)
    # A Quarantine stands behind the record that it names, which a plain `play` has passed by then.
    records = [
        item for item in records if (found := parse(item)[0]) is None or found.WhichOneof("body") != "quarantine"
    ]
    slot = Slot(SLOT, load)
    made = [item for record in records for item in play(slot, [record])]
    generation = slot.register.generation
    written = [
        Record(RECOVERED, SLOT, place, 0, pack_key(generation, SLOT, name), value)
        for place, (topic, name, value) in enumerate(made)
        if topic == RECOVERED
    ]
    again = list(recompute(records, load))
    assert compare(again, written).differing == 0
    assert compare(again, written).compared == len(written) > 50
    message = Recovered.FromString(written[20].value or b"")
    message.rows += 1
    changed = [*written[:20], replace(written[20], value=message.SerializeToString()), *written[21:]]
    assert compare(again, changed).differing == 1


def test_statements_come_and_go_and_the_others_keep_their_state() -> None:
    writer = owned(queries(STREAM, ALL))
    step = FIRST

    def tuples(count: int) -> None:
        nonlocal step
        for _ in range(count):
            step += 1
            batch = TupleBatch(edge="e2", incarnation=1, step=step, event_time_us=step, count=b"\1\0\0\0")
            batch.sensor, batch.value = np.array(SENSORS["e2"], "<u4").tobytes(), np.array([2.5]).tobytes()
            batch.column.append(TypedColumn(name="volume", kind="BIGINT", value=np.array([3]).tobytes()))
            writer.add(batch=batch)

    tuples(3)
    writer.settings(queries(STREAM, ALL, LAST))
    tuples(2)
    writer.settings(queries(STREAM, LAST))
    tuples(2)
    writer.settings(queries(STREAM, LAST, ALL))
    tuples(1)
    made = play(Slot(SLOT, load), writer.records)
    found = [
        message for topic, _, value in made if topic == RECOVERED if (message := Recovered.FromString(value)).query
    ]
    counts: dict[str, list[int]] = {"total": [], "last": []}
    for message in found:
        counts[message.query] += rows_of(message).columns["n"].to_list()
    assert counts == {"total": [1, 2, 3, 4, 5, 1], "last": [1, 2, 3, 4, 4]}
    for cut in range(1, len(writer.records)):
        first, second = Slot(SLOT, load), Slot(SLOT, load)
        before = play_runs(first, writer.records[:cut], cut)
        if first.book is not None:
            second.restore(Context.FromString(first.context().SerializeToString()))
            assert before + play_runs(second, writer.records[cut:], cut) == made


DAMAGES = {
    "too long": TypedColumn(name="price", kind="DOUBLE", value=bytes(16)),
    "another type": TypedColumn(name="price", kind="BIGINT", value=bytes(8)),
    "NULLs of another length": TypedColumn(name="price", kind="DOUBLE", value=bytes(8), valid=bytes(2)),
    "no such text": TypedColumn(name="note", kind="TEXT", value=b"\2\0\0\0", text=["a", "b"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_batch_with_a_damaged_column_is_a_dead_letter(damage: str) -> None:
    writer = owned(queries(STREAM, LAST))
    batch = TupleBatch(edge="e2", incarnation=1, step=FIRST, event_time_us=FIRST, column=[DAMAGES[damage]])
    batch.sensor, batch.value = np.array(SENSORS["e2"], "<u4").tobytes(), np.array([2.5]).tobytes()
    writer.add(batch=batch)
    made = play(Slot(SLOT, load), writer.records)
    assert [(topic, DeadLetter.FromString(value).reason) for topic, _, value in made] == [(DEAD_LETTERS, "damaged")]


def odd(values: Any) -> Any:
    """Fail on what a table of numbers lacks, as users' functions do."""
    return np.array([{1.0: 2.0}[value] for value in values.tolist()])


def test_a_function_that_fails_is_told_with_its_query() -> None:
    statements = (
        STREAM,
        "CREATE FUNCTION odd AS 'tests.unit.slot.test_stream:odd'",
        "CREATE QUERY q AS SELECT symbol, ODD(price) AS p FROM trades",
    )
    records = typed(tuple_log(2, queries(*statements)), 3)
    with pytest.raises(OperatorFailedError, match=r"operator query q: step \d+.*KeyError.*test_stream.py, line"):
        play(Slot(SLOT, load), records)


def test_what_is_no_number_is_null() -> None:
    chain = build_chain(queries(STREAM, LAST), None)
    assert chain.stream is not None
    ids = np.array([0, 2], "<u4").tobytes()
    price = TypedColumn(name="price", kind="DOUBLE", value=np.array([math.nan, 2.0]).tobytes())
    found = chain.stream.columns([TupleBatch(sensor=ids, column=[price]), TupleBatch(sensor=ids)])
    assert found["price"].to_list() == [None, 2.0, None, None]
    assert found["note"].to_list() == [None] * 4


def test_tuples_without_columns_are_what_they_were() -> None:
    records = tuple_log(4, config())
    plain: Encoded = play_runs(Slot(SLOT, load), records, 1)
    assert b"statements" not in b"".join(record.value or b"" for record in records)
    asked = [
        record if (message := parse(record)[0]) is None or message.WhichOneof("body") != "settings" else _asked(record)
        for record in records
    ]
    found = play_runs(Slot(SLOT, load), asked, 1)
    rows = [(topic, value) for topic, _, value in found if topic == RECOVERED and not Recovered.FromString(value).query]
    named = [(topic, value) for topic, _, value in plain if topic == RECOVERED]
    assert [floats(Recovered.FromString(value).mean).tolist() for _, value in rows] == [
        floats(Recovered.FromString(value).mean).tolist() for _, value in named
    ]


def _asked(record: Record) -> Record:
    message = LogRecord.FromString(record.value or b"")
    changed = replace(SlotConfig.parse(message.settings.text), statements=(READINGS,))
    message.settings.text, message.settings.hash = changed.text(), changed.hash
    return replace(record, value=message.SerializeToString())


def test_statements_that_cannot_be_understood_do_not_get_into_a_slot() -> None:
    with pytest.raises(OperatorError, match="column weight is unknown"):
        build_chain(queries(STREAM, "CREATE QUERY q AS SELECT symbol, weight FROM trades"), None)


class Notes(Operator):
    """Keeps the tuples whose note begins like `start`, and doubles their price."""

    def __init__(self, config: SlotConfig, *, start: str) -> None:
        super().__init__(config)
        self._start = start

    def process(self, frame: Frame) -> Sequence[Frame]:
        assert isinstance(frame, Run)
        notes = frame.columns["note"].texts()
        kept = frame.keep(np.array([(note or "").startswith(self._start) for note in notes], dtype=bool))
        price = kept.columns["price"]
        return (kept.replace(columns={**kept.columns, "price": replace(price, values=price.values * 2)}),)


def test_queries_see_what_an_operator_of_one_s_own_makes_of_the_columns() -> None:
    asked = "CREATE QUERY q AS SELECT symbol, price, note FROM trades"
    operator = {"use": "tests.unit.slot.test_stream:Notes", "start": "ra"}
    outputs = []
    for settings in (queries(STREAM, asked), queries(STREAM, asked, operators=(operator,))):
        records = typed(tuple_log(2, settings), 3)
        made = play_runs(Slot(SLOT, load), records, 1)
        answers = [rows_of(Recovered.FromString(value)) for topic, _, value in made if topic == RECOVERED]
        lists = [[column.to_list() for column in rows.columns.values()] for rows in answers if rows.columns]
        outputs.append([row for columns_ in lists for row in zip(*columns_, strict=True)])
    plain, doubled = outputs
    assert doubled == [(symbol, price * 2, note) for symbol, price, note in plain if (note or "").startswith("ra")]
    assert len(doubled) > 20
