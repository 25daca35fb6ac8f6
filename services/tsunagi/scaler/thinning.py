"""Keeps what was seen at what time in bounded memory, however long that time is."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

MOST = 256
"""Most sights that are kept. Beyond it every second one is dropped: a long time is then known less exactly, by a
hundredth of it."""


def thin(sights: deque[Any]) -> bool:
    """Drop every second one, from the second on, if there are too many.

    Returns:
        Whether it did so. Then the next ones should be twice as far apart.
    """
    if len(sights) <= MOST:
        return False
    kept = list(islice(sights, 0, None, 2))
    sights.clear()
    sights.extend(kept)
    return True
