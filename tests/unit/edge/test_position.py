"""What an edge remembers, and what it says when that is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tsunagi.edge.position import PositionFile, shared_origin
from tsunagi.edge.source import EdgePosition, FilePosition, FileProgress, LiveProgress, Offsets, SourceError
from tsunagi.runtime.marks import LogMark

POSITION = EdgePosition(
    edge="e1",
    source="data.csv",
    header_sha256="ab",
    origin_us=5,
    step=7,
    incarnation=99,
    progress=FileProgress(FilePosition(12, 14, 300), FilePosition(9, 11, 200), -1),
)


def test_what_was_saved_is_loaded(tmp_path):
    file = PositionFile(tmp_path, "e1")
    assert file.load() is None
    file.save(POSITION)
    assert file.load() == POSITION
    file.save(replace(POSITION, step=8))
    loaded = file.load()
    assert loaded is not None
    assert loaded.step == 8
    assert [entry.name for entry in (tmp_path / "edges" / "e1").iterdir()] == ["position.json"]


def test_a_live_sources_position_is_loaded(tmp_path):
    file = PositionFile(tmp_path, "e1")
    for partitions in ({}, {0: Offsets(7, 5, LogMark("topic", 2**64 - 1)), 11: Offsets(0, 0)}):
        live = replace(POSITION, source="kafka/plant", header_sha256="", progress=LiveProgress(partitions, 3))
        file.save(live)
        assert file.load() == live


def damage(change: Callable[[dict[str, Any]], object]) -> str:
    table: dict[str, Any] = {
        "version": 1,
        "edge": "e1",
        "source": "data.csv",
        "header_sha256": "ab",
        "origin_us": 5,
        "step": 7,
    }
    place = {"row": 1, "line": 2, "offset": 3}
    table |= {"incarnation": 9, "progress": {"next": dict(place), "oldest": dict(place), "observed_us": 1}}
    change(table)
    return json.dumps(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged .JSONDecodeError"),
        ("[]", "damaged"),
        (damage(lambda _: None)[:-20], "damaged .JSONDecodeError"),
        (damage(lambda table: table.pop("step")), "damaged .TypeError"),
        (damage(lambda table: table["progress"].pop("oldest")), "damaged .KeyError: 'oldest'"),
        (damage(lambda table: table["progress"]["next"].update(row="x")), "expected whole numbers"),
        (damage(lambda table: table["progress"]["next"].update(row=-1)), "expected whole numbers"),
        (damage(lambda table: table["progress"].update(partitions={"0": [5]})), "damaged .TypeError"),
        (damage(lambda table: table["progress"].update(partitions={"0": [5, -1]})), "expected whole numbers"),
        (damage(lambda table: table["progress"].update(partitions={"0": [5, "4"]})), "expected whole numbers"),
        (damage(lambda table: table["progress"].update(partitions={"x": [5, 4]})), "damaged .ValueError"),
        (damage(lambda table: table["progress"].update(partitions={"0": [5, 4, 7]})), "damaged .TypeError"),
        (damage(lambda table: table["progress"].update(partitions={"0": [5, 4, [7, 7]]})), "damaged .TypeError"),
        (
            damage(lambda table: table["progress"].update(partitions={"0": [5, 4, ["t", "7"]]})),
            "expected whole numbers",
        ),
        (damage(lambda table: table.update(step=1.5)), "expected whole numbers"),
        (damage(lambda table: table.update(version=3)), "found version 3, expected at most 2"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, text, message):
    file = PositionFile(tmp_path, "e1")
    file.path.parent.mkdir(parents=True)
    file.path.write_text(text)
    with pytest.raises(SourceError, match=message) as caught:
        file.load()
    assert str(file.path) in str(caught.value)


def test_a_disk_that_takes_nothing_is_named(tmp_path):
    (tmp_path / "edges").write_text("in the way")
    with pytest.raises(SourceError, match=r"position.json: the edge's position cannot be written"):
        PositionFile(tmp_path, "e1").save(POSITION)


def test_the_first_edge_sets_the_origin_for_all(tmp_path):
    first = shared_origin(tmp_path / "run", 10_300_000, 200_000)
    assert first == 12_400_000
    assert first % 200_000 == 0
    assert shared_origin(tmp_path / "run", 99_000_000, 200_000) == first
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["origin"]


def test_a_damaged_origin_is_named(tmp_path):
    (tmp_path / "origin").write_text("soon\n")
    with pytest.raises(SourceError, match="origin: found 'soon', expected the event time"):
        shared_origin(tmp_path, 0, 200_000)
