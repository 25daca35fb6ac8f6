"""Acts say what they would do, and refuse what they do not take, before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from tsunagi.console.acts import ACTS, preview
from tsunagi.runtime.settings import Settings


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("recovery", {"eps": 0.5}, "eps 0.5, delta 0.9"),
        ("recovery", {}, "eps 1, delta 0.9"),
        ("scale", {"workers": 4}, "workers: 4 local"),
        ("scale", {}, "workers: as [scaler] says"),
    ],
)
def test_an_act_shows_what_it_would_do(name: str, given: dict[str, Any], said: str) -> None:
    assert said in " ".join(preview(Settings(), name, given))


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("explode", {}, f"found 'explode', expected one of {', '.join(ACTS)}"),
        ("scale", {"number": 4}, "number: no field of scale; expected some of workers"),
        ("scale", {"workers": "4"}, "workers: found '4', expected int"),
        ("scale", {"workers": True}, "workers: found 'True', expected int"),
        ("scale", {"workers": 0}, "expected one at least"),
        ("recovery", {"delta": 2.0}, "--delta: found 2.0"),
        ("query-add", {}, "text: found 'None', expected str"),
        ("query-add", {"text": "/etc/passwd"}, "expected a statement in CQL"),
    ],
)
def test_an_act_refuses_what_it_does_not_take(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"found|no field|expected") as error:
        preview(Settings(), name, given)
    assert said in str(error.value)
