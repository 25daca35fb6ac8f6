"""Names as numbers: edges and groups are told apart by any name, and computed with as indices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt


def numbered(names: Iterable[Hashable]) -> tuple[npt.NDArray[np.intp], tuple[Hashable, ...]]:
    """Return each name's number, and the names by number, in the order in which they come first."""
    numbers: dict[Hashable, int] = {}
    of = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.intp)
    return of, tuple(numbers)
