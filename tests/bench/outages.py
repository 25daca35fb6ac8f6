"""Outages of the broker: of the readings that edges had to keep meanwhile, how many come too late for their steps?

    python -m tests.bench.outages --count 25 --seconds 10 --out out/outages.json

Starts a system of its own, kills its only broker again and again, and starts it after some seconds. A reading counts as
spooled if the log took its batch more than a second after its event time; late are those that went to `late`, where
nothing is lost. One JSON object comes out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench import outcome
from tests.bench.system import Load, running, say
from tsunagi.chaos.local import LocalDriver
from tsunagi.chaos.plan import Round
from tsunagi.runtime.log import LATE, TUPLES
from tsunagi.runtime.messages import Late, LogRecord
from tsunagi.runtime.settings import Settings
from tsunagi.system import processes
from tsunagi.system.topics import read_partition, tool_log

SPOOLED_US = 1_000_000
SETTLE_S = 12.0


def judge(settings: Settings, from_us: int) -> dict[str, Any]:
    """Count spooled and late readings since a moment."""
    log = tool_log(settings, "bench")
    readings = spooled = longest_us = 0
    for slot in range(settings.slots.count):
        for record in read_partition(log, TUPLES, slot):
            message = LogRecord.FromString(record.value or b"")
            if message.WhichOneof("body") != "batch" or record.appended_us < from_us:
                continue
            waited_us = record.appended_us - message.batch.event_time_us
            count = len(message.batch.value) // 8
            readings += count
            spooled += count * (waited_us > SPOOLED_US)
            longest_us = max(longest_us, waited_us)
    late: dict[str, int] = {}
    for record in read_partition(log, LATE, 0):
        found = Late.FromString(record.value or b"")
        late[found.reason] = late.get(found.reason, 0) + len(found.batch.value) // 8
    return {
        "readings": readings,
        "spooled": spooled,
        "waited_at_most_s": round(longest_us / 1e6, 2),
        "late": late,
        "late_share_of_spooled": round(sum(late.values()) / spooled, 5) if spooled else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=10.0, help="that the broker is away")
    parser.add_argument("--rate", type=float, default=1000.0, help="tuples a second of all sensors together")
    parser.add_argument("--port", type=int, default=29292)
    parser.add_argument("--work", type=Path, default=Path("out/bench"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with running(options.work, options.port, Load(rate=options.rate)) as (settings, config):
        driver = LocalDriver(settings, config)
        from_us = time.time_ns() // 1000
        for number in range(1, options.count + 1):
            driver.apply(Round(number, "kafka", "kill", 0.0, 0.0, options.seconds), "kafka")
            time.sleep(options.seconds)
            driver.undo()
            time.sleep(SETTLE_S)
            say(f"outage {number} of {options.count}")
        found = {
            "bench": "outages",
            "count": options.count,
            "seconds": options.seconds,
            "rate": options.rate,
            **judge(settings, from_us),
            "ownership_changes": sum(item["reason"] != "plan" for item in processes.logged(settings.state, "takeover")),
        }
    outcome.write(found, options.out)
    say(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
