"""What an edge keeps for its next incarnation: how far it has read its source, and the last step it published.

The file is written before a step is sent, so that no step is made twice. While the disk does not take it, the edge goes
on: if it dies then, its next incarnation makes the steps again that it had sent since, and the slots drop them by
(edge, step). Records that could not be sent for a while wait in the spool (tsunagi.edge.spool). Records that had been
on their way for less than that when the process died are lost, like the readings that came while it was dead: the slots
see the gap. The file is replaced atomically and not synced to disk. A killed process loses nothing by that; a power cut
at worst repeats steps, which the slots drop.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tsunagi.edge.source import EdgePosition, FilePosition, FileProgress, LiveProgress, Offsets, SourceError
from tsunagi.runtime.marks import NO_MARK, LogMark

VERSION = 2
"""Version of the file's format. Since version 2 each offset is kept with its mark."""


class PositionFile:
    """The file ``<state>/edges/<edge>/position.json``."""

    def __init__(self, state: Path, edge: str) -> None:
        self.path = state / "edges" / edge / "position.json"

    def load(self) -> EdgePosition | None:
        """Read the file; return None if the edge has never run.

        Raises:
            SourceError: the file is damaged or of a later version.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None
        try:
            table: dict[str, Any] = json.loads(text)
            version = int(table.pop("version"))
            if version > VERSION:
                raise SourceError(f"{self.path}: found version {version}, expected at most {VERSION}")
            progress, places = _progress(table.pop("progress"))
            position = EdgePosition(**table, progress=progress)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, SourceError):
                raise
            raise self._damaged(f"{type(error).__name__}: {error}") from None
        numbers = [position.incarnation, position.origin_us, position.step, progress.observed_us, *places]
        if not all(type(number) is int for number in numbers) or min(places, default=0) < 0:
            raise self._damaged("expected whole numbers, rows and offsets from 0")
        return position

    def save(self, position: EdgePosition) -> None:
        """Replace the file.

        Raises:
            SourceError: the file cannot be written, for example because the disk is full.
        """
        try:
            write_atomically(self.path, json.dumps({"version": VERSION, **asdict(position)}))
        except OSError as error:
            raise SourceError(f"{self.path}: the edge's position cannot be written: {error.strerror}") from None

    def _damaged(self, why: str) -> SourceError:
        return SourceError(
            f"{self.path}: the edge's position is damaged ({why}); delete the file to begin at the source's first row"
        )


def _progress(table: dict[str, Any]) -> tuple[FileProgress | LiveProgress, list[int]]:
    """Return the progress, and every number in it that must not be negative."""
    observed_us = table["observed_us"]
    if "partitions" in table:
        partitions = {int(number): _offsets(*found) for number, found in table["partitions"].items()}
        places = [number for at in partitions.values() for number in (at.next, at.oldest, at.mark.digest)]
        return LiveProgress(partitions, observed_us), places
    following, oldest = FilePosition(**table["next"]), FilePosition(**table["oldest"])
    places = [number for place in (following, oldest) for number in (place.row, place.line, place.offset)]
    events: dict[str, FileProgress] = {}
    for stream, kept in table.get("events", {}).items():
        found, more = _progress(kept)
        if not isinstance(found, FileProgress):
            raise TypeError(f"events of {stream!r}: found offsets, expected a place in a file")
        events[stream] = found
        places += [*more, max(0, found.observed_us)]
    return FileProgress(following, oldest, observed_us, events), places


def _offsets(following: int, oldest: int, mark: tuple[str, int] = NO_MARK) -> Offsets:
    topic_id, digest = mark
    if not isinstance(topic_id, str):
        raise TypeError(f"found the topic id {topic_id!r}, expected a text")
    return Offsets(following, oldest, LogMark(topic_id, digest))


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a process that comes after a kill, sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def shared_origin(state: Path, now_us: int, slide_us: int) -> int:
    """Return the event time of the first row, in microseconds: the first edge writes it to ``<state>/origin`` for all.

    It is the first multiple of the slide that lies at least 2 s ahead, so that every edge can have started by then.

    Raises:
        SourceError: the file is damaged, or cannot be written or read.
    """
    path = state / "origin"
    try:
        if not path.exists():
            state.mkdir(parents=True, exist_ok=True)
            draft = state / f"origin.{os.getpid()}"
            draft.write_text(f"{-(-(now_us + 2_000_000) // slide_us) * slide_us}\n", encoding="utf-8")
            with contextlib.suppress(FileExistsError):  # another edge has written it
                os.link(draft, path)
            draft.unlink()
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise SourceError(f"{path}: the time of the first row cannot be kept: {error.strerror}") from None
    if not text.isdecimal():
        raise SourceError(f"{path}: found {text[:80]!r}, expected the event time of the first row in microseconds")
    return int(text)
