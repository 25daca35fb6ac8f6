"""Helpers: sensors of other slots that a slot reads too while it cannot recover lost sensors well enough by itself.

Takao, Sugiura, Ishikawa, Lu, DEIM 2023, section 4.2. Whether a lost value meets (eps, delta) depends on its variance
alone, and that depends on which sensors are read, not on what they read (equation (7)). So helpers can be chosen before
anything is recovered. The choice is greedy: each time the candidate that reduces the variances that are still too great
the most. With the Cholesky factor of what is read, a choice costs one row of it (pivoted Cholesky).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import linalg

from tsunagi.recovery import lapack
from tsunagi.recovery.low_rank import Covariance, LowRankInverse, block_of, variances_of
from tsunagi.recovery.model import Model, half_width
from tsunagi.runtime.columns import Floats

Places = npt.NDArray[np.intp]

CAP = 100
"""Most helpers of a slot, unless the settings say otherwise."""
LOOKS = (512, 4096)
"""Number of candidates that are looked at first, and if these do not suffice: those that vary most together with a
value that is not good enough, given what the slot reads. A look at all 19,000 of a fleet would take seconds and half a
gigabyte, and what a weaker candidate tells is little."""
LEAST_RESIDUAL = 1e-9
"""A candidate tells nothing new if its variance given what is read is below this, in units of scale squared."""
LEAST_VARIANCE = 1e-300
"""Stands for the variance of a sensor that has none, so that nothing is divided by 0."""
TOLD_LEAST = 1e-9
"""What a step tells about the next one is a share of its variance. It counts as this at least, and as 1 minus this at
most, because its logarithm is taken."""


class HelpersError(ValueError):
    """The arguments do not fit together. The message says what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """The helpers that were chosen.

    Attributes:
        chosen: intp[k], the sensors to read too, best first.
        targets: intp[m], the lost sensors of the slot, ascending.
        variance: float64[m], variance of each target with the helpers.
        satisfied: bool[m], whether it is at most the threshold.
        reason: "satisfied"; "cap": the cap was reached first; "no helper": no sensor that is read anywhere is enough.
    """

    chosen: Places
    targets: Places
    variance: Floats
    satisfied: npt.NDArray[np.bool_]
    reason: Literal["satisfied", "cap", "no helper"]


def variance_threshold(eps: float, delta: float) -> float:
    """Return the greatest variance with P(abs(x - mean) <= eps) >= delta, in the square of the units of `eps`.

    Raises:
        HelpersError: eps is not above 0, or delta is not a probability between 0 and 1.
    """
    if not (eps > 0 and 0 < delta < 1):
        raise HelpersError(f"helpers: found eps = {eps}, delta = {delta}, expected eps > 0 and 0 < delta < 1")
    return float((eps / half_width(delta)) ** 2)


def persistence_share(model: Model) -> Floats:
    """Return the share of a sensor's variance that its last step tells, float64[n] in (0, 1): 1 - Q_ii / prior_ii."""
    noise, prior = map(variances_of, model.kept())
    noise = noise / np.maximum(prior, LEAST_VARIANCE)
    return np.asarray(np.clip(1 - noise, TOLD_LEAST, 1 - TOLD_LEAST))


def steps_within(variance: Floats, limit: float | Floats, share: Floats) -> Floats:
    """Return the number of steps of an outage for which values stay within a variance; infinite means for good.

    Args:
        variance: the variance that they reach in the end.
        share: the share of it that a step tells about the next (`told`). After k steps about 1 - share^k of the
            variance is reached; this is exact if F is a multiple of I and the same sensors are read all the time.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.floor(np.log1p(-limit / variance) / np.log(share))
    return np.where(variance > limit, steps, np.inf)


def choose_helpers(
    covariance: Covariance,
    slot: npt.ArrayLike,
    missing: npt.ArrayLike,
    threshold: float | Floats,
    *,
    cap: int = CAP,
    precision: Floats | LowRankInverse | None = None,
) -> Helpers:
    """Choose helpers for one slot by greedy variance reduction.

    Args:
        covariance: that of all n sensors of the fleet, in units of scale.
        slot: the slot's sensors.
        missing: all sensors of the fleet that are lost now, with those of the slot.
        threshold: greatest variance of a value that is good enough (`variance_threshold`): one number, or float64[n].
        cap: most helpers.
        precision: the inverse of `covariance`. It tells at once which values no helper can make good enough,
            so that none is spent on them. Without it the search ends when no candidate reduces any variance.

    Raises:
        HelpersError: an argument is wrong; the message names it.

    Cost: with s sensors of the slot read, c candidates and m targets about s^2 c + s m c, then (s + k) c for the k-th
        helper.
    """
    n = len(covariance)
    own = _places("slot", slot, n)
    lost = np.zeros(n, dtype=bool)
    lost[_places("missing", missing, n)] = True
    if cap < 0:
        raise HelpersError(f"helpers: cap: found {cap}, expected 0 or more")
    limits = np.broadcast_to(np.asarray(threshold, dtype=np.float64), (n,))
    targets, read = own[lost[own]], own[~lost[own]]
    limit = limits[targets]
    if precision is None:
        reachable = np.ones(len(targets), dtype=bool)
    else:
        reachable = best_variance(precision, np.flatnonzero(lost), targets) <= limit
    outside = ~lost
    outside[own] = False
    search = _Search(covariance, read, targets, limit, reachable, np.flatnonzero(outside))
    chosen = search.run(cap)
    satisfied = search.variance <= limit
    if satisfied.all():
        reason: Literal["satisfied", "cap", "no helper"] = "satisfied"
    else:
        reason = "cap" if len(chosen) >= cap and (reachable & ~satisfied).any() else "no helper"
    return Helpers(np.array(chosen, dtype=np.intp), targets, search.variance, satisfied, reason)


class _Search:
    """The greedy search of `choose_helpers`.

    `variance` are the present variances of the targets. With R R' = the covariance of what is read, a candidate's row W
    = R^-1 C gives Cov(target, candidate | read) = C_tc - W_t' W_c; each choice adds one row to W.
    """

    def __init__(
        self,
        covariance: Covariance,
        read: Places,
        targets: Places,
        limit: Floats,
        reachable: npt.NDArray[np.bool_],
        candidates: Places,
    ) -> None:
        self._covariance, self._read, self._targets = covariance, read, targets
        self._limit, self._wanted = limit, reachable
        self._all = candidates
        self._alone = self.variance = self._given(variances_of(covariance)[targets], targets)

    def _given(self, variance: Floats, sensors: Places) -> Floats:
        """Return variances given what the slot reads, and keep the factor."""
        if not len(self._read):
            self._factor = np.empty((0, 0))
            self._W_targets = np.empty((0, len(sensors)))
            return variance
        self._factor = _factor(self._covariance, self._read)
        self._W_targets = self._rows(sensors)
        return np.asarray(np.maximum(variance - np.einsum("it,it->t", self._W_targets, self._W_targets), 0.0))

    def _rows(self, sensors: Places) -> Floats:
        right = np.asfortranarray(block_of(self._covariance, self._read, sensors))
        lapack.trsm(self._factor, right)
        return right

    def run(self, cap: int) -> list[int]:
        """Return the best helpers, at most `cap`: among the likeliest, and if these do not suffice, among more."""
        strength = self._strength() if len(self._all) > LOOKS[0] else np.empty(0)
        chosen: list[int] = []
        for look in LOOKS:
            self.variance = self._alone
            chosen = self._pick(self._strongest(strength, look), cap)
            if look >= len(self._all) or not self._short().any():
                break
        return chosen

    def _short(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self._wanted & (self.variance > self._limit))

    def _strongest(self, strength: Floats, count: int) -> Places:
        """Return so many candidates, ascending."""
        if count >= len(self._all):
            return self._all
        return np.sort(self._all[np.argpartition(-strength, count)[:count]])

    def _strength(self) -> Floats:
        """Return how much each candidate varies together with the value that it could help most, float64[c]."""
        short = self._short()
        every = np.arange(len(self._covariance))
        rows = block_of(self._covariance, self._targets[short], every)
        if len(self._read):  # what the slot reads already counts for no candidate
            known = np.asfortranarray(self._W_targets[:, short])
            lapack.trsm(self._factor, known, transposed=True)
            rows = rows - known.T @ block_of(self._covariance, self._read, every)
        return np.asarray(np.max(np.square(rows), axis=0, initial=0.0)[self._all])

    def _pick(self, candidates: Places, cap: int) -> list[int]:
        """Return the best candidates, until every value is good enough, no candidate helps or the cap is reached."""
        chosen: list[int] = []
        if not (self._short().any() and len(candidates) and cap):
            return chosen
        short = np.flatnonzero(self._short())
        sensors = self._targets[short]
        W = self._rows(candidates) if len(self._read) else np.empty((0, len(candidates)))
        own = variances_of(self._covariance)[candidates] - np.einsum("ic,ic->c", W, W)
        cross = block_of(self._covariance, sensors, candidates)
        if len(self._read):
            cross = cross - self._W_targets[:, short].T @ W
        added = np.empty((min(cap, len(candidates)), len(candidates)))
        count = 0
        variance = self.variance[short]
        limit = self._limit[short]
        free = own > LEAST_RESIDUAL
        while len(chosen) < cap and free.any():
            need = np.maximum(variance - limit, 0.0)
            if not need.any():
                break
            with np.errstate(divide="ignore", invalid="ignore"):
                taken = np.where(free, np.square(cross) / own, 0.0)
            # A reduction below the threshold counts little: it only breaks ties.
            worth = np.minimum(taken, need[:, None]).sum(axis=0) + 1e-6 * taken[need > 0].sum(axis=0)
            best = int(worth.argmax())
            if worth[best] <= 1e-12:
                break
            sensor = int(candidates[best])
            row = (
                block_of(self._covariance, candidates[best : best + 1], candidates)[0]
                - W[:, best] @ W
                - added[:count, best] @ added[:count]
            )
            row /= np.sqrt(own[best])
            pull = cross[:, best] / np.sqrt(own[best])
            variance = np.maximum(variance - pull**2, 0.0)
            cross = cross - pull[:, None] * row
            own = own - row**2
            added[count] = row
            count += 1
            chosen.append(sensor)
            free &= own > LEAST_RESIDUAL
            free[best] = False
        # The variances of all targets are computed, also of the satisfied ones.
        read = np.concatenate([self._read, np.array(chosen, dtype=np.intp)])
        self.variance = variance_given(self._covariance, read, self._targets)
        return chosen


def _factor(covariance: Covariance, read: Places) -> Floats:
    """Return the lower Cholesky factor of what is read; a nugget of rounding's size separates equal sensors."""
    block = block_of(covariance, read, read)
    factor = np.array(block, order="F")
    if lapack.potrf(factor):
        block[np.diag_indices_from(block)] += 1e-10 * float(np.diag(block).max())
        factor = np.array(block, order="F")
        if lapack.potrf(factor):
            raise HelpersError("helpers: covariance: found a negative eigenvalue, expected a covariance")
    return factor


def variance_given(covariance: Covariance, read: Places, targets: Places) -> Floats:
    """Return the variances of the targets given what is read, float64[m]: equation (7)."""
    own = variances_of(covariance)[targets]
    if not len(read) or not len(targets):
        return own
    factor = _factor(covariance, read)
    spill = np.asfortranarray(block_of(covariance, read, targets))
    lapack.trsm(factor, spill)
    return np.asarray(np.maximum(own - np.einsum("it,it->t", spill, spill), 0.0))


def best_variance(precision: Floats | LowRankInverse, lost: Places, targets: Places) -> Floats:
    """Return the targets' variances if all living sensors were read: the diagonal of (precision on the lost)^-1."""
    if not len(lost):  # an edge is out that has no sensors which the model knows; LAPACK complains of empty matrices
        return np.empty(0)
    if isinstance(precision, LowRankInverse):
        try:
            return precision.variances_given_others(lost)[np.searchsorted(lost, targets)]
        except linalg.LinAlgError as error:
            raise HelpersError(f"helpers: precision: {error}") from None
    block = np.asfortranarray(precision[np.ix_(lost, lost)])
    if lapack.potrf(block):
        raise HelpersError("helpers: precision: found a matrix that is not positive definite")
    lapack.trtri(block)
    return np.asarray(np.einsum("ij,ij->j", block, block)[np.searchsorted(lost, targets)])


def _places(name: str, given: npt.ArrayLike, n: int) -> Places:
    found = np.asarray(given)
    if found.dtype == np.bool_:
        found = np.flatnonzero(found)
    places = np.unique(found.astype(np.intp))
    if len(places) and not (places[0] >= 0 and places[-1] < n):
        raise HelpersError(f"helpers: {name}: found sensor {places[-1]}, expected 0 to {n - 1}")
    return places
