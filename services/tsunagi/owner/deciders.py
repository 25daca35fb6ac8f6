"""An owner's deciders: refits, calibration and helpers beside the slot's filter, and the edges that steps wait for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tsunagi.owner.calibrator import Calibrator
from tsunagi.owner.closer import Closer
from tsunagi.owner.filler import Filler, PastReader
from tsunagi.owner.helping import Helping
from tsunagi.owner.reach import AT_ONCE
from tsunagi.owner.refitter import Refitter
from tsunagi.recovery.filter import Recovery
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.messages import HelperRequest, Helpers, ModelChange, TupleBatch
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.task import Task
from tsunagi.slot.deciding import Decider, Decision, OwnerView, Repeats, control
from tsunagi.slot.edges import NEVER
from tsunagi.slot.models import Announce
from tsunagi.slot.recover import Recover
from tsunagi.slot.slot import Slot

REFIT_INVERSES = 6.0
"""A refit takes less than this many inverses of a matrix of the filter's sensors, n^3 multiplications each."""


def make_deciders(settings: Settings, now: float, announce: Announce, past: PastReader | None = None) -> list[Decider]:
    """Return the deciders of a worker that becomes an owner now.

    Args:
        past: reads what queries are filled with; None = none are.
        announce: is called with the number of multiplications before a decider does something that takes long.
    """
    recovery = settings.recovery
    found: list[Decider] = [RefitDecider(recovery.refit_s, announce)] if recovery.refit else []
    if recovery.calibrate:
        found.append(CalibrationDecider(suspects=recovery.suspects))
    if past is not None:
        found.append(Filler(past))
    return [*found, HelperDecider(), Closer(settings.steps, now)]


def _filter_of(slot: Slot) -> tuple[Recover, Recovery] | None:
    recover = slot.recover
    return None if recover is None or recover.recovery is None else (recover, recover.recovery)


class RefitDecider(Decider):
    """Puts refits in force: models that follow the slot's data.

    Attributes:
        refitter: makes refits for the filter in force; None = nothing is recovered, or a thread is still making it.
    """

    def __init__(self, refit_s: float, announce: Announce) -> None:
        self.refitter: Refitter | None = None
        self._refit_s = refit_s
        self._announce = announce
        self._repeats = Repeats()
        self._filter: Recovery | None = None
        self._making: Task[Refitter] | None = None
        self._stored = "", ""  # SHA-256 of a refit that is not in force yet, and of the model that it is a refit of

    def decide(self, view: OwnerView) -> Sequence[Decision]:
        """Return a refit to store when one is due, and the record that puts it in force once it is stored."""
        slot = view.slot
        self._follow(view)
        if self.refitter is not None and self.refitter.is_due:
            self._announce(REFIT_INVERSES * float(len(self.refitter.recovery.model)) ** 3)
        model = None if self.refitter is None else self.refitter.due()
        if model is not None:
            return [model]
        sha256, of = self._stored
        if self._filter is None or not sha256 or of != slot.base_sha256 or slot.model_sha256 == sha256:
            self._stored = "", ""
            return []
        if not self._repeats.due("refit", view.now):
            return []
        return [control(model=ModelChange(epoch=view.epoch, sha256=sha256, refit_of=of))]

    def on_stored(self, sha256: str, slot: Slot) -> None:
        self._stored = sha256, slot.base_sha256

    def stop(self, slot: Slot) -> None:
        if slot.recover is not None:
            slot.recover.unwatch(self)

    def _follow(self, view: OwnerView) -> None:
        """Make a new refitter if the filter in force is another one, after a change of the model or the settings."""
        found = _filter_of(view.slot)
        recovery = None if found is None else found[1]
        if self._filter is not recovery:
            self._filter, self.refitter, self._making = recovery, None, None
            if found is not None:
                config = view.wish.config
                edges = [config.edges[place] for place in found[0].places]
                least_steps = round(self._refit_s * 1e6 / config.slide_us)
                work = partial(Refitter, found[1], edges, least_steps=least_steps)
                self._making = Task(work, "refitter", at_once=len(edges) <= AT_ONCE)
        if self._making is not None and self._making.done.is_set():
            self.refitter, self._making = self._making.result(), None
            if found is not None:
                found[0].watch(self, self.refitter.observe, self.refitter.operations)


class CalibrationDecider(Decider):
    """Decides by which factors the slot's bounds are multiplied, and which sensors are distrusted.

    Attributes:
        calibrator: measures the filter in force; None = nothing is recovered.
    """

    def __init__(self, *, suspects: bool) -> None:
        self.calibrator: Calibrator | None = None
        self._suspects = suspects
        self._repeats = Repeats()

    def decide(self, view: OwnerView) -> Sequence[Decision]:
        """Return records of what has changed since the last record of its kind."""
        slot, config = view.slot, view.wish.config
        found = _filter_of(slot)
        if found is None:
            self.calibrator = None
            return []
        calibrator = self.calibrator
        if calibrator is None or calibrator.recovery is not found[1]:
            calibrator = self.calibrator = Calibrator(*found, config, view.wish.groups, suspects=self._suspects)
            found[0].watch(self, calibrator.observe)
        calibrator.set_delta(config.delta)
        decided: list[Decision] = []
        for verdict in calibrator.judged():
            if self._repeats.due(f"sensor {verdict.sensor}", view.now):
                verdict.epoch, verdict.model = view.epoch, slot.base_sha256
                decided.append(control(sensor_out=verdict))
        factors = calibrator.factors()
        if factors is not None and self._repeats.due("calibrated", view.now):
            decided.append(control(calibrated=factors.write(epoch=view.epoch, model=slot.base_sha256)))
        return decided

    def on_late(self, batch: TupleBatch) -> None:
        if self.calibrator is not None:
            self.calibrator.late(batch)

    def stop(self, slot: Slot) -> None:
        if slot.recover is not None:
            slot.recover.unwatch(self)


class HelperDecider(Decider):
    """Asks for helpers (sensors of other slots) while lost values need them, and lets the recovery use them.

    Attributes:
        helping: chooses the helpers; None = nothing is recovered, or no helpers may be asked for.
    """

    def __init__(self) -> None:
        self.helping: Helping | None = None
        self._repeats = Repeats()

    def decide(self, view: OwnerView) -> Sequence[Decision]:
        """Return a request for the wanted helpers for `plan`, and a record for the log that puts them in force."""
        slot, wish = view.slot, view.wish
        found, model, book = _filter_of(slot), slot.model, slot.book
        if found is None or model is None or wish.table is None:
            self.helping = None
            return []
        if book is None or not book.in_steps:
            return []
        if self.helping is None or not self.helping.fits(found[0], model, wish.config):
            self.helping = Helping(found[0], model, wish.config, wish.table)
        out = {name: book.cursor - 1 - edge.last_step for name, edge in book.edges.items() if edge.out_from != NEVER}
        wanted = self.helping.decide(out, view.silent, wish.helpers, view.now)
        ids = pack_sensors(np.array(wanted.sensors, dtype=np.uint32))
        decided: list[Decision] = []
        if wanted.sensors != wish.requested and self._repeats.due("request", view.now):
            decided.append(HelperRequest(slot=slot.slot, epoch=view.epoch, sensor=ids, from_step=book.cursor))
        if ids != slot.helpers.sensor and self._repeats.due("helpers", view.now):
            helpers = Helpers(
                epoch=view.epoch, model=slot.base_sha256, sensor=ids, name=wanted.names, edge=wanted.edges
            )
            decided.append(control(helpers=helpers))
        return decided
