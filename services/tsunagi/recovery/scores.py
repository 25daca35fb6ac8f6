"""How little each candidate for a slot's model errs, by how long an outage is and by how much is missing.

Which structure is best hangs on both: the more is missing, the more the past must tell. What counts is the squared
error of the values that are missing now, so errors at each share missing weigh by how many values were missing at it
lately.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsunagi.recovery.calibration import SHADOW_STEPS
from tsunagi.recovery.search import Candidate
from tsunagi.recovery.trial import score_of
from tsunagi.runtime.columns import Floats

ELSEWHERE = 0.5
"""What an error weighs where another share is missing: what errs more at one share mostly does at the others."""
WHOLE_WEIGHT = 0.1
"""What the fit's trial with all edges out weighs, beside the others: errors are great there, and soon known."""
MISSING_HALF_LIFE = 100.0
"""Steps after which it weighs half how much was missing."""
USUAL_MISSING = 0.1
"""Share of a step's values with which it is begun: missing with one edge out."""


class Scores:
    """Squared errors of candidates by length of outage, with one edge out, half of them, or all.

    What lies between two of these shares counts for both, by its distance.

    Args:
        candidates: with their errors in the fit's trials.
        edges: of the slot.
        values: how many values of shadow failures these errors weigh as much as.
    """

    def __init__(self, candidates: Sequence[Candidate], edges: int, values: float) -> None:
        self._lengths = np.sort(SHADOW_STEPS)
        self._shares = np.array([1, (edges + 1) // 2, edges]) / edges
        k = len(self._lengths)
        of = [(each.squares, each.half or each.squares, each.whole or each.half or each.squares) for each in candidates]
        rows = [[(squares + squares[-1:] * k)[:k] for squares in kind] for kind in zip(*of, strict=True)]
        counts = np.maximum(values * self._lengths / self._lengths.sum(), 1e-9)
        self._counts = np.outer([1.0, 1.0, WHOLE_WEIGHT], counts)  # float64[shares, lengths]
        self._squares = np.array(rows) * self._counts[:, None, :]  # float64[shares, candidates, lengths]
        self._missing = np.zeros(len(self._shares))

    def saw_missing(self, share: float) -> None:
        """Take in which share of the sensors was missing at a step."""
        self._missing = 0.5 ** (1 / MISSING_HALF_LIFE) * self._missing + share * self._weights(share)

    def add(self, length: int, share: float, squares: Floats, count: int) -> None:
        """Take in sums of squared errors, float64[candidates], of so many values of a shadow failure.

        Args:
            length: of the failure, of `SHADOW_STEPS`.
            share: of the sensors that are missing, those of the shadow failure among them.
        """
        place, weights = int(np.searchsorted(self._lengths, length)), ELSEWHERE + self._weights(share)
        self._squares[:, :, place] += np.outer(weights, squares)
        self._counts[:, place] += count * weights

    def fade(self, kept: float) -> None:
        """Let errors seen so far weigh less."""
        self._squares *= kept
        self._counts *= kept

    def means(self) -> Floats:
        """Return mean squared errors, float64[shares, candidates, lengths]."""
        return np.asarray(self._squares / self._counts[:, None, :])

    def now(self) -> Floats:
        """Return each candidate's score with as much missing as lately, float64[candidates]; the lower the better.

        See `trial.score_of`.
        """
        missing = self._missing + USUAL_MISSING * self._weights(0.0)
        return score_of(np.einsum("s,scl->cl", missing / missing.sum(), self.means()))

    def _weights(self, share: float) -> Floats:
        """Return how far a share of missing sensors belongs to each of `_shares`, float64 of sum 1."""
        places = np.arange(len(self._shares))
        return np.asarray(np.maximum(0.0, 1 - np.abs(places - np.interp(share, self._shares, places))))
