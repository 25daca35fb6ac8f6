"""What is written as TOML is read back by the standard library as it was."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tsunagi.runtime.toml_text import to_toml


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"a": 'x"\\y\n\x7f\té', "b": True, "c": 0.5, "d": 10**15, "e": float("inf")},
        {"one": {"list": [1, 2], "empty": [], "tables": [{"use": "m:C", "options": {"x y": [True]}}], "t": ("a",)}},
        {"one": {"a.b": {"c": 1}}, "two words": {"a": 1}, "plain": 1},
    ],
)
def test_it_is_read_back(tables: dict[str, Any]) -> None:
    read = tomllib.loads(to_toml(tables))
    assert read == {name: _lists(value) for name, value in tables.items()}


def test_paths_are_texts_and_none_is_left_out() -> None:
    tables = {"a": None, "b": {"c": None, "d": Path("x/y"), "e": [{"f": None, "g": 1}]}}
    assert tomllib.loads(to_toml(tables)) == {"b": {"d": "x/y", "e": [{"g": 1}]}}


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
