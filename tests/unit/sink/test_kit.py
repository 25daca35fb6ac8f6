"""The laws of sinks catch sinks that break them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pytest

from tsunagi import Refusal, RefusedError, Sink, SinkBatch
from tsunagi.testing import LawError, check_sink


class Kept(Sink):
    rows: ClassVar[dict[Any, Mapping[str, Any]]] = {}

    def write(self, batch: SinkBatch) -> None:
        for part in batch.parts:
            for row in part.rows:
                self.take(part.schema.key_of(row), part.schema.as_mapping(row))

    def take(self, key: tuple[Any, ...], row: dict[str, Any]) -> None:
        self.rows[key] = row


class Twice(Kept):
    def take(self, key: tuple[Any, ...], row: dict[str, Any]) -> None:
        self.rows[len(self.rows)] = row


class Backwards(Kept):
    def take(self, key: tuple[Any, ...], row: dict[str, Any]) -> None:
        others = dict(self.rows)
        self.rows.clear()
        self.rows.update({key: row} | others)


class Held(Kept):
    def __init__(self) -> None:
        self.held: list[SinkBatch] = []

    def write(self, batch: SinkBatch) -> None:
        self.held.append(batch)
        if len(self.held) > 1:
            super().write(self.held.pop(0))


class Rounded(Kept):
    def take(self, key: tuple[Any, ...], row: dict[str, Any]) -> None:
        super().take(key, row | {"value": round(row["value"], 2)})


class Choosy(Kept):
    def write(self, batch: SinkBatch) -> list[Refusal]:  # type: ignore[override]
        return [Refusal(0, 0, "no")]


def read() -> Iterable[Mapping[str, Any]]:
    return Kept.rows.values()


@pytest.fixture(autouse=True)
def empty() -> None:
    Kept.rows.clear()


def test_a_sink_that_keeps_the_laws_passes() -> None:
    check_sink(Kept, read)
    assert len(Kept.rows) == 150


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Twice, "not idempotent by name: after a batch was written again"),
        (Backwards, "not ordered: after `write`"),
        (Held, "not kept: after `write`, the target lacks"),
        (Rounded, "after `write`, the target has"),
        (Choosy, "it refuses a row of plain readings"),
    ],
)
def test_a_sink_that_breaks_a_law_is_told_which(kind: type[Sink], said: str) -> None:
    with pytest.raises(LawError, match=said):
        check_sink(kind, read)


def test_a_refused_batch_is_an_error_of_its_own() -> None:
    assert not issubclass(RefusedError, OSError)
