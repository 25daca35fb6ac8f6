"""When a step closes: a deterministic function of the slot's log (architecture, "Step").

A slot emits one frame for each step, whether or not its edges live. Step `cursor` closes once it waits for no edge and
its time has come. Its time has come when an edge has delivered it or a later one, or the owner's Punctuation names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tsunagi.query.form import misfits
from tsunagi.runtime.columns import Floats, floats, pack_floats, pack_sensors, sensors
from tsunagi.runtime.messages import EdgeState, Events, TupleBatch
from tsunagi.slot.batches import PlainRun
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.edges import NEVER, NOT_YET, OUT_AGAIN_US, ClosedStep, SlotEdge, Taken, restore_edges, states_of
from tsunagi.slot.operators import Chain


@dataclass(slots=True)
class StepBook:
    """The open steps of one slot.

    Attributes:
        config: the slot's configuration.
        cursor: the first open step.
        punctuated: steps up to this one may close although no edge has delivered them.
        skipped: how many steps were skipped because all edges had been away for longer than `max_gap_steps`.
        edges: what the log has said of each edge, by name.
        open: the batches that wait for their step to close, by step and edge.
        coming: edges all of whose sensors come with a move: steps wait for them from its boundary on.
        helpers: sensors of other slots whose readings are wanted, each with its edge. No step waits for them.
        helper_readings: how many readings of helpers came in time, and how many too late for their step.
        in_steps: whether batches wait until their step closes.
        together: how many records may be processed at once.
    """

    config: SlotConfig
    cursor: int
    punctuated: int = NOT_YET
    skipped: int = 0
    edges: dict[str, SlotEdge] = field(default_factory=dict)
    open: dict[int, dict[str, TupleBatch]] = field(default_factory=dict)
    helpers: Mapping[int, str] = field(default_factory=dict)
    helper_readings: list[int] = field(default_factory=lambda: [0, 0])
    coming: frozenset[str] = frozenset()
    in_steps: ClassVar[bool] = True
    together: ClassVar[int] = 1
    _lent: dict[int, dict[str, TupleBatch]] = field(default_factory=dict)  # other slots' batches, by step and edge
    _place: dict[int, int] = field(default_factory=dict)
    _edge_of: dict[int, str] = field(default_factory=dict)
    _former: frozenset[tuple[int, str]] = frozenset()
    _passing: frozenset[str] = (
        frozenset()
    )  # edges that have none of the slot's sensors any more: no step waits for them
    _going: frozenset[str] = frozenset()  # edges all of whose sensors go with a move

    def __post_init__(self) -> None:
        self._place = {sensor: place for place, sensor in enumerate(self.config.sensors)}
        self._edge_of = dict(zip(self.config.sensors, self.config.edges, strict=True))
        self._former = frozenset(self.config.former)
        self._passing = frozenset(edge for _, edge in self._former) - set(self.config.edges)
        self.coming = self._only_with(self.config.coming)
        self._going = self._only_with(self.config.going)
        for edge in sorted({*self.config.edges, *self._passing}):
            self.edges.setdefault(edge, SlotEdge())

    def _only_with(self, ids: Sequence[int]) -> frozenset[str]:
        """Return the edges that have some of these of the slot's sensors, and no others."""
        here, moving = self._edge_of, set(ids)
        return frozenset(here[sensor] for sensor in moving) - {
            edge for sensor, edge in here.items() if sensor not in moving
        }

    def take(self, chain: Chain, batches: Sequence[TupleBatch], appended_us: Sequence[int]) -> Iterator[Taken]:
        """Take in batches; yield those that are refused. The others wait until their steps close."""
        del chain
        for place, (batch, appended) in enumerate(zip(batches, appended_us, strict=True)):
            cursor = self.cursor
            reason, whole = self._accept(batch, appended)
            if reason or not whole:
                yield Taken(place, reason or "unknown-sensor", cursor, None)

    def take_plain(self, chain: Chain, batches: PlainRun, appended_us: Sequence[int], epoch: int) -> None:
        """Take in nothing: each batch waits for its step by itself (`take`)."""

    def accept(self, batch: TupleBatch, appended_us: int) -> str:
        """Take in a batch; return "" if it counts, else why it does not.

        Batches refused as "unknown-edge", "unknown-sensor", "damaged" or "ahead" go to `dead-letters`, those refused as
        "replaced", "closed" or "duplicate" to `late`.
        """
        return self._accept(batch, appended_us)[0]

    def _accept(self, batch: TupleBatch, appended_us: int) -> tuple[str, bool]:
        """Do the same as `accept`; return as well whether all values of the batch count if it does."""
        reason = self._refusal(batch, appended_us)
        if reason or batch.edge not in self.edges:
            return reason, True
        kept = batch
        if self.config.changeable or self.config.left:  # else `_refusal` has looked
            mine = self._known(batch)
            if self.config.left:
                mine &= ~np.isin(sensors(batch.sensor), self.config.left)
            kept = batch if mine.all() else _only(batch, mine)
        self.open.setdefault(batch.step, {})[batch.edge] = kept
        return "", kept is batch

    def _refusal(self, batch: TupleBatch, appended_us: int) -> str:
        """Return why a batch does not count; if it does, take note of how far its edge has come."""
        edge = self.edges.get(batch.edge)
        if edge is None and (batch.sensor or batch.events or not batch.helper):
            return "unknown-edge"
        if self._misshapen(batch):
            return "damaged"
        if edge is None:
            return self._lend(batch, appended_us)
        ids = sensors(batch.sensor)
        if (ids[1:] <= ids[:-1]).any():
            return "damaged"  # not ascending: one sensor might have a hundred thousand values
        if not self.config.changeable and not self._known(batch).all():
            return "unknown-sensor"
        if batch.incarnation < edge.incarnation:
            return "replaced"
        if batch.event_time_us > appended_us + self.config.max_ahead_us:
            return "ahead"
        edge.incarnation = batch.incarnation
        if batch.step < self.cursor:
            return "closed"
        if batch.step <= edge.last_step:
            return "duplicate"
        if all(other.last_step == NOT_YET for other in self.edges.values()):
            # This is the slot's first batch. Nobody will send steps that are further back than clocks may differ.
            self._skip_to(batch.step - self.config.max_skew_steps)
        edge.last_step = batch.step
        edge.out_from = NEVER
        return ""

    def _known(self, batch: TupleBatch) -> npt.NDArray[np.bool_]:
        """Return of which sensors the batch's edge may send, bool[n]: they are its own, or were before.

        A sensor that moves to another slot, or from one, is the slot's on one side of the move's boundary alone.
        """
        edge, pairs, absent = batch.edge, self._former, self.config.absent(batch.step)
        return np.array(
            [
                (self._edge_of.get(sensor) == edge or (sensor, edge) in pairs) and sensor not in absent
                for sensor in sensors(batch.sensor).tolist()
            ],
            dtype=bool,
        )

    def _misshapen(self, batch: TupleBatch) -> bool:
        """Return whether the lengths of a batch's columns do not fit, or its event time is not that of its step."""
        return bool(
            len(batch.value) != 2 * len(batch.sensor)
            or len(batch.sensor) % 4
            or len(batch.helper_value) != 2 * len(batch.helper)
            or len(batch.helper) % 4
            or len(batch.count) not in (0, len(batch.sensor))
            or batch.event_time_us != batch.step * self.config.slide_us
            or any(_broken(item) for item in batch.events)
        )

    def _lend(self, batch: TupleBatch, appended_us: int) -> str:
        """Take in helpers' readings from an edge of another slot. The first batch for a step counts."""
        if batch.event_time_us > appended_us + self.config.max_ahead_us:
            return "ahead"
        if batch.step < self.cursor:
            self.helper_readings[1] += len(batch.helper) // 4
        elif batch.edge in self.helpers.values():
            self._lent.setdefault(batch.step, {}).setdefault(batch.edge, batch)
        return ""

    def edge_out(self, name: str, from_step: int, appended_us: int) -> None:
        """Stop waiting for an edge from this step on, unless it was put out less than `OUT_AGAIN_US` ago.

        Args:
            appended_us: when the log appended the EdgeOut record, microseconds.
        """
        edge = self.edges.get(name)
        if edge is None:
            return
        if edge.out_from == NEVER != from_step:
            if edge.out_us and 0 <= appended_us - edge.out_us < OUT_AGAIN_US:
                return
            edge.out_us = appended_us
        edge.out_from = max(from_step, edge.last_step + 1)

    def use_helpers(self, helpers: Mapping[int, str]) -> None:
        """Take in the readings of these sensors of other slots from now on: sensor id -> its edge."""
        self.helpers = helpers

    def punctuate(self, step: int) -> None:
        """Let steps up to this one close."""
        self.punctuated = max(self.punctuated, step)

    def awaited(self, step: int) -> list[str]:
        """Return the names of the edges that a step waits for."""
        moving = self.coming if step < self.config.move_step else self._going
        return [
            name
            for name, edge in self.edges.items()
            if edge.awaited(step) and name not in self._passing and name not in moving
        ]

    def due(self, step: int) -> bool:
        """Return whether the step's time has come: an edge or a Punctuation has reached it."""
        return self.punctuated >= step or any(
            edge.last_step >= step for name, edge in self.edges.items() if name not in self._passing
        )

    def close(self) -> list[ClosedStep]:
        """Close all steps that can be closed, in order, and return them."""
        closed = []
        while self.cursor <= self.config.last_step and not self.awaited(self.cursor) and self.due(self.cursor):
            if self.open:
                first = min(self.open)
                if first - self.cursor > self.config.max_gap_steps:
                    before = self.cursor
                    self._skip_to(first)
                    self.skipped += self.cursor - before
                    continue
            batches = self.open.pop(self.cursor, {})
            in_order = tuple(batches[edge] for edge in sorted(batches))
            helpers = self._helpers_of(batches) if self.helpers else {}
            closed.append(ClosedStep(self.cursor, self._assemble(batches), in_order, helpers))
            self.cursor += 1
        for step in [step for step in self._lent if step < self.cursor]:
            del self._lent[step]
        return closed

    def _skip_to(self, step: int) -> None:
        """Move on to this step, but not beyond the last one that may close."""
        self.cursor = max(self.cursor, min(step, self.config.last_step + 1))

    def _helpers_of(self, batches: dict[str, TupleBatch]) -> dict[int, float]:
        """Return the helpers' readings for the step at the cursor, by sensor id."""
        lent = self._lent.get(self.cursor, {})
        found = {
            sensor: value
            for batch in (*lent.values(), *batches.values())
            for sensor, value in zip(sensors(batch.helper).tolist(), floats(batch.helper_value).tolist(), strict=True)
            if self.helpers.get(sensor) == batch.edge
        }
        self.helper_readings[0] += len(found)
        return found

    def _assemble(self, batches: dict[str, TupleBatch]) -> Floats:
        values = np.full(len(self.config.sensors), np.nan)
        own: list[tuple[npt.NDArray[np.intp], Floats]] = []
        for name in sorted(batches):
            batch = batches[name]
            # Settings may have changed since the batch came. Sensors that the slot does not have any more are left out.
            places = np.array([self._place.get(sensor, -1) for sensor in sensors(batch.sensor).tolist()], dtype=np.intp)
            known = places >= 0
            places, found = places[known], floats(batch.value)[known]
            values[places] = found
            if self._former:
                mine = np.array([self.config.edges[place] == name for place in places.tolist()], dtype=bool)
                own.append((places[mine], found[mine]))
        for places, found in own:  # of a sensor that two edges have sent, the reading of its present edge counts
            values[places] = found
        return values

    def edge_states(self) -> list[EdgeState]:
        """Return the state of the edges, for a context (the slot's whole state at one offset of its log)."""
        return states_of(self.edges)

    def open_batches(self) -> list[TupleBatch]:
        """Return the batches of open steps for a context."""
        return _in_order(self.open)

    def lent_batches(self) -> list[TupleBatch]:
        """Return the batches that edges of other slots have sent for open steps (helpers' readings), for a context."""
        return _in_order(self._lent)

    def restore(self, edges: list[EdgeState], batches: list[TupleBatch]) -> None:
        """Take over the edges and batches of a context.

        Raises:
            ValueError: the columns of a waiting batch do not fit. A node that closed its step would die of it.
        """
        restore_edges(self.edges, edges)
        for batch in batches:
            if self._misshapen(batch):
                raise ValueError(f"context: the columns of {batch.edge}'s batch for step {batch.step} do not fit")
            where = self.open if batch.edge in self.edges else self._lent
            where.setdefault(batch.step, {})[batch.edge] = batch


def _broken(events: Events) -> bool:
    return not events.stream or not events.column or any(misfits(column, events.rows) for column in events.column)


def _only(batch: TupleBatch, known: npt.NDArray[np.bool_]) -> TupleBatch:
    """Return a copy of a batch with the values of some of its sensors. The record may be processed again as it was."""
    kept = TupleBatch()
    kept.CopyFrom(batch)
    kept.value = pack_floats(floats(batch.value)[known])
    kept.count = pack_sensors(sensors(batch.count)[known]) if batch.count else b""
    kept.sensor = pack_sensors(sensors(batch.sensor)[known])
    return kept


def _in_order(batches: Mapping[int, Mapping[str, TupleBatch]]) -> list[TupleBatch]:
    return [batches[step][edge] for step in sorted(batches) for edge in sorted(batches[step])]
