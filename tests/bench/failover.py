"""Failover: gateway workers of a real system die under load, one after the other; how long was each slot silent?

    python -m tests.bench.failover --kills 50 --fault kill --batch 100 --rate 1000 --out out/failover.json

Starts its own broker, workers, edges and Spark as processes of this machine (below `--work`, on a port of its own),
sets the faults by `tsunagi chaos` on whoever owns a slot, judges all results, and writes one JSON object. Times are in
seconds: `silence_s` is measured by an outside reader, the parts of a takeover are the new owner's own. `stop` freezes a
worker for longer than detection takes, `partition` drops what it sends (as root).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import outcome
from tests.bench.system import Load, Usage, running, say, spread
from tsunagi.chaos.local import LocalDriver
from tsunagi.chaos.plan import Round, rounds
from tsunagi.chaos.report import Outcome
from tsunagi.chaos.run import Runner
from tsunagi.chaos.watch import ChaosWatch
from tsunagi.runtime.settings import Settings
from tsunagi.standby.promotion import DEATHS
from tsunagi.system import processes
from tsunagi.system.topics import tool_log

STOP_S = 3.0
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Steps of this length around a circle leave the most even gaps, wherever one stops."""
FAULTS = {"kill": "kill", "stop": "pause", "partition": "partition"}


def plans(options: argparse.Namespace) -> Iterator[Round]:
    """Yield the faults; a worker that is stopped stays so for longer than its death takes to be noticed.

    How long a slot is silent hangs on where in a step its owner dies, so any run of faults in a row is spread evenly
    over the step: medians of fifty then differ by what differs, not by the draw.
    """
    for plan in rounds(["gateway"], [FAULTS[options.fault]], options.kills, options.seed):
        spread_evenly = replace(plan, phase=(options.seed + plan.number * GOLDEN) % 1.0)
        yield spread_evenly if options.fault == "kill" else replace(spread_evenly, seconds=STOP_S)


def result(options: argparse.Namespace, settings: Settings, outcomes: list[Outcome], usage: Usage) -> dict[str, Any]:
    """Return the JSON object."""
    silences = [item.silence_s for item in outcomes if item.silence_s is not None]
    parts = [item for item in processes.logged(settings.state, "takeover") if item["reason"] in DEATHS]
    changes = [(item, taken) for item in outcomes for taken in item.takeovers]
    last = outcomes[-1].found if outcomes else None
    quarter = max(1, len(silences) // 4)
    return {
        "bench": "failover",
        "fault": options.fault,
        "batch": options.batch,
        "rate": options.rate,
        "speculation": options.speculation,
        "state_bytes": options.state_bytes,
        "seed": options.seed,
        "faults": len(outcomes),
        "silence_s": spread(silences),
        "detect_s": spread([item["detect_s"] for item in parts]),
        "promote_s": spread([item["promote_s"] for item in parts]),
        "catch_up_s": spread([item["catch_up_s"] for item in parts]),
        "median_first_quarter_s": median(silences[:quarter]) if silences else None,
        "median_last_quarter_s": median(silences[-quarter:]) if silences else None,
        "lost": sum(item.found.lost for item in outcomes),
        "duplicates": sum(item.found.duplicated for item in outcomes),
        "reordered": sum(item.found.inverted for item in outcomes),
        "wrong": sum(sum(item.found.wrong.values()) for item in outcomes),
        "not_recovered": [] if last is None else outcomes[-1].missing,
        "ownership_changes": len(changes),
        "expected_changes": sum(len(item.slots) for item in outcomes),
        "false_takeovers": sum(taken.slot not in item.slots for item, taken in changes),
        "speculations": round(usage.total("speculations")),
        "speculative_outputs": round(usage.total("ahead")),
        "speculative_repeats": round(usage.total("repeats")),
        "secondary_bytes": round(usage.total("bytes")),
        "secondary_requests": round(usage.total("requests")),
        "cpu_s": round(usage.total("cpu_s"), 1),
        "list": [item.as_json() for item in outcomes],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="number of faults")
    parser.add_argument("--fault", choices=tuple(FAULTS), default="kill")
    parser.add_argument("--batch", default="100", help="B in tuples, or inf")
    parser.add_argument("--rate", type=float, default=1000.0, help="tuples a second of all sensors together")
    parser.add_argument("--speculation", choices=("on", "off"), default="off")
    parser.add_argument("--state-bytes", type=int, default=0, help="of state that the operators hold on each slot")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29292)
    parser.add_argument("--work", type=Path, default=Path("out/bench"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    began = time.monotonic()
    wanted = Load(options.batch, options.rate, options.speculation == "on", options.state_bytes)
    with running(options.work, options.port, wanted) as (settings, config):
        usage = Usage(settings)
        watch = ChaosWatch(tool_log(settings, "bench"))

        def tell(line: str) -> None:
            usage.look()
            say(line)

        runner = Runner(LocalDriver(settings, config), watch, tell)
        code = runner.run(plans(options), seed=options.seed, asked=options.kills)
        usage.look()
        found = result(options, settings, runner.outcomes, usage) | {"seconds": round(time.monotonic() - began, 1)}
        usage.close()
        watch.close()
    outcome.write(found, options.out)
    say(json.dumps({name: value for name, value in found.items() if name != "list"}))
    return code


if __name__ == "__main__":
    sys.exit(main())
