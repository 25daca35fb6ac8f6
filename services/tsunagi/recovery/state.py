"""What is known after a step: the posterior of the missing sensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.low_rank import LowRank, Places
from tsunagi.recovery.symmetric import lower_of, square_of
from tsunagi.runtime.columns import Floats


@dataclass(frozen=True, slots=True)
class State:
    """The posterior after a step, in units of scale around the mean.

    Attributes:
        missing: intp[m], ascending: the missing set Z.
        spread: precision or covariance of X on Z, depending on the form: float64[m, m] with a valid lower triangle; or,
            of a model of low rank, the covariance as a `LowRank` of m sensors.
        x: float64[n]: readings, and on Z the posterior mean; float64[n, k] for k runs with the same missing sets.
        variance: float64[m]: variances of X on Z.
    """

    missing: Places
    spread: Floats | LowRank
    x: Floats
    variance: Floats

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the spread as arrays of a context."""
        if isinstance(self.spread, LowRank):
            return {"own": self.spread.own, "loadings": self.spread.loadings}
        return {"spread": lower_of(self.spread)}


def matrix_of(state: State) -> Floats:
    """Return the spread of a state whose form has whole matrices, float64[m, m], lower triangle valid."""
    assert isinstance(state.spread, np.ndarray)  # noqa: S101 - a state belongs to a form
    return state.spread


def spread_of(arrays: dict[str, npt.NDArray[np.generic]], m: int) -> Floats | LowRank:
    """Read the spread of m missing sensors from the arrays of a context.

    Raises:
        KeyError: there is none.
        ValueError: it is of another number of sensors.
    """
    if "own" in arrays:
        own, loadings = arrays["own"].astype(np.float64), arrays["loadings"].astype(np.float64)
        if own.shape != (m,) or loadings.ndim != 2 or len(loadings) != m or not (own > 0).all():
            raise ValueError(f"found a spread of shape {loadings.shape}, expected {m} sensors")
        return LowRank(loadings, own)
    return square_of(arrays["spread"].astype(np.float64), m)
