"""A slot without lock-step: each tuple is processed as it comes (DESIGN section 2, "Step", at its end).

There is nothing to wait for, so nothing to close: what the log says of an edge only tells which batches count. A batch
has a number instead of a step, greater than that of the edge's batch before it (its event time, as a rule).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from services.gateway.config import SlotConfig
from services.gateway.frames import Run
from services.gateway.steps import NOT_YET, ClosedStep, Edge
from services.runtime.columns import Floats, Sensors, floats, sensors
from services.runtime.messages import EXACT, EdgeState, TupleBatch

MAX_ROWS = 20_000
"""Tuples of a run, about: the columns of one stay within a core's cache."""


@dataclass(slots=True)
class Packed:
    """The rows of one output, as the columns of its message (`Recovered`)."""

    step: int
    event_time_us: int
    sensor: bytes
    mean: bytes
    sd: bytes
    quality: bytes
    bound: bytes


class TupleBook:
    """What the log has said of a slot's edges; the counterpart of `services.gateway.steps.StepBook`.

    Attributes:
        cursor: one more than the greatest number seen.
        edges: `out_from` stays as it is: nobody is waited for.
    """

    punctuated = NOT_YET

    def __init__(self, config: SlotConfig, cursor: int = NOT_YET) -> None:
        self.cursor = cursor
        self.edges = {edge: Edge() for edge in sorted(set(config.edges))}
        self._config = config
        self._number = {edge: number for number, edge in enumerate(self.edges)}
        # The edge of each sensor id, -1 = not of this slot; one more at the end for all greater ids.
        self._owner = np.full(max(config.sensors, default=-1) + 2, -1, dtype=np.int64)
        self._owner[list(config.sensors)] = [self._number[edge] for edge in config.edges]

    def accept(self, batch: TupleBatch, appended_us: int) -> str:
        """Take in one batch; return "" if it counts, else why it does not."""
        refused, _ = self.accept_run([batch], [appended_us])
        return refused[0][0] if refused else ""

    def accept_run(
        self, batches: Sequence[TupleBatch], appended_us: Sequence[int]
    ) -> tuple[dict[int, tuple[str, int]], Run]:
        """Take in batches in the order of the log; return those that do not count, and the rows of the others.

        Returns:
            Place among the batches -> (reason, as `StepBook.accept` names it; the cursor when it was reached).
        """
        reasons = [self._malformed(batch) for batch in batches]
        sound = [place for place, reason in enumerate(reasons) if not reason]
        ids = sensors(b"".join([batches[place].sensor for place in sound]))
        values = floats(b"".join([batches[place].value for place in sound]))
        sizes = np.array([len(batches[place].sensor) // 4 for place in sound], dtype=np.int64)
        origin = np.repeat(np.array(sound, dtype=np.int64), sizes)
        self._judge(batches, sound, ids, origin, sizes, reasons)
        refused = {}
        for place, batch in enumerate(batches):
            cursor = self.cursor
            reason = reasons[place] or self._advance(batch, appended_us[place])
            if reason:
                refused[place] = reason, cursor
        if refused:
            counts = np.ones(len(batches), dtype=bool)
            counts[list(refused)] = False
            kept = counts[origin]
            ids, values, origin = ids[kept], values[kept], origin[kept]
        times = np.array([batch.event_time_us for batch in batches], dtype=np.int64)
        last = batches[-1]
        return refused, make_run(last.step, last.event_time_us, ids, values, times[origin], origin)

    def _malformed(self, batch: TupleBatch) -> str:
        if batch.edge not in self.edges:
            return "unknown-edge"
        size = len(batch.sensor)
        if len(batch.value) != 2 * size or size % 4 or len(batch.count) not in (0, size):
            return "damaged"
        return ""

    def _judge(
        self,
        batches: Sequence[TupleBatch],
        sound: list[int],
        ids: Sensors,
        origin: np.ndarray[tuple[int], np.dtype[np.int64]],
        sizes: np.ndarray[tuple[int], np.dtype[np.int64]],
        reasons: list[str],
    ) -> None:
        """Refuse batches whose sensors are not their edge's, or not ascending."""
        owner = np.repeat(np.array([self._number[batches[place].edge] for place in sound], dtype=np.int64), sizes)
        stranger = self._owner[np.minimum(ids, len(self._owner) - 1)] != owner
        if stranger.any():
            for place in set(origin[stranger].tolist()):
                reasons[place] = "unknown-sensor"
        falling = (ids[1:] <= ids[:-1]) & (origin[1:] == origin[:-1])
        if falling.any():
            for place in set(origin[1:][falling].tolist()):
                reasons[place] = "damaged"

    def _advance(self, batch: TupleBatch, appended_us: int) -> str:
        edge = self.edges[batch.edge]
        incarnation, step = batch.incarnation, batch.step
        if incarnation < edge.incarnation:
            return "replaced"
        if batch.event_time_us > appended_us + self._config.max_ahead_us:
            return "ahead"
        edge.incarnation = incarnation
        if step <= edge.last_step:
            return "duplicate"
        edge.last_step = step
        if step >= self.cursor:
            self.cursor = step + 1
        return ""

    # ---- nothing waits, so these have nothing to say

    def edge_out(self, name: str, from_step: int) -> None:
        """Pass over an EdgeOut: nobody is waited for."""

    def punctuate(self, step: int) -> None:
        """Pass over a Punctuation: nothing waits for a time."""

    def awaited(self, step: int) -> list[str]:
        """Return the edges that a step waits for: none."""
        del step
        return []

    def close(self) -> list[ClosedStep]:
        """Return the steps that have closed: there are none."""
        return []

    def open_batches(self) -> list[TupleBatch]:
        """Return the batches of open steps: there are none."""
        return []

    # ---- contexts

    def edge_states(self) -> list[EdgeState]:
        """Return the edges for a context."""
        return [
            EdgeState(edge=name, incarnation=edge.incarnation, last_step=edge.last_step, out_from=edge.out_from)
            for name, edge in self.edges.items()
        ]

    def restore(self, edges: Sequence[EdgeState], batches: Sequence[TupleBatch]) -> None:
        """Take over what a context holds."""
        del batches
        for state in edges:
            if state.edge in self.edges:
                self.edges[state.edge] = Edge(state.incarnation, state.last_step, state.out_from)


def make_run(step: int, event_time_us: int, ids: Sensors, values: Floats, times: object, origin: object) -> Run:
    """Return a run of measured values."""
    zeros = np.zeros(len(ids))
    return Run(
        step,
        event_time_us,
        ids,
        values,
        zeros,
        np.full(len(ids), EXACT, dtype=np.uint8),
        zeros,
        np.asarray(times, dtype=np.int64),
        np.asarray(origin, dtype=np.int64),
    )


def split(run: Run, batches: Sequence[TupleBatch]) -> Iterator[tuple[int, Packed]]:
    """Yield the rows of each record that has any: (its place in the run, the columns), in order."""
    if np.isnan(run.mean).any():
        run = run.keep(~np.isnan(run.mean))
    origin = run.origin
    if not len(origin):
        return
    starts = np.flatnonzero(np.diff(origin, prepend=-1)).tolist()
    ends = [*starts[1:], len(origin)]
    sensor, mean, sd = run.sensor.tobytes(), run.mean.tobytes(), run.sd.tobytes()
    quality, bound = run.quality.tobytes(), run.bound.tobytes()
    for place, a, b in zip(origin[starts].tolist(), starts, ends, strict=True):
        batch = batches[place]
        yield (
            place,
            Packed(
                batch.step,
                batch.event_time_us,
                sensor[4 * a : 4 * b],
                mean[8 * a : 8 * b],
                sd[8 * a : 8 * b],
                quality[a:b],
                bound[8 * a : 8 * b],
            ),
        )
