"""The schedules without steps once more, where batches are read, and outputs written, as columns however few they are.

Otherwise only a slot that has something to make up for would do so here, since the edges send few records.
"""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from tests.simulation.run import run_seed
from tsunagi.slot import parsing
from tsunagi.slot.outputs import Output
from tsunagi.slot.plain_outputs import PlainOutputs
from tsunagi.standby.queue import PendingQueue

SEEDS = range(6, 86, 8)
"""Schedules without steps; every second one has queries, whose outputs are written one by one."""
FINDS = (14, 158, *range(6, 246, 8))
"""Schedules in which a planted fault is looked for, those first that have found one."""


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Read batches as columns, however few they are; return how many outputs were written as columns, run by run."""
    found: list[int] = []
    sent = PendingQueue.sent

    def counted(self: PendingQueue, outputs: Sequence[Output], generation: int) -> None:
        if isinstance(outputs, PlainOutputs):
            found.append(len(outputs))
        sent(self, outputs, generation)

    monkeypatch.setattr(parsing, "LEAST", 1)
    monkeypatch.setattr(PendingQueue, "sent", counted)
    return found


def test_schedules_hold(written: list[int]) -> None:
    wrong = [text for seed in SEEDS if (text := run_seed(seed))]
    assert not wrong, "\n".join(wrong)
    assert len(written) > 100
    assert max(written) > 10


def test_if_the_last_of_several_outputs_were_not_written_it_would_be_found() -> None:
    encode = PlainOutputs.encode

    def without_last(self: PlainOutputs, slot: int, generation: int) -> list[tuple[bytes, bytes]]:
        shorter = PlainOutputs(self._numbers[:, :-1], self._columns, self.rows, self.epoch)
        return encode(shorter if len(self) > 1 else self, slot, generation)

    with patch.object(PlainOutputs, "encode", without_last):
        assert any(run_seed(seed) for seed in FINDS)


def test_if_outputs_counted_as_arrived_when_their_first_one_has_it_would_be_found() -> None:
    with patch.object(PlainOutputs, "first", PlainOutputs.last):
        assert any(run_seed(seed) for seed in FINDS)
