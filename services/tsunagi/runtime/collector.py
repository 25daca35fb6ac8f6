"""Python's cyclic garbage collector, as a process wants it that makes many small objects and hardly any cycles.

By default it looks through the young objects at every 700 that are made: at a hundred thousand records a second that
is a fifth of the time, and it finds nothing. What a worker makes is freed by its reference counts.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 10_000, 10, 10


def relax() -> None:
    """Look seldom, and never again at what is there now; call it once everything is set up."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
