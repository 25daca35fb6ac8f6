"""How many workers there should be, asked for by hand."""

from __future__ import annotations

import pytest

from tsunagi.runtime.messages import Plan
from tsunagi.runtime.settings import ScalerSettings, Settings, SizeSettings
from tsunagi.scaler import by_hand
from tsunagi.scaler.by_hand import ScaleError, ask

SETTINGS = Settings(scaler=ScalerSettings(sizes={"small": SizeSettings()}))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, Plan]:
    found: dict[str, Plan] = {}
    monkeypatch.setattr(by_hand, "write_plan", lambda _settings, records: found.update(records))
    return found


def test_counts_by_type_stand_in_the_plan(written: dict[str, Plan]) -> None:
    said: list[str] = []
    ask(SETTINGS, None, ["local=1", "small=2"], said.append)
    workers = written["workers"].workers
    assert (dict(workers.count), workers.by, workers.as_configured) == ({"local": 1, "small": 2}, "operator", False)
    assert said == ["workers: 1 local, 2 small"]
    ask(SETTINGS, 4, [], said.append)
    assert dict(written["workers"].workers.count) == {"local": 4}
    ask(SETTINGS, None, [], said.append, auto=True)
    assert written["workers"].workers.as_configured


def test_one_worker_alone_is_possible_and_its_price_is_said(written: dict[str, Plan]) -> None:
    said: list[str] = []
    ask(SETTINGS, 1, [], said.append)
    assert "no slot has a secondary" in said[-1]
    assert dict(written["workers"].workers.count) == {"local": 1}


@pytest.mark.parametrize(
    ("workers", "kinds", "auto", "said"),
    [
        (None, [], False, "expected --workers or --type"),
        (2, [], True, "or --auto alone"),
        (None, ["small"], False, "found 'small', expected TYPE=N"),
        (None, ["small=-1"], False, "expected TYPE=N"),
        (None, ["huge=1"], False, "found 'huge', expected one of local, small"),
        (2, ["local=1"], False, "'local' twice"),
        (None, ["local=0"], False, "no worker at all"),
    ],
)
def test_what_cannot_be_is_refused(
    written: dict[str, Plan], workers: int | None, kinds: list[str], auto: bool, said: str
) -> None:
    with pytest.raises(ScaleError, match=said):
        ask(SETTINGS, workers, kinds, print, auto=auto)
    assert written == {}
