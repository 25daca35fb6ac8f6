"""Messages of 1 KB for queries/regex.sql, which looks for a regular expression in each of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from examples.files import generate, write_tuples

MESSAGE_BYTES = 1024
WORDS = ("rain", "train", "late", "station", "Tokyo", "crowd", "ok", "home", "again", "now", "stream", "quake")
FEEDS = 8


def message(chance: np.random.Generator) -> str:
    """Return a drawn text of `MESSAGE_BYTES` characters."""
    return " ".join(chance.choice(WORDS, size=MESSAGE_BYTES // 3))[:MESSAGE_BYTES]


def make(out: Path, rows: int, chance: np.random.Generator) -> None:
    """Write feeds of messages, and a configuration."""
    names = [f"feed-{number}" for number in range(FEEDS)]
    messages = [(names[row % FEEDS], message(chance)) for row in range(rows)]
    write_tuples(out, "regex.sql", names, ("feed", "body"), messages, interval_s=0.01)


if __name__ == "__main__":
    generate(__doc__ or "", make, "quakes")
