"""Numbers for names: edges and groups may have any names, and are computed with as indices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt


def numbered(names: Iterable[Hashable]) -> tuple[npt.NDArray[np.intp], tuple[Hashable, ...]]:
    """Return the number of each name, and the names by number, in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    of = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.intp)
    return of, tuple(numbers)
