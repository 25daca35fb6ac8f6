"""Merging sorted runs: what a merge core does with the parts of a cut SPK.

The runs are cut at common places of the key into blocks that fit a core's cache, and each block is put in order on its
own: both keys and the row's place in the block are packed into one int64, these are sorted (numpy's sort of plain
integers uses the processor's vectors; a heap or an argsort cannot), and the places are read back from the low bits. A
row so costs the same however the runs interleave, and no Python runs per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
Columns = Mapping[str, Column]

BLOCK_ROWS = 1 << 15
"""Rows in a block, about: its keys and one column are 512 KiB."""
_SAMPLES = 16
"""Places a block at which a run's key is looked at to cut evenly."""


def merge_runs(runs: Sequence[Columns], major: str = "time", minor: str = "sensor") -> dict[str, Column]:
    """Merge runs into one table in the order of (major, minor); equal keys stay in the order of the runs.

    Args:
        runs: tables of columns with the same names and types, each with `major` ascending.
        major: integer column that is merged by first.
        minor: integer column that orders rows of equal `major`.

    Raises:
        ValueError: no run, columns that differ, or keys that are not integers.
    """
    if not runs:
        raise ValueError("runs: found none, expected at least one")
    types = _types(runs[0])
    for number, run in enumerate(runs):
        if _types(run) != types or len({len(column) for column in run.values()}) != 1:
            found = {name: f"{column.dtype}[{len(column)}]" for name, column in run.items()}
            raise ValueError(f"run {number}: found columns {found}, expected one length and the types {types}")
        for name in (major, minor):
            if run[name].dtype.kind not in "iu":
                raise ValueError(f"run {number}, column {name}: found {run[name].dtype}, expected integers")
    cuts = _cuts([run[major] for run in runs])
    ends = cuts.sum(axis=0)
    merged = {name: np.empty(int(ends[-1]), dtype=column.dtype) for name, column in runs[0].items()}
    most = int(np.diff(ends).max())
    held = {name: np.empty(most, dtype=column.dtype) for name, column in runs[0].items()}  # else a block pays for pages
    for number in range(len(ends) - 1):
        spans = [slice(*bounds) for bounds in cuts[:, number : number + 2].tolist()]
        first, last = ends[number : number + 2].tolist()
        for name, column in held.items():
            parts = [run[name][span] for run, span in zip(runs, spans, strict=True)]
            np.concatenate(parts, out=column[: last - first])
        place = block_order(held[major][: last - first], held[minor][: last - first])
        for name, column in held.items():
            # No place is out of range; with `clip` numpy writes into `out` without a buffer between.
            np.take(column, place, out=merged[name][first:last], mode="clip")
    return merged


def block_order(major: Column, minor: Column) -> npt.NDArray[np.int64]:
    """Return the places that put rows in the order of (major, minor), equal ones as they stand."""
    rows = len(major)
    if not rows:
        return np.zeros(0, dtype=np.int64)
    least, low = int(major.min()), int(minor.min())
    minor_bits = (int(minor.max()) - low).bit_length()
    place_bits = (rows - 1).bit_length()
    if (int(major.max()) - least).bit_length() + minor_bits + place_bits > 63:
        return np.lexsort((minor, major))
    key = np.subtract(major, least, dtype=np.int64)
    key <<= minor_bits
    key |= np.subtract(minor, low, dtype=np.int64)
    key <<= place_bits
    key |= np.arange(rows)
    key.sort()
    key &= (1 << place_bits) - 1
    return key


def _cuts(keys: Sequence[Column]) -> npt.NDArray[np.int64]:
    """Return int64[runs, blocks + 1]: where each run is cut, so that no key stands on both sides of a cut."""
    lengths = np.array([len(key) for key in keys], dtype=np.int64)
    blocks = max(1, round(int(lengths.sum()) / BLOCK_ROWS))
    stride = max(1, BLOCK_ROWS // (_SAMPLES * len(keys)))
    sample = np.sort(np.concatenate([key[::stride] for key in keys]))
    at = np.unique(sample[np.arange(1, blocks) * len(sample) // blocks]) if blocks > 1 else sample[:0]
    return np.array(
        [
            np.concatenate(([0], np.searchsorted(key, at), [length]))
            for key, length in zip(keys, lengths.tolist(), strict=True)
        ]
    )


def _types(run: Columns) -> dict[str, str]:
    return {name: str(column.dtype) for name, column in run.items()}
