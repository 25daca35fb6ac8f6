"""Failover with `mode = "tuples"`: owners die under load, one after the other. How long did each slot write nothing?

    python -m tests.bench.tuple_failover --kills 50 --rate 1000 --out out/tuple-failover.json

There are no steps, so each input has its output at once: a silence is all that the death costs. The scaler launches the
workers as processes of this machine. Whoever owns a slot is killed (SIGKILL), the slots in turn; the next one is killed
when each slot has an owner and a ready secondary again. A generator of the bench's own numbers the tuples of each slot,
so every slot's outputs must count up without a gap. One JSON object comes out.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench import outcome
from tests.bench.launched import SENSORS_OF_SLOT, Load, Watch, judge, judge_slot, running, wait_outputs
from tests.bench.system import say, spread
from tsunagi.audit.silence import silence_s
from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.settings import Settings
from tsunagi.standby.promotion import DEATHS
from tsunagi.system import processes
from tsunagi.system.topics import read_partition, tool_log

REST_S = 1.0
WATCHED_S = 3.0
"""So long after a kill its slot is watched."""

SCALER = """\
workers = {workers}
"""


class Death(NamedTuple):
    """Who was killed, and when (microseconds); the slots that it owned."""

    node: str
    at_us: int
    slots: tuple[int, ...]


def kill(settings: Settings, watch: Watch, slot: int) -> Death:
    """Kill the owner of a slot.

    Raises:
        RuntimeError: it has none, or none that runs here.
    """
    watch.workers()
    owners = watch.owners()
    process = processes.find(settings.state, owners.get(slot, ""))
    if process is None:
        raise RuntimeError(f"no process owns slot {slot}")
    slots = tuple(number for number, owner in owners.items() if owner == process.node)
    at_us = time.time_ns() // 1000
    processes.kill(process)
    return Death(process.node, at_us, slots)


def silences(settings: Settings, sent: list[int], deaths: list[Death], interval_us: int) -> list[float]:
    """Return for how long each slot of the dead wrote nothing new, less the time between two records, seconds."""
    log, found = tool_log(settings, "bench"), []
    for slot, total in enumerate(sent):
        _, late = judge_slot(read_partition(log, RECOVERED, slot), total)
        times = [appended_us for appended_us, _ in late]
        mine = [death.at_us for death in deaths if slot in death.slots]
        found += [silence_s(times, at_us, at_us + round(WATCHED_S * 1e6), interval_us) for at_us in mine]
    return [value for value in found if value is not None]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the bench; return its figures."""
    chance = random.Random(options.seed)
    with running(options.work, options.port, options.slots, SCALER.format(workers=options.workers)) as settings:
        watch = Watch(settings)
        wanted = {"local": options.workers}
        watch.wait(wanted)
        source = Load(settings, options.rate)
        source.start()
        deaths: list[Death] = []
        try:
            time.sleep(5 * REST_S)
            for number in range(options.kills):
                time.sleep(REST_S * (1.0 + chance.random()))
                deaths.append(kill(settings, watch, number % options.slots))
                time.sleep(WATCHED_S)
                replaced_s = WATCHED_S + watch.wait(wanted)
                if number % 10 == 0:
                    say(f"{number + 1} of {options.kills}: {deaths[-1].node}, whole again after {replaced_s:.1f} s")
        finally:
            source.end()
            watch.close()
        wait_outputs(settings, source.sent)
        wrong, _ = judge(settings, source.sent)
        interval_us = round(1e6 * SENSORS_OF_SLOT * options.slots / options.rate)
        taken = silences(settings, source.sent, deaths, interval_us)
        parts = [line for line in processes.logged(settings.state, "takeover") if line["reason"] in DEATHS]
        dead = {death.node for death in deaths}
        return {
            "bench": "tuple_failover",
            "kills": len(deaths),
            "rate": options.rate,
            "slots": options.slots,
            "workers": options.workers,
            "unsent": source.failed,
            **wrong,
            "silence_s": spread(taken),
            "detect_s": spread([line["detect_s"] for line in parts]),
            "catch_up_s": spread([line["catch_up_s"] for line in parts]),
            "takeovers": len(parts),
            "expected_takeovers": sum(len(death.slots) for death in deaths),
            "false_takeovers": sum(line["old_owner"] not in dead for line in parts),
            "bounds": {"lost": 0, "duplicates": 0, "reordered": 0, "silence_p50_s": 0.05, "silence_p99_s": 0.2},
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="owners that are killed [50]")
    parser.add_argument("--rate", type=float, default=1000.0, help="tuples/s of all slots together [1000]")
    parser.add_argument("--slots", type=int, default=2, help="slots [2]")
    parser.add_argument("--workers", type=int, default=5, help="workers [5]")
    parser.add_argument("--seed", type=int, default=1, help="of the pauses between kills [1]")
    parser.add_argument("--port", type=int, default=19395, help="of the broker [19395]")
    parser.add_argument("--work", type=Path, default=Path("out/bench-tuple-failover"), help="scratch directory")
    parser.add_argument("--out", type=Path, default=Path("out/tuple-failover.json"), help="where the figures go")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    found = run(options)
    outcome.write(found, options.out)
    say(json.dumps(found, indent=1))
    return 0 if not (found["lost"] or found["duplicates"] or found["reordered"]) else 1


if __name__ == "__main__":
    sys.exit(main())
