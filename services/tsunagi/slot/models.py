"""The recovery models of a slot: which one is in force, and of which model it is a refit."""

from __future__ import annotations

from collections.abc import Callable

from tsunagi.recovery.model import Model

INVERSES = 10.0
"""To make a filter of n sensors takes less than this many inverses of an n x n matrix, n^3 multiplications each."""

LOADING = 4000.0
"""Multiplications for each pair of the slot's sensors that take as long as to read a model's file and compute its hash.
The file may hold ten times as many sensors as the slot has."""

Announce = Callable[[float], None]
"""Is called with the number of multiplications before the slot does something that takes long."""

LoadModel = Callable[[str], Model]
"""Returns the model with a SHA-256; raises ModelError if the store has no such file."""


class ModelRegister:
    """The models that a slot's log has put in force.

    Attributes:
        sha256: SHA-256 of the model in force; "" = there is none.
        refit_of: SHA-256 of the model that the one in force is a refit of; "" = it is no refit.
        base: the model that calibration and helpers use. It covers the whole fleet: the model in force, or the one that
            this is a refit of; None = there is none.
        width: how many sensors the slot has; 0 = its settings are not known.
    """

    def __init__(self, load_model: LoadModel, announce: Announce) -> None:
        self.sha256 = ""
        self.refit_of = ""
        self.base: Model | None = None
        self.width = 0
        self._load_model = load_model
        self._announce = announce

    @property
    def base_sha256(self) -> str:
        """The SHA-256 of `base`."""
        return self.refit_of or self.sha256

    def load(self, sha256: str) -> Model:
        """Return a model. The model's size is not known before, so the slot's size says how much work is announced.

        Raises:
            ModelError: the model store lacks the model.
            PendingError: the model is being loaded by another thread. The announced work lasts until it is ready.
        """
        width = float(self.width)
        self._announce(LOADING * width**2 + INVERSES * width**3)
        return self._load_model(sha256)

    def restore(self, sha256: str, refit_of: str) -> None:
        """Go on with the models that a context (the slot's whole state at one offset of its log) names.

        Raises:
            ModelError: the model store lacks the model.
        """
        self.sha256, self.refit_of = sha256, refit_of
        self.base = self.load(self.base_sha256) if self.base_sha256 else None
        self.announce_filter(self.base)

    def put_in_force(self, sha256: str, refit_of: str) -> Model | None:
        """Put a model in force and return it; `sha256` = "" means that no model is in force from now on.

        Raises:
            ModelError: the model store lacks the model. Nothing has changed then.
        """
        model = self.load(sha256) if sha256 else None
        self.sha256, self.refit_of = sha256, refit_of
        self.announce_filter(model)
        if not refit_of:
            self.base = model
        return model

    def drop_refit(self) -> None:
        """Put the base in force again, since the slot's sensors have changed since the refit was made."""
        self.sha256, self.refit_of = self.base_sha256, ""

    def announce_filter(self, model: Model | None) -> None:
        """Announce the work to make a filter of a model for the slot's sensors: a few inverses and products."""
        if model is not None and self.width:
            wide = 0 if model.diagonal else len(model)
            self._announce(INVERSES * float(self.width**3 + wide**3))

    def announce_helpers(self, count: int) -> None:
        """Announce the work to make a filter of the slot's sensors and so many helpers."""
        if self.base is not None and count:
            self._announce(INVERSES * float(self.width + count) ** 3)
