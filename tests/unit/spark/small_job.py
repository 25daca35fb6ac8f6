"""The job without Spark and Kafka: the same decoding and ordering, batch by batch, with state in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from services.runtime.messages import Placement, Plan
from services.runtime.settings import Settings
from spark.blocks import Block, Counters, from_arrow, to_arrow
from spark.decode import Arrived, Sidelined, decode
from spark.frontier import Mark
from spark.layout import Layout, make_layout
from spark.merge import Task, advance, grown, result_blocks
from spark.publish import block_key
from spark.queries import Readings, span_steps
from spark.state import CoreState
from tests.spark.world import World


def layout_of(world: World, cores: int = 2) -> Layout:
    placement: Placement = Plan.FromString(world.placement()).placement
    return make_layout(world.table, placement, cores, world.settings.spark.unknown_group)


@dataclass
class SmallJob:
    settings: Settings
    layout: Layout
    marks: dict[int, Mark] = field(default_factory=dict)
    states: dict[int, CoreState] = field(default_factory=dict)
    minute: dict[tuple[int, int], Readings] = field(default_factory=dict)
    sent: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    sidelined: list[Sidelined] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    batch: int = 0

    def run(self, records: Iterable[Arrived], overdue: Iterable[int] = ()) -> list[bytes]:
        """Run one batch; return the keys it sent."""
        settings, layout = self.settings, self.layout
        delivered = np.full(len(layout.groups), -(2**61), dtype=np.int64)
        for core, state in self.states.items():
            mine = np.flatnonzero(layout.core_of[: len(state.delivered)] == core)
            delivered[mine] = state.delivered[mine]
        decoders = decode(records, self.marks, layout, delivered, settings.steps.slide_us)
        blocks: list[Block] = []
        for decoder in decoders.values():
            made = decoder.blocks()
            self.counters.add(made[0].counters)
            blocks += made
            self.sidelined += decoder.sidelined
        sent = []
        for core in range(layout.cores):
            mine_blocks = from_arrow(to_arrow([block for block in blocks if block.core == core]))
            task = Task(
                self.batch,
                core,
                layout,
                self.marks,
                frozenset(overdue),
                settings.steps.slide_us,
                span_steps(settings.query.range_s, settings.steps.slide_us),
            )

            def read(batch: int, low: int, high: int, core: int = core) -> Readings:
                rows = self.minute[core, batch]
                which = (rows.step > low) & (rows.step <= high)
                return Readings(rows.sensor[which], rows.step[which], rows.above[which])

            advanced = advance(grown(self.states.get(core), layout), task, mine_blocks, read)
            self.states[core] = advanced.state
            self.minute[core, self.batch] = advanced.keep
            for block in result_blocks(advanced.ordered, layout, settings.steps.slide_us):
                self.sent.append((core, block_key(block), block.SerializeToString(deterministic=True)))
                sent.append(block_key(block))
        for slot, decoder in decoders.items():
            self.marks[slot] = decoder.mark
        self.batch += 1
        return sent
