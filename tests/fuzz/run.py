"""Records as nobody would write them, against whoever reads: `make fuzz SECONDS=3600`.

A world of the simulator runs while records are appended to all its topics: such as stand there with a field or a few
bits changed, and such as no service ever writes. Then everything else that reads a log reads what came of it. Nobody
may die. What fails prints its seed; `--seed SEED --seconds 1` runs it again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import time
import traceback
from typing import Any

import numpy as np
import structlog

from tests.fuzz.messages import record_like
from tests.simulation.fleet import SLOTS
from tests.simulation.nodes import Node
from tests.simulation.world import World
from tsunagi.audit.evidence import read_asides, read_blocks, read_outputs, read_placement, read_slot_log
from tsunagi.audit.ledger import AuditLedger
from tsunagi.demo.faults import SlotWatch
from tsunagi.edge.publish import EdgePlacementReader
from tsunagi.local.fleet import Fleet
from tsunagi.recovery.errors import ModelError
from tsunagi.replay.recompute import recompute
from tsunagi.runtime import log as topics
from tsunagi.runtime.log import LogError
from tsunagi.runtime.messages import Placement
from tsunagi.runtime.outputs import Outputs
from tsunagi.runtime.results import ResultsReader
from tsunagi.runtime.sensors import SensorsError, place
from tsunagi_spark.decode import Arrived, SlotDecoder
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.layout import make_layout

QUIET_S, FUZZED_S = 3.0, 6.0
SEEN_S = 10.0
HANG_S = 60
"""A world that takes longer, by the clock, counts as a death: somebody waits for what never comes."""
EVERY = 1
"""Turns of the world from one record to the next."""

_silent = structlog.wrap_logger(
    structlog.PrintLogger(), processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)]
)


class Watched(World):
    """A world that notes what its processes die of, and starts them again as a supervisor would."""

    deaths: list[str]

    def _turn(self, node: Node) -> None:
        try:
            super()._turn(node)
        except SensorsError:
            self._bury(node)  # it says that the placement is of another table than its own, which it cannot judge
        except Exception:  # noqa: BLE001 - whatever it is, it is a death
            self.deaths.append(f"{node.name} at {self.now:.2f} s: {traceback.format_exc()}")
            self._bury(node)


def disturb(world: Watched, draw: random.Random) -> None:
    """Append one record somewhere."""
    topic = draw.choice(topics.TOPICS)
    partition = draw.randrange(world.log.layout[topic])
    key, value = record_like(draw, topic, world.log.records(topic, partition)[-50:])
    world.log.append(topic, partition, key, value)


def read_all(world: Watched) -> None:
    """Let everybody read who is not of the simulator's world."""
    log, settings, table = world.log, world.settings, world.table
    slot_of = np.asarray(place(table, SLOTS), dtype=np.uint32)
    for results in (Outputs(log, settings, table), ResultsReader(log, settings, table)):
        for row in results.rows():
            str(row.time)
    ledger, fleet = AuditLedger(SLOTS, slot_of), Fleet(log)
    fleet.update()
    placement = Placement(serial=1, slots=SLOTS, slot=slot_of.tobytes(), table_sha256=table.digest())
    layout = make_layout(table, placement, 2, "ungrouped")
    with contextlib.suppress(SensorsError):
        EdgePlacementReader(log, table, world.clock, _silent).poll()
    with contextlib.suppress(LogError):
        read_placement(log.records(topics.PLAN, 0))
    read_asides(log.records(topics.LATE, 0), log.records(topics.DEAD_LETTERS, 0))
    read_blocks(0, log.records(topics.RESULTS, 0))
    for slot in range(SLOTS):
        SlotWatch(log, slot).update()
        read_slot_log(slot, log.records(topics.TUPLES, slot))
        outputs = log.records(topics.RECOVERED, slot)
        read_outputs(slot, outputs)
        decoder = SlotDecoder(slot, SlotMark(), layout, np.zeros(0, dtype=np.int64), settings.steps.slide_us)
        for record in outputs:
            decoder.add(Arrived(slot, record.offset, record.key, record.value, record.appended_us))
        decoder.blocks()
        with contextlib.suppress(ModelError):  # the log names one that nobody has
            for _ in recompute(log.records(topics.TUPLES, slot), world.load_model):
                pass
    for topic in topics.TOPICS:
        for partition in range(log.layout[topic]):
            for record in log.records(topic, partition):
                ledger.take(record)
    ledger.finish()


def fuzz(seed: int) -> list[str]:
    """Run one world; return what died in it, and of what."""
    world, draw = Watched.of_seed(seed), random.Random(seed)
    assert isinstance(world, Watched)
    world.deaths = []
    world.run(QUIET_S)
    until, turn = world.now + FUZZED_S, 0
    while world.now < until and not world.deaths:
        if turn % EVERY == 0:
            disturb(world, draw)
        world.run(world.tick_s)
        turn += 1
    world.clock.advance(SEEN_S)  # else the time that a record takes to a reader would not pass
    try:
        read_all(world)
    except Exception:  # noqa: BLE001 - as above
        world.deaths.append(f"a reader: {traceback.format_exc()}")
    return world.deaths


def _hangs(_number: int, _frame: Any) -> None:
    raise TimeoutError(f"not done after {HANG_S} s")


def main(arguments: list[str] | None = None) -> int:
    """Fuzz for a while; return 1 if anybody died."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    asked: Any = parser.parse_args(arguments)
    ends, seed, dead = time.monotonic() + asked.seconds, asked.seed, 0
    signal.signal(signal.SIGALRM, _hangs)
    while time.monotonic() < ends:
        signal.alarm(HANG_S)
        for death in fuzz(seed):
            dead += 1
            sys.stdout.write(f"seed {seed}: {death}\n")
        seed += 1
    signal.alarm(0)
    sys.stdout.write(f"fuzz: {seed - asked.seed} worlds, {dead} deaths\n")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
