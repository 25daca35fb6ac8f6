"""A fleet that changes all the time: 100 random changes by `tsunagi apply`, while nodes die.

    python -m tests.bench.changes --count 100 --out out/changes.json

Starts a system of its own: 24 sensors on 4 edges unless told otherwise, each step .2 s. With many sensors say
`--interval 1`: this machine plays all edges beside the system. Every change adds, removes, moves or renames one to
three sensors; half of the sensors are never touched. An owner or an edge is killed during every fifth change, and comes
back. One JSON object comes out: how long the changes took to be in force, and what became of
the sensors that were never touched. The exit code is 1 if one of their steps was lost, doubled, out of order, or had
another value.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path
from typing import Any

from tests.bench import outcome
from tests.bench.system import say, spread
from tests.e2e.changes import Changes, judge, table_of
from tests.e2e.stream import EDGES, FIT_ROWS, ROWS, SENSORS, STEPS, write_inputs
from tests.e2e.system import SLOTS, Rig
from tsunagi.audit.evidence import Kill
from tsunagi.broker.checks import free_port
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.log import DEAD_LETTERS
from tsunagi.runtime.messages import DeadLetter
from tsunagi.system.topics import read_partition

STRIKE_EVERY = 5
"""Number of changes from one kill to the next."""
LEAST_S_A_CHANGE = 6.0
"""So long a stream there is for each change: a change with a kill takes some seconds."""
LEFT_OUT = 4
"""Number of sensors of the stream that the fleet does not have at first."""


def run(work: Path, count: int, seed: int, sensors: int, edge_count: int, interval_s: float) -> dict[str, Any]:
    """Return what is found."""
    read = math.ceil(LEAST_S_A_CHANGE * count / interval_s)
    rows = max(ROWS, read) if sensors <= SENSORS else read + FIT_ROWS
    steps = STEPS.model_copy(update={"interval_s": interval_s})
    inputs = write_inputs(work / "inputs", sensors=sensors, edges=edge_count, rows=rows, steps=steps)
    changes, own = Changes.of(inputs, work / "user", left_out=LEFT_OUT)
    rig = Rig(work / "system", own, servers=f"127.0.0.1:{free_port()}")
    chance = random.Random(seed)
    edges = [f"edge-{number + 1}" for number in range(edge_count)]
    in_force: list[float] = []
    kills: list[Kill] = []
    try:
        rig.start()
        rig.wait_protected()
        began = time.monotonic()
        for number in range(count):
            said = [changes.draw(chance, edges) for _ in range(chance.randrange(1, 4))]
            down = dead = ""  # the edge or the worker that is killed
            if number % STRIKE_EVERY == STRIKE_EVERY - 1:
                if chance.random() < 0.5:
                    rig.wait_protected()
                    kills.append(rig.kill_owner(chance.randrange(SLOTS)))
                    dead = kills[-1].node
                else:
                    left = {changes.rows[name][1] for name in changes.present}  # without a sensor it sends nothing
                    down = chance.choice(sorted(left & set(table_of(rig).edges)))
                    rig.kill_edge(down)
            asked = time.monotonic()
            try:
                changes.apply(rig)
                in_force.append(time.monotonic() - asked)
            except AssertionError:
                say(f"{number + 1}: {'; '.join(said)}: took itself back")
            else:
                say(f"{number + 1}: {'; '.join(said)}: {in_force[-1]:.2f} s")
            if down:
                rig.edge_back(down)
            if dead:
                rig.worker_back(dead)
        rig.wait_protected()
        rig.advance()
        lasted = time.monotonic() - began
        found = judge(rig, changes, away=frozenset(rig.down))
        letters = [DeadLetter.FromString(record.value or b"") for record in read_partition(rig.log, DEAD_LETTERS, 0)]
        differences = replay_slots(rig.settings, (), lambda _line: None)
        table = table_of(rig)
        return {
            "bench": "changes",
            "count": count,
            "seed": seed,
            "sensors": sensors,
            "edges": edge_count,
            "step_s": steps.slide_us / 1e6,
            "lasted_s": round(lasted, 1),
            "in_force_s": spread(in_force),
            "in_force_max_s": round(max(in_force), 2),
            "owners_killed": len(kills),
            "edges_killed": sum(map(len, rig.down.values())),
            "rows_of_the_table": len(table),
            "removed_at_the_end": len(table) - len(table.present),
            "untouched": len(changes.steady),
            "untouched_rows": found.rows,
            "untouched_measured": found.exact,
            "untouched_late": found.late,
            "wrong": found.wrong[:20],
            "refused_batches": sum(letter.topic.endswith("tuples") for letter in letters),
            "replay_differences": differences,
        }
    finally:
        rig.close()


def main() -> int:
    """Run the bench from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sensors", type=int, default=SENSORS)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument("--interval", type=float, default=STEPS.interval_s, help="seconds; a step is two of them")
    parser.add_argument(
        "--work", type=Path, default=Path("out/changes"), help="directory of everything that is written"
    )
    parser.add_argument("--out", type=Path, default=Path("out/changes.json"))
    arguments = parser.parse_args()
    outcome.fresh(arguments.work)
    found = run(arguments.work, arguments.count, arguments.seed, arguments.sensors, arguments.edges, arguments.interval)
    outcome.write(found, arguments.out)
    say(str(found))
    return int(bool(found["wrong"] or found["replay_differences"]))


if __name__ == "__main__":
    raise SystemExit(main())
