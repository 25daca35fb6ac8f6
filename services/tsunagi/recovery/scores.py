"""How much each candidate for a slot's model errs, by the length of an outage and by the share that is missing.

Which structure is best depends on both: the more is missing, the more the past must tell. What counts is the squared
error of the values that are missing at present. So the errors at each missing share are weighted by how many values
were missing at that share lately.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsunagi.recovery.calibration import SHADOW_STEPS
from tsunagi.recovery.search import Candidate
from tsunagi.recovery.trial import score_of
from tsunagi.runtime.columns import Floats

ELSEWHERE = 0.5
"""Weight of an error for another missing share than its own: a candidate that errs more at one share mostly does at the
others."""
WHOLE_WEIGHT = 0.1
"""Weight of the fit's trial with all edges out, compared with the others: errors are great there, and soon known."""
MISSING_HALF_LIFE = 100.0
"""Half-life, in steps, of what is known about how much was missing."""
USUAL_MISSING = 0.1
"""Share of the values that counts as missing at the beginning, with one edge out."""


class Scores:
    """Squared errors of candidates by length of outage, with one edge out, half of the edges, or all.

    An error at a share in between counts for both neighbours, by its distance from them.

    Args:
        candidates: the candidates with their errors in the fit's trials.
        edges: number of edges of the slot.
        values: number of values of shadow failures that have the weight of these errors.
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
        """Take note of the share of the sensors that was missing at a step."""
        self._missing = 0.5 ** (1 / MISSING_HALF_LIFE) * self._missing + share * self._weights(share)

    def add(self, length: int, share: float, squares: Floats, count: int) -> None:
        """Add sums of squared errors, float64[candidates], over `count` values of a shadow failure.

        Args:
            length: length of the failure, one of `SHADOW_STEPS`.
            share: share of the sensors that is missing, those of the shadow failure included.
        """
        place, weights = int(np.searchsorted(self._lengths, length)), ELSEWHERE + self._weights(share)
        self._squares[:, :, place] += np.outer(weights, squares)
        self._counts[:, place] += count * weights

    def fade(self, kept: float) -> None:
        """Reduce the weight of all errors so far by a factor."""
        self._squares *= kept
        self._counts *= kept

    def means(self) -> Floats:
        """Return mean squared errors, float64[shares, candidates, lengths]."""
        return np.asarray(self._squares / self._counts[:, None, :])

    def now(self) -> Floats:
        """Return the score of each candidate for the share missing lately, float64[candidates]; lower is better.

        The score is that of `trial.score_of`.
        """
        missing = self._missing + USUAL_MISSING * self._weights(0.0)
        return score_of(np.einsum("s,scl->cl", missing / missing.sum(), self.means()))

    def _weights(self, share: float) -> Floats:
        """Return how much a missing share belongs to each of `_shares`, float64; the sum is 1."""
        places = np.arange(len(self._shares))
        return np.asarray(np.maximum(0.0, 1 - np.abs(places - np.interp(share, self._shares, places))))
