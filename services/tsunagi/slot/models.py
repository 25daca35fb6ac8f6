"""The recovery models of a slot: which is in force, and which one that follows from."""

from __future__ import annotations

from collections.abc import Callable

from tsunagi.recovery.model import Model

INVERSES = 10.0
"""A filter is made with less than this many inverses of a matrix of its sensors, n^3 multiplications each."""

LOADING = 4000.0
"""What reading a model's file takes, in multiplications a pair of the slot's sensors: the file may hold ten times as
many sensors as the slot, and its hash is computed."""

Announce = Callable[[float], None]
"""Is told before the slot does something that takes so many multiplications; most of what it does takes few."""

LoadModel = Callable[[str], Model]
"""SHA-256 -> model; raises ModelError when the store has no such file."""


class ModelRegister:
    """The models that a slot's log has put in force.

    Attributes:
        sha256: the model in force; "" = none.
        refit_of: the model that it follows the data from; "" = from none.
        base: the model that calibration and helpers go by, of the whole fleet: the one in force, or what it is a refit
            of; None = none.
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
        """Return a model; its size is not known before it is loaded, so the work is announced by the slot's.

        It may be done beside the loop, which then raises PendingError, and lasts as long.

        Raises:
            ModelError: the model store lacks it.
        """
        width = float(self.width)
        self._announce(LOADING * width**2 + INVERSES * width**3)
        return self._load_model(sha256)

    def restore(self, sha256: str, refit_of: str) -> None:
        """Go on from what a context names.

        Raises:
            ModelError: the model store lacks the model.
        """
        self.sha256, self.refit_of = sha256, refit_of
        self.base = self.load(self.base_sha256) if self.base_sha256 else None
        self.announce_filter(self.base)

    def put_in_force(self, sha256: str, refit_of: str) -> Model | None:
        """Put a model in force and return it; None = there is none from now on.

        Raises:
            ModelError: the model store lacks it; nothing has changed then.
        """
        model = self.load(sha256) if sha256 else None
        self.sha256, self.refit_of = sha256, refit_of
        self.announce_filter(model)
        if not refit_of:
            self.base = model
        return model

    def drop_refit(self) -> None:
        """Go by the base again: the slot's sensors have changed since the refit was made."""
        self.sha256, self.refit_of = self.base_sha256, ""

    def announce_filter(self, model: Model | None) -> None:
        """Say how much it takes to make a filter of a model for the slot's sensors: a few inverses and products."""
        if model is not None and self.width:
            wide = 0 if model.diagonal else len(model)
            self._announce(INVERSES * float(self.width**3 + wide**3))

    def announce_helpers(self, count: int) -> None:
        """Say how much it takes to make a filter of the slot's sensors and so many helpers."""
        if self.base is not None and count:
            self._announce(INVERSES * float(self.width + count) ** 3)
