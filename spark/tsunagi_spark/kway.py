"""Merges sorted runs: the work of a merge core on the parts of a cut SPK.

The runs are cut at common keys into blocks that fit into a core's cache, and each block is sorted on its own. Both keys
and the row's place in the block are packed into one int64; these numbers are sorted (numpy's sort of plain integers
uses the processor's vector instructions; a heap or an argsort cannot), and the places are read from the low bits. So
the cost of a row does not depend on how the runs interleave, and no Python code runs for a single row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
Columns = Mapping[str, Column]

BLOCK_ROWS = 1 << 15
"""Number of rows in a block, roughly: its keys and one column take 512 KiB, which fit into a core's cache."""
_SAMPLES = 16
"""Number of places for each block at which a run's keys are sampled, so that blocks become equally long."""


def merge_runs(runs: Sequence[Columns], major: str = "time", minor: str = "sensor") -> dict[str, Column]:
    """Merge runs into one table in the order of (major, minor); rows with equal keys keep the order of the runs.

    Args:
        runs: tables of columns with the same names and types; in each, `major` is ascending.
        major: integer column by which rows are ordered first.
        minor: integer column that orders rows with equal `major`.

    Raises:
        ValueError: there is no run, columns differ, or keys are not integers.
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
    # without these, each block would pay for new pages of memory
    held = {name: np.empty(most, dtype=column.dtype) for name, column in runs[0].items()}
    for number in range(len(ends) - 1):
        spans = [slice(*bounds) for bounds in cuts[:, number : number + 2].tolist()]
        first, last = ends[number : number + 2].tolist()
        for name, column in held.items():
            parts = [run[name][span] for run, span in zip(runs, spans, strict=True)]
            np.concatenate(parts, out=column[: last - first])
        place = block_order(held[major][: last - first], held[minor][: last - first])
        for name, column in held.items():
            # Every place is in range; with `clip` numpy writes into `out` without a buffer.
            np.take(column, place, out=merged[name][first:last], mode="clip")
    return merged


def block_order(major: Column, minor: Column) -> npt.NDArray[np.int64]:
    """Return the places that put rows in the order of (major, minor); equal rows keep their order."""
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
    """Return int64[runs, blocks + 1]: where each run is cut, so that no key is on both sides of a cut."""
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
