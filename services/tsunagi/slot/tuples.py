"""A slot without lock-step: each tuple is processed as it comes (architecture, "Step", at its end).

Nothing waits and nothing closes. What the log says of an edge only decides which batches count. A batch has a number
instead of a step, usually its event time. It must be greater than the number of the edge's batch before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tsunagi.query.values import Column
from tsunagi.runtime.columns import Sensors, floats, sensors
from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.messages import EdgeState, TupleBatch
from tsunagi.runtime.names import Name
from tsunagi.slot.batches import Batches, PlainRun
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.edges import NOT_YET, ClosedStep, SlotEdge, Taken, restore_edges, states_of
from tsunagi.slot.frames import Integers, Run, measured_run
from tsunagi.slot.outputs import Output
from tsunagi.slot.packed import Packed, PackedColumns, PackedRows
from tsunagi.slot.plain_outputs import plain_outputs

if TYPE_CHECKING:
    from tsunagi.slot.operators import Chain
    from tsunagi.slot.stream import SlotStream

MAX_RECORDS = 512
"""The most records of a run: enough that the cost of a run by itself does not matter."""


class TupleBook:
    """What the log has said of a slot's edges; the counterpart of `tsunagi.slot.steps.StepBook`.

    Attributes:
        cursor: one more than the greatest number of a batch so far.
        edges: what the log has said of each edge; `out_from` is not used, since no edge is waited for.
        in_steps, together: as in `StepBook`.
    """

    in_steps: ClassVar[bool] = False
    together: ClassVar[int] = MAX_RECORDS
    punctuated = NOT_YET
    coming: frozenset[str] = frozenset()
    helpers: Mapping[int, str] = MappingProxyType({})
    helper_readings: Sequence[int] = (0, 0)

    def __init__(self, config: SlotConfig, cursor: int = NOT_YET) -> None:
        self.cursor = cursor
        self.edges = {edge: SlotEdge() for edge in sorted({*config.edges, *(edge for _, edge in config.former)})}
        self._config = config
        self._number = {edge: number for number, edge in enumerate(self.edges)}
        # The number of the edge of each sensor id; -1 = not of this slot. The last entry stands for all greater ids.
        most = max((*config.sensors, *(sensor for sensor, _ in config.former)), default=-1)
        self._owner = np.full(most + 2, -1, dtype=np.int64)
        self._owner[list(config.sensors)] = [self._number[edge] for edge in config.edges]
        self._former = np.full(most + 2, -1, dtype=np.int64)
        self._former[[sensor for sensor, _ in config.former]] = [self._number[edge] for _, edge in config.former]

    def take(self, chain: Chain, batches: Sequence[TupleBatch], appended_us: Sequence[int]) -> Iterator[Taken]:
        """Take in batches in the order of the log, and let those that count go through the chain as one run."""
        columns, stream = Batches(batches), chain.stream
        if stream is not None:
            stream.keep(batches, appended_us)
        refused, run = self.accept_run(columns, appended_us, stream)
        parts = chain.process_run(run)
        if len(parts) == 1 and not refused and stream is None:
            for place, rows in split(parts[0], columns.steps, columns.event_times):
                yield Taken(place, "", 0, rows)
            return
        made: dict[int, list[Packed | PackedRows]] = {place: [] for place in refused}
        for part in parts if chain.gives_rows else ():
            for place, own in split(part, columns.steps, columns.event_times):
                made.setdefault(place, []).append(own)
        if stream is not None and parts:
            for place, found in stream.follow(parts, columns.steps, columns.event_times):
                made.setdefault(place, []).append(found)
        for place in sorted(made):
            if place in refused:
                yield Taken(place, *refused[place], None)
            for body in made[place]:
                yield Taken(place, "", 0, body)

    def take_plain(
        self, chain: Chain, batches: PlainRun, appended_us: Sequence[int], epoch: int
    ) -> Sequence[Output] | None:
        """Take in batches of the usual form, and let them go through the chain as one run; return the outputs.

        Args:
            epoch: the epoch (number of the ownership) as of these batches.

        Returns:
            None if one of them may not count, or if a stream reads them. Nothing has changed then.
        """
        if chain.stream is not None or (run := self._accept_plain(batches, appended_us)) is None:
            return None
        parts = [_present(part) for part in chain.process_run(run)]
        numbers = np.array([batches.offsets, batches.steps, batches.event_times, appended_us])
        if len(parts) == 1:
            part = parts[0]
            found = plain_outputs(numbers, PackedColumns(part), part.origin, epoch)
            if found is not None:
                return found
        offsets, steps, times, _ = numbers.tolist()
        rows = sorted((found for part in parts for found in split(part, steps, times)), key=itemgetter(0))
        outputs: list[Output] = []
        for place, body in rows:
            same = outputs and outputs[-1].name.offset == offsets[place]
            name = Name(offsets[place], outputs[-1].name.index + 1 if same else 0)
            outputs.append(Output(name, RECOVERED, epoch, appended_us[place], body))
        return outputs

    def _accept_plain(self, batches: PlainRun, appended_us: Sequence[int]) -> Run | None:
        edge, number = self.edges.get(batches.edge), self._number.get(batches.edge)
        steps, times, ids = batches.steps, batches.event_times, batches.ids
        if edge is None or self._config.former or batches.incarnation < edge.incarnation:
            return None
        if steps[0] <= edge.last_step or (steps[1:] <= steps[:-1]).any():
            return None
        if (times > np.array(appended_us) + self._config.max_ahead_us).any():
            return None
        if (self._owner[np.minimum(ids, len(self._owner) - 1)] != number).any():
            return None
        origin = batches.origin
        if batches.rows > 1 and ((ids[1:] <= ids[:-1]) & (origin[1:] == origin[:-1])).any():
            return None
        edge.incarnation, edge.last_step = batches.incarnation, int(steps[-1])
        self.cursor = max(self.cursor, edge.last_step + 1)
        last_time = int(times[-1])
        times = times if batches.rows == 1 else times[origin]
        return measured_run(edge.last_step, last_time, ids, batches.values, times, origin)

    def accept(self, batch: TupleBatch, appended_us: int) -> str:
        """Take in one batch; return "" if it counts, else why it does not."""
        refused, _ = self.accept_run(Batches([batch]), [appended_us])
        return refused[0][0] if refused else ""

    def accept_run(
        self, batches: Batches, appended_us: Sequence[int], stream: SlotStream | None = None
    ) -> tuple[dict[int, tuple[str, int]], Run]:
        """Take in batches in the order of the log; return those that do not count, and the rows of the others.

        Args:
            stream: reads the columns of the rows; None = they have none.

        Returns:
            Place among the batches -> (reason, as `StepBook.accept` names it; the cursor when it was reached).
        """
        reasons = self._malformed(batches)
        if stream is not None and stream.kinds:
            reasons |= {
                place: "damaged"
                for place, batch in enumerate(batches.messages)
                if place not in reasons and stream.damaged(batch)
            }
        sizes = np.array([len(sensor) >> 2 for sensor in batches.sensors], dtype=np.int64)
        if reasons:
            sizes[list(reasons)] = 0
            ids = sensors(b"".join([ids for place, ids in enumerate(batches.sensors) if place not in reasons]))
            values = floats(b"".join([value for place, value in enumerate(batches.values) if place not in reasons]))
        else:
            ids, values = sensors(b"".join(batches.sensors)), floats(b"".join(batches.values))
        origin = np.repeat(np.arange(len(batches)), sizes)
        columns: Mapping[str, Column] = {}
        if stream is not None:
            columns = stream.columns([batch for batch, size in zip(batches.messages, sizes, strict=True) if size])
        self._judge(batches, ids, origin, sizes, reasons)
        refused = self._advance(batches, appended_us, reasons)
        if refused or self._config.former:
            counts = np.ones(len(batches), dtype=bool)
            counts[list(refused)] = False
            kept = counts[origin] & (self._owner[np.minimum(ids, len(self._owner) - 1)] >= 0)  # the rest is removed
            ids, values, origin = ids[kept], values[kept], origin[kept]
            columns = {name: column.take(kept) for name, column in columns.items()}
        times = np.array(batches.event_times, dtype=np.int64)[origin]
        return refused, measured_run(batches.steps[-1], batches.event_times[-1], ids, values, times, origin, columns)

    def _malformed(self, batches: Batches) -> dict[int, str]:
        """Return place -> reason for the batches that cannot be read as rows."""
        known = self._number
        return {
            place: "damaged" if edge in known else "unknown-edge"
            for place, (edge, sensor, value, count) in enumerate(
                zip(batches.edges, batches.sensors, batches.values, batches.counts, strict=True)
            )
            if edge not in known
            or len(value) != 2 * len(sensor)
            or len(sensor) & 3
            or (count and len(count) != len(sensor))
        }

    def _judge(
        self, batches: Batches, ids: Sensors, origin: Integers, sizes: Integers, reasons: dict[int, str]
    ) -> None:
        """Add to `reasons` the batches whose sensors do not belong to their edge, or are not ascending."""
        number = self._number
        owner = np.repeat(np.array([number.get(edge, -1) for edge in batches.edges], dtype=np.int64), sizes)
        known = np.minimum(ids, len(self._owner) - 1)
        stranger = self._owner[known] != owner
        if stranger.any():
            stranger &= self._former[known] != owner
            reasons.update(dict.fromkeys(origin[stranger].tolist(), "unknown-sensor"))
        falling = (ids[1:] <= ids[:-1]) & (origin[1:] == origin[:-1])
        if falling.any():
            reasons.update(dict.fromkeys(origin[1:][falling].tolist(), "damaged"))

    def _advance(
        self, batches: Batches, appended_us: Sequence[int], reasons: dict[int, str]
    ) -> dict[int, tuple[str, int]]:
        """Take in the batches' numbers, in the order of the log; return place -> (reason, cursor) of those refused."""
        refused = {}
        ahead_us, cursor = self._config.max_ahead_us, self.cursor
        columns = zip(batches.edges, batches.incarnations, batches.steps, batches.event_times, appended_us, strict=True)
        for place, (name, incarnation, step, event_time_us, appended) in enumerate(columns):
            if place in reasons:
                refused[place] = reasons[place], cursor
                continue
            edge = self.edges[name]
            if incarnation < edge.incarnation:
                refused[place] = "replaced", cursor
            elif event_time_us > appended + ahead_us:
                refused[place] = "ahead", cursor
            elif step <= edge.last_step:
                edge.incarnation = incarnation
                refused[place] = "duplicate", cursor
            else:
                edge.incarnation = incarnation
                edge.last_step = step
                if step >= cursor:
                    cursor = step + 1
        self.cursor = cursor
        return refused

    # ---- nothing waits, so these do nothing

    def edge_out(self, name: str, from_step: int, appended_us: int) -> None:
        """Ignore an EdgeOut: no edge is waited for."""

    def punctuate(self, step: int) -> None:
        """Ignore a Punctuation: nothing waits for a time."""

    def use_helpers(self, helpers: Mapping[int, str]) -> None:
        """Ignore helpers: without steps nothing is recovered."""

    def due(self, step: int) -> bool:
        """Return whether the step's time has come: never, since there are no steps."""
        del step
        return False

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

    def lent_batches(self) -> list[TupleBatch]:
        """Return the helpers' batches of open steps: there are none."""
        return []

    # ---- contexts

    def edge_states(self) -> list[EdgeState]:
        """Return the state of the edges, for a context (the slot's whole state at one offset of its log)."""
        return states_of(self.edges)

    def restore(self, edges: Sequence[EdgeState], batches: Sequence[TupleBatch]) -> None:
        """Take over the edges of a context."""
        del batches
        restore_edges(self.edges, edges)


def split(run: Run, steps: Sequence[int], times: Sequence[int]) -> Iterator[tuple[int, Packed]]:
    """Yield (the record's place in the run, its rows) for each record that has rows, in order.

    Args:
        steps, times: number and event time of each record's batch.
    """
    run = _present(run)
    origin = run.origin
    if not len(origin):
        return
    columns = PackedColumns(run)
    starts = np.flatnonzero(np.diff(origin, prepend=-1))
    begins = starts.tolist()
    ends = [*begins[1:], len(origin)]
    for place, begin, end in zip(origin[starts].tolist(), begins, ends, strict=True):
        yield place, Packed(steps[place], times[place], columns, begin, end)


def _present(run: Run) -> Run:
    """Return a run's rows that have a value."""
    missing = np.isnan(run.mean)
    return run.keep(~missing) if missing.any() else run
