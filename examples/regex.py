"""Regular-expression matching on messages of 1 KB, as in ElasticStream's experiments.

A slot's log holds numbers, so a tuple is a message's number, and the message is made of it where it is analysed: the
same text on every worker. Before it matches, the operator idles for a while, as the paper's does: its load then stands
for that of a real analysis. Of the messages those that match go out, each under its number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from examples.files import generate, write
from tsunagi import Frame, Operator, OperatorError, SlotConfig

MESSAGE_BYTES = 1024
WORDS = ("rain", "train", "late", "station", "Tokyo", "crowd", "ok", "home", "again", "now", "stream", "quake")
FEEDS = 8


def message(number: float) -> str:
    """Return the text of a number: `MESSAGE_BYTES` characters."""
    # Not for secrets; Python keeps what a seeded generator draws the same from release to release.
    chance = random.Random(int(number))
    words: list[str] = []
    length = 0
    while length < MESSAGE_BYTES:
        words.append(chance.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:MESSAGE_BYTES]


class Match(Operator):
    """Keeps the messages in which `pattern` is found.

    Args:
        idle: turns of an idle loop before each match.
    """

    def __init__(self, config: SlotConfig, *, pattern: str = r"quake (now|again)", idle: int = 1000) -> None:
        del config
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise OperatorError(f"match: pattern: found {pattern!r}: {error}") from None
        if idle < 0:
            raise OperatorError(f"match: idle: found {idle}, expected 0 or more")
        self._idle = idle

    def process(self, frame: Frame) -> Sequence[Frame]:
        kept = frame.keep(np.array([self._matches(value) for value in frame.mean.tolist()], dtype=bool))
        return (kept,) if len(kept.mean) else ()

    def _matches(self, number: float) -> bool:
        if not np.isfinite(number):
            return False
        for _ in range(self._idle):
            pass
        return self._pattern.search(message(number)) is not None


def make(out: Path, rows: int, chance: np.random.Generator) -> None:
    """Write feeds of message numbers, and a configuration that matches them."""
    names = [f"feed-{number}" for number in range(FEEDS)]
    numbers = chance.permutation(rows * FEEDS).reshape(rows, FEEDS).astype(np.float64)
    write(out, names, numbers, {"use": "examples.regex:Match", "pattern": r"quake (now|again)", "idle": 1000})


if __name__ == "__main__":
    generate(__doc__ or "", make)
