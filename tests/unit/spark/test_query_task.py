"""A query core's batches: what is run again is the same, and no file is left when nobody needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest

from tests.unit.spark.test_query_core import FIRST, STEP_US, layout_of, program, rows_of
from tsunagi.query.definitions import definitions_of
from tsunagi.query.encoding import EncodedBlock
from tsunagi.runtime.log import LogError
from tsunagi.runtime.settings import KafkaSettings
from tsunagi_spark import query_task
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.layout import Layout
from tsunagi_spark.query_core import QueryCore
from tsunagi_spark.query_program import QueryProgram
from tsunagi_spark.query_task import QueryParts, _packed, forget_ended, program_file, run_queries
from tsunagi_spark.state import KEPT, StateError, Store
from tsunagi_spark.task_context import BatchContext, JobContext

WINDOW = "CREATE QUERY long AS SELECT sensor, SUM(value) AS total FROM readings [RANGE 30 SECONDS] GROUP BY sensor"
STEPS = 5
"""Steps in a batch."""


@dataclass
class Sent:
    """What is sent, in the place of a producer."""

    records: list[tuple[int, bytes, bytes]] = field(default_factory=list)

    def __call__(self, _kafka: KafkaSettings) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, _topic: str, partition: int, key: bytes, value: bytes) -> None:
        self.records.append((partition, key, value))


@dataclass
class Place:
    """A checkpoint, and the query core that runs queries which need all rows."""

    directory: Path
    sent: Sent

    def __post_init__(self) -> None:
        self.store, self.job = checkpoint(self.directory, {1: program(WINDOW, 1), 2: program("", 2)})

    def run(
        self, batch: int, serial: int = 1, before: int = 1, fills: tuple[str, ...] = ()
    ) -> list[tuple[int, bytes, bytes]]:
        """Run a batch; return what it has sent."""
        context = BatchContext(
            *("query", batch, 1, 1, {}, (NEVER, NEVER), frozenset(), frozenset()),
            program=serial,
            program_before=before if batch else 0,
            whole=serial == 1,
            fills=fills,
        )
        first = batch * STEPS
        part = QueryParts(FIRST + first, FIRST + first + STEPS - 1, None, _packed(rows_of(first, first + STEPS)))
        self.sent.records = []
        for _ in run_queries(self.job, context, 1, [part]):
            pass
        return self.sent.records

    def files(self, prefix: str) -> list[str]:
        return sorted(path.name for path in (self.store.root / "queries").glob(f"{prefix}*"))


def without_kafka(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> Sent:
    """Let query cores run in this process without Kafka, and without what an earlier test has kept."""
    sent = Sent()
    monkeypatch.setattr(query_task, "Sending", sent)
    monkeypatch.setattr(query_task, "layout_of", lambda *_: layout)
    for kept in ("_kept", "_programs", "_tables"):
        monkeypatch.setattr(query_task, kept, {})
    return sent


def checkpoint(directory: Path, programs: Mapping[int, QueryProgram], cores: int = 2) -> tuple[Store, JobContext]:
    """Return a job's state with programs written down, by serial."""
    store = Store(directory)
    store.prepare(cores)
    for serial, made in programs.items():
        store.write(program_file(serial), made.dump())
    return store, JobContext(str(directory), STEP_US, 1, "blocks", 0, (), KafkaSettings(), 1, 10**9)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("tsunagi.query.windows._CELLS", 60)
    return Place(tmp_path, without_kafka(monkeypatch, layout_of(cores=2)))


def test_a_batch_that_runs_again_sends_the_same_wherever_it_runs(place: Place) -> None:
    for batch in range(12):
        once = place.run(batch)
        assert once
        if batch % 3 == 0:
            query_task._kept.clear()  # another process of Spark's has it
        if batch % 2:
            assert place.run(batch) == once  # from the state behind the batch before


def test_panes_are_kept_as_long_as_a_window_or_a_batch_needs_them(place: Place) -> None:
    for batch in range(20):
        place.run(batch)
    assert 3 < len(place.files("panes")) < 20
    assert len(place.files("whole")) == KEPT
    (ended, *_) = place.run(20, serial=2)
    assert ended[1].startswith(b"long//")
    assert place.files("panes"), "the batch may run again"
    assert place.run(20, serial=2)[0] == ended
    for batch in range(21, 21 + 2 * KEPT):
        assert place.run(batch, serial=2, before=2) == []
    assert place.files("panes") == []
    assert place.files("whole") == []
    assert len(place.run(30, serial=1, before=2)) > STEPS


def test_a_query_that_cannot_be_filled_now_is_filled_later_and_the_batch_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "CREATE QUERY f AS SELECT COUNT(*) AS n FROM readings"
    items = tuple(replace(item, from_us=1) for item in definitions_of(text, "test"))
    filled = replace(program(WINDOW, 1), definitions=(*program(WINDOW, 1).definitions, *items))
    place.store.write(program_file(1), filled.dump())

    def away(*_: object) -> Any:
        raise LogError("the broker is away")

    monkeypatch.setattr(query_task, "_reader", lambda _: None)
    monkeypatch.setattr(query_task, "fill", away)
    assert {key.split(b"/")[0] for _, key, _ in place.run(0, fills=("f",))} == {b"long"}
    assert place.files("fill-f") == ["fill-f-0"]
    monkeypatch.setattr(query_task, "fill", caught_up)
    assert {key.split(b"/")[0] for _, key, _ in place.run(1, fills=("f",))} == {b"long", b"f"}


def test_what_is_left_of_queries_that_were_filled_is_removed_when_no_batch_needs_it(place: Place) -> None:
    for name in ("fill-f-3", "panes-fill-f-2", "fill-f-9", "fill-g-3", "panes-fill-g-3", "whole-3", "split-0-3"):
        place.store.write(f"queries/{name}", b"")
    for name in ("opk-1234abcd-0-3", "panes-opk-1234abcd-1-3", "opk-1234abcd-1-9", "opk-0000ffff-0-3"):
        place.store.write(f"queries/{name}", b"")
    forget_ended(place.store, ("g",), ("0000ffff",), 8)
    kept = ["fill-f-9", "fill-g-3", "opk-0000ffff-0-3", "opk-1234abcd-1-9", "panes-fill-g-3", "split-0-3", "whole-3"]
    assert place.files("") == kept


def caught_up(core: QueryCore, *_: object) -> Iterator[EncodedBlock]:
    core.filling = None
    return iter(())


def test_damaged_panes_are_named(place: Place) -> None:
    for batch in range(10):
        place.run(batch)
    name = place.files("panes")[-1]
    path = place.store.root / "queries" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    query_task._kept.clear()
    with pytest.raises(StateError, match=f"{name}: damaged"):
        place.run(10)
