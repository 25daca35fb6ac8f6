"""The job without Spark and Kafka: the same decoding and ordering, batch by batch, with state in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from tests.spark.world import World
from tsunagi.runtime.messages import Placement, Plan
from tsunagi.runtime.settings import Settings
from tsunagi_spark.blocks import Counters, SlotBlock, from_arrow, to_arrow
from tsunagi_spark.decode import Arrived, Sidelined, decode
from tsunagi_spark.frontier import NEVER, SlotMark
from tsunagi_spark.layout import Layout, Order, make_layout
from tsunagi_spark.merge import CoreTask, Ordered, advance, grown, result_blocks
from tsunagi_spark.moving import GATHERED, gather, settled, touched, within
from tsunagi_spark.parts import dump_part, dump_windows, load_part, load_windows, merge_parts, merge_windows
from tsunagi_spark.publish import block_key
from tsunagi_spark.queries import QueryReadings, span_steps
from tsunagi_spark.query_core import query_frontier
from tsunagi_spark.state import CoreState
from tsunagi_spark.windows import CompleteWindows, Spec, window_blocks


def layout_of(world: World, cores: int = 2, order: Order = "basic") -> Layout:
    placement: Placement = Plan.FromString(world.placement()).placement
    return make_layout(world.table, placement, cores, world.settings.spark.unknown_group, order=order)


@dataclass
class SmallJob:
    settings: Settings
    layout: Layout
    marks: dict[int, SlotMark] = field(default_factory=dict)
    states: dict[int, CoreState] = field(default_factory=dict)
    minute: dict[tuple[int, int], QueryReadings] = field(default_factory=dict)
    counts: bool = True
    sent: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    sidelined: list[Sidelined] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    batch: int = 0
    merged_rows: int = 0
    before: Layout | None = None
    specs: tuple[Spec, ...] = ()
    complete: list[Ordered] = field(default_factory=list)
    """What each core had complete in the last batch."""
    upto: int = NEVER
    """The last step that is complete for every group."""

    @property
    def span(self) -> int:
        return span_steps(self.settings.query.range_s, self.settings.steps.slide_us)

    def delivered(self) -> dict[str, int]:
        """Return the last step sent of each group."""
        return {
            name: max(
                int(self.states[core].delivered[group]) for core in np.flatnonzero(self.layout.holds[group]).tolist()
            )
            for group, name in enumerate(self.layout.groups)
        }

    def read(self, core: int, batch: int, low: int, high: int) -> QueryReadings:
        rows = self.minute[core, batch]
        assert (np.diff(rows.step) >= 0).all(), "a file of rows is read by steps"
        return within(rows, low, high)

    def run(self, records: Iterable[Arrived], overdue: Iterable[int] = (), dropped: Iterable[int] = ()) -> list[bytes]:
        """Run one batch; return the keys it sent."""
        settings, layout = self.settings, self.layout
        before = self.before or layout
        delivered = np.full(len(layout.groups), -(2**61), dtype=np.int64)
        for core, state in self.states.items():
            mine = np.flatnonzero(before.holds[: len(state.delivered), core])
            delivered[mine] = state.delivered[mine]
        decoders = decode(records, self.marks, layout, delivered, settings.steps.slide_us)
        blocks: list[SlotBlock] = []
        for decoder in decoders.values():
            made = decoder.blocks()
            self.counters.add(made[0].counters)
            blocks += made
            self.sidelined += decoder.sidelined
        already, parts = len(self.sent), []
        self.complete = []
        states = {core: grown(self.states.get(core), layout) for core in range(layout.cores)}
        for core in range(layout.cores):
            mine_blocks = from_arrow(to_arrow([block for block in blocks if block.core == core]))
            task = CoreTask(
                self.batch,
                core,
                layout,
                self.marks,
                frozenset(overdue),
                settings.steps.slide_us,
                self.span,
                9,
                self.specs,
                frozenset(dropped),
                counts=self.counts,
            )
            state, gathered = states[core], None
            if self.batch and touched(before, layout, core):
                state, gathered = gather(list(states.values()), core, before, layout, self.span, self.batch, self.read)

            def read(
                batch: int, low: int, high: int, core: int = core, gathered: QueryReadings | None = gathered
            ) -> QueryReadings:
                if batch == GATHERED:
                    assert gathered is not None
                    return within(gathered, low, high)
                return self.read(core, batch, low, high)

            advanced = advance(state, task, mine_blocks, read)
            self.states[core], keep = advanced.state, advanced.keep
            self.complete.append(advanced.ordered)
            self.upto = query_frontier(task, mine_blocks)
            if gathered is not None and self.counts:
                self.states[core].minute, keep = settled(
                    advanced.state.minute, gathered, keep, advanced.state.delivered, layout, self.span, self.batch
                )
            self.minute[core, self.batch] = keep
            whole, cut = advanced.ordered.apart(layout.cut)
            cut_window = layout.cut[layout.group_of[advanced.windows.sums["sensor"]]]
            cut_windows = load_windows(dump_windows(advanced.windows.take(cut_window)))
            parts.append((load_part(dump_part(cut)), cut_windows))
            part = core + 1 if layout.order == "none" else 0
            self._send(whole, advanced.windows.take(~cut_window), part)
        merged = merge_parts([ordered for ordered, _ in parts], layout)
        self.merged_rows += len(merged.rows)
        self._send(merged, merge_windows([windows for _, windows in parts], layout), 0)
        for slot, decoder in decoders.items():
            self.marks[slot] = decoder.mark
        self.batch += 1
        self.before = layout
        return [key for _, key, _ in self.sent[already:]]

    def _send(self, ordered: Ordered, windows: CompleteWindows, part: int) -> None:
        slide_us = self.settings.steps.slide_us
        readings = zip(ordered.group.tolist(), result_blocks(ordered, self.layout, slide_us, part), strict=True)
        for group, block in chain(readings, window_blocks(windows, self.specs, self.layout, slide_us, part)):
            home = part - 1 if part else int(self.layout.home[group])
            self.sent.append((home, block_key(block), block.SerializeToString(deterministic=True)))
