"""When a step closes: a deterministic function of the slot's log (architecture, "Step").

A slot emits one frame a step whether or not its edges are alive. Step `cursor` closes once no edge is waited for at it
and something says that its time has come: an edge that has delivered it or a later one, or the owner's Punctuation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tsunagi.runtime.columns import Floats, floats, sensors
from tsunagi.runtime.messages import EdgeState, TupleBatch
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.edges import NEVER, NOT_YET, OUT_AGAIN_US, ClosedStep, SlotEdge, Taken, restore_edges, states_of
from tsunagi.slot.operators import Chain


@dataclass(slots=True)
class StepBook:
    """The open steps of one slot.

    Attributes:
        cursor: the first step still open.
        punctuated: steps up to here may close although no edge has delivered them.
        skipped: steps that were passed over because all edges had been away for longer than `max_gap_steps`.
        in_steps: batches wait for others until their step closes.
        together: records that may be taken in at once.
        helpers: sensors of other slots whose readings are wanted, and their edges; a step never waits for them.
        helper_readings: how many of these came in time, and how many too late for their step.
    """

    config: SlotConfig
    cursor: int
    punctuated: int = NOT_YET
    skipped: int = 0
    edges: dict[str, SlotEdge] = field(default_factory=dict)
    open: dict[int, dict[str, TupleBatch]] = field(default_factory=dict)
    helpers: Mapping[int, str] = field(default_factory=dict)
    helper_readings: list[int] = field(default_factory=lambda: [0, 0])
    in_steps: ClassVar[bool] = True
    together: ClassVar[int] = 1
    _lent: dict[int, dict[str, TupleBatch]] = field(default_factory=dict)  # by step and edge, of edges of other slots
    _place: dict[int, int] = field(default_factory=dict)
    _edge_of: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._place = {sensor: place for place, sensor in enumerate(self.config.sensors)}
        self._edge_of = dict(zip(self.config.sensors, self.config.edges, strict=True))
        for edge in sorted(set(self.config.edges)):
            self.edges.setdefault(edge, SlotEdge())

    def take(self, chain: Chain, batches: Sequence[TupleBatch], appended_us: Sequence[int]) -> Iterator[Taken]:
        """Take in batches; yield those that are refused. What follows from the others waits for their steps."""
        del chain
        for place, (batch, appended) in enumerate(zip(batches, appended_us, strict=True)):
            cursor = self.cursor
            if reason := self.accept(batch, appended):
                yield Taken(place, reason, cursor, None)

    def accept(self, batch: TupleBatch, appended_us: int) -> str:
        """Take in a batch; return "" if it counts, else why it does not.

        "unknown-edge", "unknown-sensor", "damaged" and "ahead" belong to dead-letters; "replaced", "closed" and
        "duplicate" to late.
        """
        edge = self.edges.get(batch.edge)
        if edge is None and (batch.sensor or not batch.helper):
            return "unknown-edge"
        if self._misshapen(batch):
            return "damaged"
        if edge is None:
            return self._lend(batch, appended_us)
        ids = sensors(batch.sensor)
        if (ids[1:] <= ids[:-1]).any():
            return "damaged"  # not ascending: one sensor may stand in it a hundred thousand times
        if any(self._edge_of.get(sensor) != batch.edge for sensor in ids.tolist()):
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
            # The slot's very first batch: what was before it, nobody will ever send.
            self.cursor = max(self.cursor, batch.step - self.config.max_skew_steps)
        edge.last_step = batch.step
        edge.out_from = NEVER
        self.open.setdefault(batch.step, {})[batch.edge] = batch
        return ""

    def _misshapen(self, batch: TupleBatch) -> bool:
        """Return whether a batch's columns do not fit each other, or its times."""
        return bool(
            len(batch.value) != 2 * len(batch.sensor)
            or len(batch.sensor) % 4
            or len(batch.helper_value) != 2 * len(batch.helper)
            or len(batch.helper) % 4
            or len(batch.count) not in (0, len(batch.sensor))
            or batch.event_time_us != batch.step * self.config.slide_us
        )

    def _lend(self, batch: TupleBatch, appended_us: int) -> str:
        """Take in what an edge of other slots sends: helpers' readings. The first word on a step counts."""
        if batch.event_time_us > appended_us + self.config.max_ahead_us:
            return "ahead"
        if batch.step < self.cursor:
            self.helper_readings[1] += len(batch.helper) // 4
        elif batch.edge in self.helpers.values():
            self._lent.setdefault(batch.step, {}).setdefault(batch.edge, batch)
        return ""

    def edge_out(self, name: str, from_step: int, appended_us: int) -> None:
        """Do not wait for an edge from this step on; void if it was put out less than `OUT_AGAIN_US` ago.

        Args:
            appended_us: when the log appended what says so, microseconds.
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
        """Take in the readings of these sensors of other slots from now on: sensor -> its edge."""
        self.helpers = helpers

    def punctuate(self, step: int) -> None:
        """Let steps up to this one close."""
        self.punctuated = max(self.punctuated, step)

    def awaited(self, step: int) -> list[str]:
        """Return the edges that a step waits for."""
        return [name for name, edge in self.edges.items() if edge.awaited(step)]

    def due(self, step: int) -> bool:
        """Return whether something says that the step's time has come."""
        return self.punctuated >= step or any(edge.last_step >= step for edge in self.edges.values())

    def close(self) -> list[ClosedStep]:
        """Close what can be closed, in order."""
        closed = []
        while not self.awaited(self.cursor) and self.due(self.cursor):
            if self.open:
                first = min(self.open)
                if first - self.cursor > self.config.max_gap_steps:
                    self.skipped += first - self.cursor
                    self.cursor = first
                    continue
            batches = self.open.pop(self.cursor, {})
            in_order = tuple(batches[edge] for edge in sorted(batches))
            helpers = self._helpers_of(batches) if self.helpers else {}
            closed.append(ClosedStep(self.cursor, self._assemble(batches), in_order, helpers))
            self.cursor += 1
        for step in [step for step in self._lent if step < self.cursor]:
            del self._lent[step]
        return closed

    def _helpers_of(self, batches: dict[str, TupleBatch]) -> dict[int, float]:
        """Return the wanted helpers' readings of the step at the cursor."""
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
        for name in sorted(batches):
            batch = batches[name]
            # Settings may have changed since it was taken in: a sensor that is the slot's no longer is left out.
            places = np.array([self._place.get(sensor, -1) for sensor in sensors(batch.sensor).tolist()], dtype=np.intp)
            known = places >= 0
            values[places[known]] = floats(batch.value)[known]
        return values

    def edge_states(self) -> list[EdgeState]:
        """Return the edges for a context."""
        return states_of(self.edges)

    def open_batches(self) -> list[TupleBatch]:
        """Return the batches of open steps for a context."""
        return _in_order(self.open)

    def lent_batches(self) -> list[TupleBatch]:
        """Return what edges of other slots have sent for open steps, for a context."""
        return _in_order(self._lent)

    def restore(self, edges: list[EdgeState], batches: list[TupleBatch]) -> None:
        """Take over what a context holds.

        Raises:
            ValueError: a batch that waits is none; whoever closed its step would die of it.
        """
        restore_edges(self.edges, edges)
        for batch in batches:
            if self._misshapen(batch):
                raise ValueError(f"context: the columns of {batch.edge}'s batch for step {batch.step} do not fit")
            where = self.open if batch.edge in self.edges else self._lent
            where.setdefault(batch.step, {})[batch.edge] = batch


def _in_order(batches: Mapping[int, Mapping[str, TupleBatch]]) -> list[TupleBatch]:
    return [batches[step][edge] for step in sorted(batches) for edge in sorted(batches[step])]
