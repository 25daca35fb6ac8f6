"""The schedules once more, where memory holds a dozen records of a slot: what waits beyond is scanned, and read again.

So it is for a slot whose owner has been overloaded for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from tests.simulation.checker import check
from tests.simulation.run import run_seed
from tests.simulation.test_lost_log import FAULTS, struck
from tsunagi.runtime.log import Record
from tsunagi.standby import intake
from tsunagi.standby.intake import Intake

SEEDS = range(500, 516)


@pytest.fixture(autouse=True)
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give each slot little memory; return how many records were scanned first and read again later."""
    found: list[int] = []
    keep_again = Intake._keep_again

    def counted(self: Intake, records: Sequence[Record], *, bounded: bool) -> None:
        before = len(self.backlog)
        keep_again(self, records, bounded=bounded)
        found.append(len(self.backlog) - before)

    monkeypatch.setattr(intake, "HELD_BYTES", 12 * intake.KEPT_BYTES)
    monkeypatch.setattr(Intake, "_keep_again", counted)
    return found


def test_schedules_hold(again: list[int]) -> None:
    wrong = [text for seed in SEEDS if (text := run_seed(seed))]
    assert not wrong, "\n".join(wrong)
    assert sum(again) > 100


def test_logs_that_lose_records_are_found_to_have(again: list[int]) -> None:
    assert {fault.__name__: wrong for fault in FAULTS if (wrong := check(struck(fault, 2)))} == {}
    assert sum(again) > 100


def test_if_what_was_scanned_were_not_read_again_it_would_be_found() -> None:
    def passed_over(self: Intake, records: Sequence[Record], *, bounded: bool) -> None:
        del records, bounded
        self.next = self.scanned

    with patch.object(Intake, "_keep_again", passed_over):
        assert any(run_seed(seed) for seed in SEEDS)
