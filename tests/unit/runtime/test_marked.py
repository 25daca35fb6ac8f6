"""What may be removed: what Tsunagi wrote, where Tsunagi made the directory, and nothing else whatever lies about."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsunagi.local.up import wipe
from tsunagi.runtime.marked import CHECKPOINT, DEMO, MARKER, STATE, empty, mark, marked
from tsunagi.runtime.settings import Settings, SparkSettings

KINDS = {"state": STATE, "checkpoint": CHECKPOINT, "demo": DEMO}
FOREIGN = (
    "notes.txt",
    "mine/data.csv",
    "logs/notes.txt",
    "pids/old/1.json",
    "edges/e1/mine.csv",
    ".git/HEAD",
)


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def written(directory: Path, name: str) -> Path:
    """Write something that the pattern is for."""
    return put(directory / name.replace("*", "a7"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_tsunagi_wrote_is_removed_with_its_directory(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "deep" / "place"
    assert mark(place)
    for name in KINDS[kind]:
        written(place, name)
    assert empty(place, KINDS[kind]) == []
    assert not place.exists()


@given(st.data())
def test_whatever_lies_about_what_tsunagi_did_not_write_stays(data: st.DataObject) -> None:
    names = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    ours = data.draw(st.sets(st.sampled_from(names)))
    theirs = data.draw(st.sets(st.sampled_from(FOREIGN)))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "place"
        if data.draw(st.booleans()):
            assert mark(place)
            removed = [written(place, name) for name in ours]
        else:  # the user's own directory, which he named
            put(place / "first")
            assert not mark(place)
            theirs = theirs | {"first"} | {name.replace("*", "a7") for name in ours}
            removed = []
        kept = [put(place / name) for name in theirs]
        left = empty(place, names)
        assert not [path for path in removed if path.exists() and path not in kept]
        assert all(path.exists() for path in kept)
        assert all(any(item == path or item in path.parents for item in left) for path in kept)
        assert place.exists() == bool(kept)


def test_nothing_that_a_link_leads_to_is_removed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    theirs = [put(elsewhere / name) for name in ("syslog.log", "data/1", "1.json")]
    place = tmp_path / "place"
    mark(place)
    (place / "broker").mkdir()
    for link in ("logs", "pids", "broker/data", "origin"):
        (place / link).symlink_to(elsewhere)
    left = empty(place, STATE)
    assert all(path.exists() for path in theirs)
    assert left == [place / "logs", place / "pids"]


def test_a_directory_that_is_not_empty_is_never_marked(tmp_path: Path) -> None:
    put(tmp_path / "mine")
    assert not mark(tmp_path)
    (tmp_path / "mine").unlink()
    assert mark(tmp_path)
    put(tmp_path / "later")
    assert mark(tmp_path)


def test_wipe_removes_state_and_checkpoint_and_says_what_it_keeps(tmp_path: Path) -> None:
    said: list[str] = []
    settings = Settings(state=tmp_path / "run", spark=SparkSettings(checkpoint=tmp_path / "run" / "checkpoint"))
    for place in (settings.state, settings.spark.checkpoint):
        mark(place)
    put(settings.state / "logs" / "gw-1.log")
    put(settings.spark.checkpoint / "offsets" / "0")
    mine = put(settings.state / "mine.txt")
    wipe(settings, said.append)
    assert said == [
        f"removed {settings.spark.checkpoint}",
        f"kept in {settings.state} what Tsunagi did not write: mine.txt",
    ]
    assert [path for path in settings.state.iterdir() if path.name != MARKER] == [mine]
    mine.unlink()
    wipe(settings, said.append)
    wipe(settings, said.append)
    assert said[2:] == [f"removed {settings.state}"]
    assert list(tmp_path.iterdir()) == []


def test_wipe_leaves_a_directory_of_ones_own_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [put(tmp_path / name) for name in ("mine", "logs/gw-1.log", "offsets/0", "broker/data/0")]
    said: list[str] = []
    wipe(Settings(state=Path(), spark=SparkSettings(checkpoint=Path())), said.append)
    assert all(path.exists() for path in files)
    assert not marked(tmp_path)
    assert len(said) == 1
    assert said[0].startswith(f"kept {tmp_path}: ")
