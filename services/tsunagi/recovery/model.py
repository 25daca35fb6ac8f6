"""The Gaussian model with which lost values are recovered (architecture, "Recovery").

X(t+1) = mean + drift + F (X(t) - mean) + noise, with noise ~ N(0, Q), and N(mean, prior) before anything was read; the
mean may have a time-of-day profile. This is the joint normal N(mu'', Sigma'') of two neighbouring steps (Takao,
Sugiura, Ishikawa, Lu, DEIM 2023, equations (4), (5)), in the form that the filter needs. All matrices are in units of
each sensor's standard deviation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.low_rank import Covariance, LowRank
from tsunagi.recovery.model_checks import (
    Calibrated,
    check_calibration,
    check_joint,
    check_names,
    check_scale,
    checked,
    is_diagonal,
    make_exact,
    right_divide,
    symmetrised,
)
from tsunagi.recovery.model_format import LOADINGS, MOMENTS, PROFILE, pack, read_bytes, unpack, write_atomically
from tsunagi.recovery.symmetric import lower_of, square_of
from tsunagi.runtime.columns import Floats

if TYPE_CHECKING:
    from typing import Self

ZERO_VARIANCE_SCALE = 1.0
"""Scale of a sensor whose given variance is zero. Any scale would do, since its matrices hold zeros."""
_PART = "_part"
"""Attribute in which a model keeps a part of itself that was selected in advance."""
_COMMON = ("names", "mean", "scale", "profile", "calibration", "about")
"""Attributes that a model of the same sensors with other matrices has too."""
DENSE_AT_MOST = 1000
"""A model of low rank with up to this many sensors is given whole matrices: its filter is as fast, and can do more."""


@dataclass(frozen=True, eq=False)
class Model:
    """A linear Gaussian state-space model of n sensors whose readings are exact.

    Attributes:
        names: names of the sensors, length n, no name twice.
        mean: float64[n], sensor units: mean of X(t) (block B of the paper's joint).
        scale: float64[n], sensor units, > 0: standard deviation of each sensor, the unit of everything below.
        transition: float64[n] (a diagonal F) or float64[n, n]: F = Sigma''_AB Sigma''_BB^-1.
        Q: float64[n, n], covariance of a step's noise: Sigma''_AA - F Sigma''_BA.
        prior: float64[n, n], covariance of X before anything was read: Sigma''_BB.
        drift: float64[n]: mean of block A minus mean of block B; zeros for a stationary model.
        profile: float64[period, n], units of scale: row step % period is added to `mean`; None if there is no profile.
        calibration: ((delta, factor), ...) ascending: the factors on the model's standard deviation with which
            intervals of probability delta cover that share of hidden history; empty means 1 everywhere.
        about: facts about the fit (period, sensors left out, nugget, scores), JSON values; part of the file.
        moments: by lag, the covariance of (X(t), X(t - lag)) around mean and profile, float64[2n, 2n], in units of
            scale; for lag 0 that of X(t), float64[n, n]. Models of other structures can be made from them
            (`averaging.ModelAverage`). Empty if they are not known; the filter does not need them.
    """

    names: tuple[str, ...]
    mean: Floats
    scale: Floats
    transition: Floats
    Q: Floats
    prior: Floats
    drift: Floats
    profile: Floats | None = None
    calibration: Calibrated = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    moments: Mapping[int, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.names)
        check_names(self.names)
        shapes = {"mean": (n,), "scale": (n,), "drift": (n,), "Q": (n, n), "prior": (n, n)}
        shapes["transition"] = (n,) if self.transition.ndim == 1 else (n, n)
        if self.profile is not None:
            shapes["profile"] = (max(1, len(self.profile)), n)
        for key, shape in shapes.items():
            array = checked(key, getattr(self, key), shape, n)
            if key in ("Q", "prior"):
                make_exact(key, array)
            array.setflags(write=False)
            object.__setattr__(self, key, array)
        check_scale(self.names, self.scale)
        moments: dict[int, Floats] = {}
        for lag, given in sorted(self.moments.items()):
            array = np.array(given, dtype=np.float64)
            size = 2 * n if lag else n
            if lag < 0 or array.shape != (size, size) or not np.isfinite(array).all():
                raise ModelError(
                    f"model: moments of lag {lag}: found shape {array.shape}, expected {(size, size)}, finite"
                )
            make_exact(f"moments of lag {lag}", array)
            array.setflags(write=False)
            moments[lag] = array
        object.__setattr__(self, "moments", moments)
        check_calibration(self.calibration)

    def __len__(self) -> int:
        return len(self.names)

    def mean_at(self, step: int) -> Floats:
        """Return the mean at a step, float64[n], sensor units."""
        if self.profile is None:
            return self.mean
        found: Floats = self.mean + self.scale * self.profile[step % len(self.profile)]
        return found

    @property
    def diagonal(self) -> bool:
        """Whether F is kept as its diagonal alone."""
        return self.transition.ndim == 1

    @property
    def F(self) -> Floats:  # noqa: N802 - the literature's symbol
        """F, float64[n, n], in units of scale."""
        return np.diag(self.transition) if self.diagonal else self.transition

    def apply_transition(self, x: Floats) -> Floats:
        """Return F x, for x of float64[n] or float64[n, k]."""
        if not self.diagonal:
            return self.transition @ x
        return self.transition * x if x.ndim == 1 else self.transition[:, None] * x

    def predict(self, x: Floats) -> Floats:
        """Return drift + F x, the next step's mean in units of scale around `mean`; float64[n] or float64[n, k]."""
        return self.apply_transition(x) + (self.drift if x.ndim == 1 else self.drift[:, None])

    def inflation(self, delta: float) -> float:
        """Return the factor on sd for intervals of probability `delta`, interpolated between the calibrated levels."""
        if not self.calibration:
            return 1.0
        levels, factors = zip(*self.calibration, strict=True)
        # It is interpolated over the multiple of sd and not over the level: factors change in the tails.
        multiples = [half_width(level) for level in levels]
        return float(np.interp(half_width(delta), multiples, factors))

    @classmethod
    def from_joint(cls, mean: npt.ArrayLike, joint: npt.ArrayLike, names: Sequence[str] | None = None) -> Self:
        """Return the model of a joint normal of two neighbouring steps, given in sensor units.

        Args:
            mean: mu'': float64[2n], block A (time t+1) first, then block B (time t); or float64[n] for both.
            joint: Sigma'': float64[2n, 2n], blocks in the same order.
            names: names of the n sensors; by default s0, s1, ...

        Raises:
            ModelError: the shapes do not fit, or the joint is not a covariance.

        In equation (4), mu''_B is the mean that is subtracted from X(t), as in the conditional normal; in a stationary
        model the two means are equal.
        """
        if names is None:
            names = [f"s{place}" for place in range(len(np.asarray(joint)) // 2)]
        n = len(names)
        mu, sigma = np.asarray(mean, dtype=np.float64), np.asarray(joint, dtype=np.float64)
        if mu.shape == (n,):
            mu = np.concatenate([mu, mu])
        if mu.shape != (2 * n,) or sigma.shape != (2 * n, 2 * n):
            raise ModelError(
                f"joint of {n} sensors: found mean {mu.shape} and covariance {sigma.shape}, "
                f"expected ({2 * n},) or ({n},), and ({2 * n}, {2 * n})"
            )
        if not (np.isfinite(mu).all() and np.isfinite(sigma).all()):
            raise ModelError("joint: found NaN or infinity, expected finite numbers")
        if not np.allclose(sigma, sigma.T, rtol=0, atol=1e-9 * max(1e-300, float(np.abs(sigma).max()))):
            raise ModelError("joint: the covariance is not symmetric")
        variance = np.diag(sigma)[n:]
        if (np.diag(sigma) < 0).any():
            raise ModelError("joint: found a negative variance on the diagonal")
        scale = np.where(variance > 0, np.sqrt(np.maximum(variance, 0.0)), ZERO_VARIANCE_SCALE)
        twice = np.concatenate([scale, scale])
        sigma = sigma / np.outer(twice, twice)
        sigma = (sigma + sigma.T) / 2
        check_joint(sigma)
        prior, cross = sigma[n:, n:], sigma[:n, n:]
        transition = right_divide(cross, prior)
        return cls(
            names=tuple(names),
            mean=mu[n:],
            scale=scale,
            transition=np.diag(transition).copy() if is_diagonal(transition) else transition,
            Q=symmetrised(sigma[:n, :n] - transition @ cross.T),
            prior=prior,
            drift=(mu[:n] - mu[n:]) / scale,
        )

    def joint(self) -> tuple[Floats, Floats]:
        """Return mu'' and Sigma'' of the paper, float64[2n] and float64[2n, 2n] in sensor units, block A first."""
        cross = self.apply_transition(self.prior)
        ahead = self._ahead()
        sigma = np.block([[ahead, cross], [cross.T, self.prior]])
        twice = np.concatenate([self.scale, self.scale])
        return np.concatenate([self.mean + self.drift * self.scale, self.mean]), sigma * np.outer(twice, twice)

    def select(self, names: Sequence[str]) -> Model:
        """Return the model of some of the sensors, in the given order.

        It is the conditional model of these sensors alone, made from their joint: X_S(t+1) given X_S(t). A block of F
        would be wrong, since F is meant to be applied together with the sensors that are left out.

        Raises:
            ModelError: a name is unknown or stands twice, or there is no name.
        """
        kept: Model | None = self.__dict__.get(_PART)
        if kept is not None and kept.names == tuple(names):
            return kept
        places = {name: place for place, name in enumerate(self.names)}
        unknown = [name for name in names if name not in places]
        if unknown:
            raise ModelError(f"model: found no sensor {unknown[0]!r} among its {len(self)} ({len(unknown)} unknown)")
        if tuple(names) == self.names:
            return self
        if not names:
            raise ModelError("model: found no sensors to select, expected at least one")
        return self._part_of(tuple(names), np.array([places[name] for name in names], dtype=np.intp))

    def _part_of(self, names: tuple[str, ...], keep: npt.NDArray[np.intp]) -> Model:
        """Return the model of the sensors at these places."""
        block = np.ix_(keep, keep)
        if self.diagonal:  # with a diagonal F the blocks are the conditional model already
            transition, noise = self.transition[keep], self.Q[block]
        else:
            cross = self.apply_transition(self.prior)[block]
            transition = right_divide(cross, self.prior[block])
            noise = symmetrised(self._ahead()[block] - transition @ cross.T)
        return replace(
            self,
            names=names,
            mean=self.mean[keep],
            scale=self.scale[keep],
            transition=transition,
            Q=noise,
            prior=self.prior[block],
            drift=self.drift[keep],
            profile=None if self.profile is None else self.profile[:, keep],
            moments={lag: array[np.ix_(*[_both(keep, lag, len(self))] * 2)] for lag, array in self.moments.items()},
        )

    def with_words(self, *, about: Mapping[str, Any], calibration: Calibrated | None = None) -> Model:
        """Return the same model with another `about` (and calibration); the two share their matrices."""
        other = copy(self)
        for derived in ("identity", _PART):
            other.__dict__.pop(derived, None)
        object.__setattr__(other, "about", about)
        if calibration is not None:
            check_calibration(calibration)
            object.__setattr__(other, "calibration", calibration)
        return other

    def with_matrices(self, *, transition: Floats, Q: Floats, prior: Floats) -> Model:
        """Return the model of the same sensors with these matrices, and without drift and moments."""
        return Model(transition=transition, Q=Q, prior=prior, drift=np.zeros(len(self)), **self._common())

    def with_low_rank(self, *, transition: Floats, noise: LowRank, known: LowRank) -> LowRankModel:
        """Return the model of the same sensors with Q and prior of low rank, and without drift and moments."""
        return LowRankModel(transition=transition, noise=noise, known=known, **self._common())

    def _common(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in _COMMON}

    def around(self, mean: Floats, profile: Floats | None) -> Model:
        """Return the same model around another mean, float64[n], and profile, float64[period, n]."""
        other = self.with_words(about=self.about)
        n = len(self)
        object.__setattr__(other, "mean", checked("mean", mean, (n,), n))
        if profile is not None:
            profile = checked("profile", profile, (max(1, len(profile)), n), n)
        object.__setattr__(other, "profile", profile)
        return other

    def kept(self) -> tuple[Covariance, Covariance]:
        """Return Q and the prior as this model keeps them: as whole matrices, or of low rank."""
        return self.Q, self.prior

    def keep_part(self, part: Model) -> None:
        """Keep a model that `select` has made, so that `select` returns it for the same sensors."""
        if part is not self:
            self.__dict__[_PART] = part

    def _ahead(self) -> Floats:
        """Sigma''_AA, in units of scale."""
        return symmetrised(self.apply_transition(self.apply_transition(self.prior).T) + self.Q)

    @cached_property
    def identity(self) -> str:
        """SHA-256 of the model file's bytes, hexadecimal: the name of a model in ModelChange records."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the bytes of the model file; the same model gives the same bytes (docs/reference/model-file.md)."""
        arrays = {"mean": self.mean, "scale": self.scale, "drift": self.drift, "transition": self.transition}
        arrays |= self._covariances()
        if self.profile is not None:
            arrays[PROFILE] = self.profile
        arrays |= {f"{MOMENTS}{lag}": lower_of(moments) for lag, moments in self.moments.items()}
        words = {
            "names": list(self.names),
            "calibration": [list(pair) for pair in self.calibration],
            "about": dict(self.about),
        }
        return pack(words, arrays)

    def _covariances(self) -> dict[str, Floats]:
        """Return the arrays of a model file that hold Q and the prior."""
        return {"noise": lower_of(self.Q), "prior": lower_of(self.prior)}

    @staticmethod
    def from_bytes(data: bytes, source: str) -> Model:
        """Read the bytes of a model file; `source` is its name in errors.

        Raises:
            ModelError: they are not a model; the message names the source, what was found and what was expected.
        """
        try:
            words, arrays = unpack(data)
            names = tuple(str(name) for name in words["names"])
            lags = {int(name.removeprefix(MOMENTS)): name for name in arrays if name.startswith(MOMENTS)}
            common: dict[str, Any] = {key: arrays[key] for key in ("mean", "scale", "transition")}
            common["profile"] = arrays.get(PROFILE)
            common["calibration"] = tuple((float(delta), float(factor)) for delta, factor in words["calibration"])
            common["about"] = dict(words["about"])
            if f"noise{LOADINGS}" in arrays:
                noise, known = (LowRank(arrays[key + LOADINGS], arrays[key]) for key in ("noise", "prior"))
                return LowRankModel(names, noise=noise, known=known, **common)
            return Model(
                names=names,
                Q=square_of(arrays["noise"], len(names)),
                prior=square_of(arrays["prior"], len(names)),
                drift=arrays["drift"],
                **common,
                moments={lag: square_of(arrays[name], (2 if lag else 1) * len(names)) for lag, name in lags.items()},
            )
        except ModelError as error:
            raise ModelError(f"{source}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{source}: the header is not a model's: {type(error).__name__}: {error}") from None

    def save(self, path: Path) -> str:
        """Write the model file, completely or not at all; return its SHA-256, hexadecimal."""
        return write_atomically(path, self.to_bytes())

    @staticmethod
    def load(path: Path) -> Model:
        """Read a model file.

        Raises:
            ModelError: the file is missing, truncated, damaged or of another version; the message names it.
        """
        return Model.from_bytes(read_bytes(path), str(path))


class LowRankModel(Model):
    """A `Model` whose F is diagonal and whose Q and prior are of low rank: n r numbers instead of n^2.

    The model of twenty thousand sensors would be a file of 3.2 GB; with 64 shared causes it has 20 MB.
    `dataclasses.replace` cannot be used with it, since its `Q` and `prior` are no attributes.

    Args:
        names, mean, scale, profile, calibration, about: as in `Model`.
        transition: float64[n], the diagonal of F.
        noise, known: Q and the prior.
    """

    noise: LowRank
    known: LowRank

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        mean: Floats,
        scale: Floats,
        transition: Floats,
        noise: LowRank,
        known: LowRank,
        profile: Floats | None = None,
        calibration: Calibrated = (),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        n = len(names)
        check_names(names)
        for name, value in (("names", names), ("calibration", calibration), ("about", about or {}), ("moments", {})):
            object.__setattr__(self, name, value)
        arrays = {"mean": mean, "scale": scale, "transition": transition, "drift": np.zeros(n)}
        object.__setattr__(self, "profile", None)
        if profile is not None:
            arrays["profile"] = profile
        for key, given in arrays.items():
            shape = (max(1, len(given)), n) if key == "profile" else (n,)
            object.__setattr__(self, key, checked(key, given, shape, n))
        check_scale(names, self.scale)
        check_calibration(calibration)
        for key, part in (("noise", noise), ("known", known)):
            loadings = checked(f"loadings of {key}", part.loadings, (n, part.rank), n)
            own = checked(f"own variances of {key}", part.own, (n,), n)
            if not (own > 0).all():
                raise ModelError(f"model: own variances of {key}: found {own.min()}, expected more than 0")
            object.__setattr__(self, key, LowRank(loadings, own))

    @property
    def Q(self) -> Floats:  # noqa: N802 - the literature's symbol
        """Q, float64[n, n], made anew each time."""
        return self.noise.dense()

    @property
    def prior(self) -> Floats:
        """The covariance of X before anything was read, float64[n, n], made anew each time."""
        return self.known.dense()

    def dense(self) -> Model:
        """Return the same model with whole matrices."""
        prior = self.prior
        share = float(self.noise.own[0] / self.known.own[0])
        same = self.noise.is_near(self.known.times(share))  # then Q is that share to the last bit (`forms.choose_form`)
        return self.with_matrices(transition=self.transition, Q=share * prior if same else self.Q, prior=prior)

    def kept(self) -> tuple[LowRank, LowRank]:
        return self.noise, self.known

    def usual(self) -> Model:
        """Return the same model, with whole matrices if it has few sensors."""
        return self.dense() if len(self) <= DENSE_AT_MOST else self

    def _covariances(self) -> dict[str, Floats]:
        parts = {"noise": self.noise, "prior": self.known}
        return {key: part.own for key, part in parts.items()} | {
            key + LOADINGS: part.loadings for key, part in parts.items()
        }

    def _part_of(self, names: tuple[str, ...], keep: npt.NDArray[np.intp]) -> Model:
        part = LowRankModel(
            names,
            mean=self.mean[keep],
            scale=self.scale[keep],
            transition=self.transition[keep],
            noise=self.noise.select(keep),
            known=self.known.select(keep),
            profile=None if self.profile is None else self.profile[:, keep],
            calibration=self.calibration,
            about=self.about,
        )
        return part.usual()


def _both(keep: npt.NDArray[np.intp], lag: int, n: int) -> npt.NDArray[np.intp]:
    """Return the rows of these sensors in the moments of a lag."""
    return np.concatenate([keep, n + keep]) if lag else keep


def half_width(delta: float) -> float:
    """Return the half width, in standard deviations, of the central interval of probability delta (equation (6))."""
    return NormalDist().inv_cdf((1 + delta) / 2)
