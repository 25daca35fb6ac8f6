"""Figures 4 to 13 of the A-SAS paper, and the trade-off against the cost models: `make figures-standby`.

    python -m tests.bench.standby.figures --repeat 5 --out out/figures-standby

Each figure is written as CSV and picture, and beside it what the paper says of it as statements, each with whether it
held here (claims.json). All trials share one broker and run one after the other; nothing else should run meanwhile.
With the paper's eleven batch sizes and `--repeat 5` it takes hours; `--experiments 1 --batches 1,100,500` takes less.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.bench.findings import EQUAL, Curves, Findings, Panel, say
from tests.bench.outcome import fresh
from tests.bench.standby.trial import Outcome, Trial, run
from tsunagi.broker.broker import Broker

BATCHES = (1, *range(50, 501, 50))
KILLS_S = (1, 5, 10, 15, 20, 25, 30)
PORT = 29692
SETTLE_S = 2.0
RATE_LIMITS = 'max_bandwidth = 30000\nmax_recovery_s = 0.08\npriority = "recovery"'
COST_LIMITS = 'max_bandwidth = 20000\nmax_recovery_s = 0.1\npriority = "recovery"'
HALF_LIMIT_S = 0.3
HALF_LIMITS = f'max_recovery_s = {HALF_LIMIT_S}\npriority = "recovery"\npolicy = "model"'


class Measured(NamedTuple):
    """A point of a curve: medians over the repetitions, and their spread (max - min)."""

    label: str
    batch: float
    overhead: float
    overhead_spread: float
    recovery_s: float
    recovery_spread: float
    requests_s: float


class Traded(NamedTuple):
    """A takeover of the trade-off: what it took, and what the cost models said."""

    batch: int
    bytes_s: float
    bw_model: float
    recovery_s: float
    model_of_records_s: float
    r_time: float
    records: int
    requests_s: float


class Bench(Findings):
    """Runs trials, counts them, and remembers the curves that several figures share."""

    def __init__(self, options: argparse.Namespace, servers: str) -> None:
        super().__init__(options.out)
        self.options = options
        self._servers = servers
        self._number = 0
        self._known: dict[Trial, list[Outcome]] = {}

    def outcomes(self, trial: Trial) -> list[Outcome]:
        """Run a trial as often as asked, unless it has been."""
        known = self._known.setdefault(trial, [])
        while len(known) < self.options.repeat:
            self._number += 1
            outcome = run(trial, self.out / "work" / f"{self._number:04d}", self._servers)
            known.append(outcome)
            recovery = "-" if outcome.recovery_s is None else f"{outcome.recovery_s * 1e3:.1f} ms"
            say(
                f"{self._number:4d}  {trial.scheme:<4} B {trial.batch:<4} {trial.operator:<9} "
                f"{trial.load_mb_s:g} MB/s, killed at {trial.kill_s}: overhead {outcome.overhead:.3f}, "
                f"recovery {recovery} for {outcome.records} records"
            )
        return known

    def measure(self, label: str, trial: Trial) -> Measured:
        """Return a point of a curve."""
        found = self.outcomes(trial)
        overheads = [item.overhead for item in found]
        recoveries = [item.recovery_s or 0.0 for item in found]
        return Measured(
            label,
            float(trial.batch),
            median(overheads),
            max(overheads) - min(overheads),
            median(recoveries),
            max(recoveries) - min(recoveries),
            median(item.requests_s for item in found),
        )

    def curve(self, label: str, trial: Trial) -> list[Measured]:
        """Return a curve over B."""
        return [self.measure(label, replace(trial, batch=batch)) for batch in self.options.batches]

    def draw(self, name: str, drawn: Curves, axes: tuple[str, str], limit: float | None = None) -> None:
        """Draw curves over one pair of axes."""
        self.picture(name, [Panel(drawn, *axes, limit)])


def falls(values: Sequence[float], slack: float) -> bool:
    """Return whether a curve falls, but for noise."""
    return all(b <= a + slack for a, b in itertools.pairwise(values)) and values[-1] < values[0]


def curves(bench: Bench, names: tuple[str, str], found: Sequence[Sequence[Measured]]) -> None:
    """Write and draw overhead and recovery time over B; a curve of one point is a level line."""
    points = [point for curve in found for point in curve]
    columns = Measured._fields
    for name, label in ((names[0], "bandwidth overhead"), (names[1], "recovery time, ms")):
        bench.write(name, points, columns)
        drawn: Curves = {}
        for curve in found:
            x = [point.batch for point in curve] if len(curve) > 1 else list(bench.options.batches)
            y = [point.overhead if name == names[0] else point.recovery_s * 1e3 for point in curve]
            drawn[curve[0].label] = x, y if len(curve) > 1 else y * len(x)
        bench.draw(name, drawn, ("batch size B, tuples", label))


def experiment_1(bench: Bench) -> None:
    """Figures 4 and 5: SAS against AS and UB."""
    sas = bench.curve("SAS", Trial())
    active = bench.measure("AS", Trial(scheme="as"))
    upstream = bench.measure("UB", Trial(scheme="ub"))
    never = bench.measure("SAS, B = inf", Trial(batch="inf"))
    curves(bench, ("figure-04", "figure-05"), [sas, [active], [upstream]])
    first, last = sas[0], sas[-1]
    overheads = [point.overhead for point in sas]
    bench.claim(
        "4", "SAS' overhead falls as B grows", falls(overheads, 0.05), ", ".join(f"{item:.2f}" for item in overheads)
    )
    bench.claim(
        "4",
        "B = 1 needs as much bandwidth as AS",
        abs(first.overhead / active.overhead - 1) <= EQUAL,
        f"{first.overhead:.3f} against {active.overhead:.3f}",
    )
    bench.claim("4", "UB needs none", upstream.overhead < EQUAL * active.overhead, f"{upstream.overhead:.3f}")
    bench.claim(
        "5",
        "SAS' recovery time grows with B, up to UB's",
        last.recovery_s > first.recovery_s,
        f"{first.recovery_s * 1e3:.1f} to {last.recovery_s * 1e3:.1f} ms; UB {upstream.recovery_s * 1e3:.1f} ms",
    )
    bench.claim(
        "5",
        "B = 1 recovers as AS does",
        abs(first.recovery_s / active.recovery_s - 1) <= EQUAL,
        f"{first.recovery_s * 1e3:.1f} against {active.recovery_s * 1e3:.1f} ms",
    )
    bench.claim(
        "5",
        "B = infinity is UB",
        never.overhead < 0.01 and abs(never.recovery_s / upstream.recovery_s - 1) <= EQUAL,
        f"overhead {never.overhead:.3f} and {upstream.overhead:.3f}, "
        f"{never.recovery_s * 1e3:.1f} against {upstream.recovery_s * 1e3:.1f} ms",
    )
    bench.claim(
        "5",
        "AS recovers faster than UB",
        active.recovery_s < upstream.recovery_s,
        f"{active.recovery_s * 1e3:.1f} against {upstream.recovery_s * 1e3:.1f} ms",
    )


def experiment_2(bench: Bench) -> None:
    """Figures 6 and 7: select against aggregate."""
    select = bench.curve("select", Trial())
    aggregate = bench.curve("aggregate", Trial(operator="aggregate"))
    curves(bench, ("figure-06", "figure-07"), [select, aggregate])
    pairs = list(zip(select, aggregate, strict=True))
    bench.claim(
        "6",
        "select needs no more bandwidth than aggregate",
        all(a.overhead <= b.overhead * (1 + EQUAL) + 0.02 for a, b in pairs),
        ", ".join(f"{a.overhead:.2f}/{b.overhead:.2f}" for a, b in pairs),
    )
    ratio = median(b.recovery_s / a.recovery_s for a, b in pairs if a.recovery_s > 0)
    bench.claim("7", "aggregate takes about 3.1 times as long to recover", 2.0 <= ratio <= 4.5, f"{ratio:.2f} times")


def experiment_3(bench: Bench) -> None:
    """Figures 8 and 9: other traffic."""
    loads = (0.0, 40.0, 60.0)
    found = [
        bench.curve("no load" if not load else f"{load:g} MB/s", Trial(operator="aggregate", load_mb_s=load))
        for load in loads
    ]
    curves(bench, ("figure-08", "figure-09"), found)
    zero = [next((p.batch for p in curve if p.overhead < 0.01), 0) for curve in found]
    bench.claim(
        "8",
        "under load the overhead is 0 from a smaller B on",
        all(0 < batch <= (zero[0] or max(bench.options.batches)) for batch in zero[1:]),
        f"0 from B = {zero} (0 = never) at {loads} MB/s",
    )
    means = [sum(point.recovery_s for point in curve) / len(curve) for curve in found]
    bench.claim(
        "9",
        "recovery takes longer the higher the load",
        means[0] < means[1] < means[2],
        ", ".join(f"{item * 1e3:.1f} ms" for item in means),
    )


def adaptive(bench: Bench, names: tuple[str, str], step: Trial, limits: str, bounds: tuple[float, float]) -> None:
    """Bandwidth over time, and the recovery time of a primary killed at several times, around a change at 10 s."""
    schemes = {
        "A-SAS (step)": replace(step, batch=1, limits=limits, stepwise=True),
        "A-SAS (model)": replace(step, batch=1, limits=limits),
        "AS": replace(step, scheme="as"),
        "UB": replace(step, scheme="ub"),
    }
    rows: list[tuple[Any, ...]] = []
    drawn: Curves = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for label, trial in schemes.items():
        runs = bench.outcomes(replace(trial, kill_s=None))
        length = min(len(item.series) for item in runs)
        series[label] = [
            (runs[0].series[place][0], median(item.series[place][1] for item in runs)) for place in range(length)
        ]
        rows += [(label, at, value) for at, value in series[label]]
        drawn[label] = [at for at, _ in series[label]], [value / 1e3 for _, value in series[label]]
    bench.write(names[0], rows, ("scheme", "seconds", "bytes_per_s"))
    bench.draw(names[0], drawn, ("seconds", "bandwidth, KB/s"), bounds[0] / 1e3)
    rows, drawn, kills = [], {}, bench.options.kills
    recovery: dict[str, list[float]] = {}
    for label, trial in schemes.items():
        found = [bench.measure(label, replace(trial, kill_s=float(at), warm_s=0.5)) for at in kills]
        recovery[label] = [point.recovery_s for point in found]
        rows += [(label, at, point.recovery_s, point.recovery_spread) for at, point in zip(kills, found, strict=True)]
        drawn[label] = kills, [point.recovery_s * 1e3 for point in found]
    bench.write(names[1], rows, ("scheme", "killed_at_s", "recovery_s", "spread_s"))
    bench.draw(names[1], drawn, ("primary killed at, s", "recovery time, ms"), bounds[1] * 1e3)
    figures = [name.removeprefix("figure-").lstrip("0") for name in names]
    for label in ("A-SAS (step)", "A-SAS (model)"):
        # A second's bytes are noted at its end: those count that began when the limits had to hold again.
        after = [value for at, value in series[label] if at - 1.0 >= step.change_s + SETTLE_S]
        over = sum(value > bounds[0] for value in after)
        bench.claim(
            figures[0],
            f"{label} is within the bandwidth limit {SETTLE_S:g} s after the change (where both limits can be kept)",
            over == 0,
            f"over it in {over} of {len(after)} seconds",
        )
        killed = list(zip(kills, recovery[label], strict=True))
        settled = [value for at, value in killed if not step.change_s <= at < step.change_s + SETTLE_S]
        worst = max(settled, default=math.inf)
        bench.claim(
            figures[1],
            f"{label} stays within the recovery limit, but for {SETTLE_S:g} s after the change",
            worst <= bounds[1],
            f"at most {worst * 1e3:.1f} ms; {', '.join(f'{value * 1e3:.1f} ms at {at:g} s' for at, value in killed)}",
        )
    late = [value for at, value in series["AS"] if at > step.change_s + SETTLE_S]
    bench.claim(
        figures[0], "AS exceeds the bandwidth limit", min(late) > bounds[0], f"at least {min(late) / 1e3:.1f} KB/s"
    )
    bench.claim(
        figures[1],
        "UB exceeds the recovery limit",
        max(recovery["UB"]) > bounds[1],
        f"at most {max(recovery['UB']) * 1e3:.1f} ms",
    )


def experiment_4(bench: Bench) -> None:
    """Figures 10 and 11: the rate goes from 100 to 1,000 tuples/s."""
    trial = Trial(rate=100.0, later_rate=1000.0, seconds=30.0)
    adaptive(bench, ("figure-10", "figure-11"), trial, RATE_LIMITS, (30_000.0, 0.08))


def experiment_5(bench: Bench) -> None:
    """Figures 12 and 13: a tuple's cost goes from 0.05 to 1 ms, at 500 tuples/s."""
    trial = Trial(rate=500.0, cost_ms=0.05, later_cost_ms=1.0, seconds=30.0)
    adaptive(bench, ("figure-12", "figure-13"), trial, COST_LIMITS, (20_000.0, 0.1))


def trade_off(bench: Bench) -> None:
    """The trade-off over B with an operator of 1 ms a tuple, against the cost models; not in the paper."""
    trial = Trial(rate=300.0, cost_ms=1.0, ack_s=3.0, period_s=8.0, warm_s=10.0, kill_s=24.0, full=True)
    active = bench.measure("AS", replace(trial, scheme="as", full=False))
    upstream = bench.measure("UB", replace(trial, scheme="ub", full=False))
    rows: list[Traded] = []
    for batch in bench.options.batches:
        for found in bench.outcomes(replace(trial, batch=batch)):
            models = found.models
            tuple_s = models["send_seconds"] + models["process_seconds"]
            rows.append(
                Traded(
                    batch=batch,
                    bytes_s=found.backup_bytes_s,
                    bw_model=models["bandwidth_bytes_per_second"],
                    recovery_s=found.recovery_s or 0.0,
                    model_of_records_s=models["takeover_seconds"] + found.records * tuple_s,
                    r_time=models["recovery_seconds"],
                    records=found.records,
                    requests_s=found.requests_s,
                )
            )
    bench.write("trade-off", rows, Traded._fields)
    at = [row.batch for row in rows]
    bench.draw(
        "trade-off-bytes",
        {"measured": (at, [row.bytes_s / 1e3 for row in rows]), "BW*": (at, [row.bw_model / 1e3 for row in rows])},
        ("batch size B, tuples", "to the secondary, KB/s"),
    )
    bench.draw(
        "trade-off-recovery",
        {"measured": (at, [row.recovery_s * 1e3 for row in rows]), "R_time*": (at, [row.r_time * 1e3 for row in rows])},
        ("batch size B, tuples", "recovery time, ms"),
    )
    ratios: dict[str, Callable[[Traded], float]] = {
        "the bytes to the secondary are within 10 % of BW*": lambda row: row.bytes_s / max(1e-9, row.bw_model),
        "recovery beyond detection is within 10 % of the cost model for the tuples it had to process": lambda row: (
            row.recovery_s / max(1e-9, row.model_of_records_s)
        ),
    }
    for says, ratio in ratios.items():
        medians = [median(ratio(row) for row in rows if row.batch == batch) for batch in sorted(set(at))]
        worst = max(abs(item - 1) for item in medians)
        bench.claim("trade-off", says, worst <= EQUAL, ", ".join(f"{item:.2f}" for item in medians))
    over = max(row.recovery_s / max(1e-9, row.r_time) for row in rows)
    bench.claim("trade-off", "no recovery takes longer than R_time*", over <= 1.0, f"at most {over:.2f} of it")
    quick = [row for row in rows if row.recovery_s <= upstream.recovery_s / 3]
    requests = [row.requests_s / active.requests_s for row in quick]
    bench.claim(
        "trade-off",
        "the secondary's requests are at most 5 % of AS's wherever recovery is at most a third of UB's",
        bool(requests) and max(requests) <= 0.05,
        f"at most {max(requests, default=0.0):.3f} of AS's {active.requests_s:.0f}/s; "
        f"UB recovers in {upstream.recovery_s * 1e3:.0f} ms",
    )


def half_speed(bench: Bench) -> None:
    """A secondary at half the primary's speed, with a limit on recovery and none on bandwidth; not in the paper."""
    trial = Trial(rate=300.0, cost_ms=1.0, limits=HALF_LIMITS, ack_s=3.0, period_s=4.0, kill_s=14.0)
    rows: list[tuple[Any, ...]] = [
        (
            label,
            found.series[-1][2],
            found.recovery_s or 0.0,
            found.models["recovery_seconds"],
            found.models["process_seconds"],
            found.records,
        )
        for label, slow in (("full speed", False), ("half speed", True))
        for found in bench.outcomes(replace(trial, half_speed=slow))
    ]
    columns = ("secondary", "batch", "recovery_s", "r_time", "r_ptime", "records")
    bench.write("half-speed", rows, columns)
    of = {label: [row for row in rows if row[0] == label] for label in ("full speed", "half speed")}
    worst = max(row[2] for row in of["half speed"])
    bench.claim(
        "half speed",
        f"a secondary at half speed recovers within the limit of {HALF_LIMIT_S * 1e3:g} ms",
        worst <= HALF_LIMIT_S,
        f"at most {worst * 1e3:.0f} ms",
    )
    costs = [median(row[4] for row in of[label]) for label in of]
    batches = [median(row[1] for row in of[label]) for label in of]
    bench.claim(
        "half speed",
        "its R_ptime is measured as twice as long, and B is set by it",
        1.6 <= costs[1] / costs[0] <= 2.6 and batches[1] < batches[0],
        f"{costs[0] * 1e3:.2f} and {costs[1] * 1e3:.2f} ms a tuple, B {batches[0]:g} and {batches[1]:g}",
    )


EXPERIMENTS: dict[int, Callable[[Bench], None]] = {
    1: experiment_1,
    2: experiment_2,
    3: experiment_3,
    4: experiment_4,
    5: experiment_5,
    6: trade_off,
    7: half_speed,
}


def numbers(text: str) -> tuple[int, ...]:
    """Read a list of numbers."""
    return tuple(int(item) for item in text.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--experiments", type=numbers, default=tuple(EXPERIMENTS), help="e.g. 1,2")
    parser.add_argument("--batches", type=numbers, default=BATCHES, help="batch sizes, e.g. 1,100,500")
    parser.add_argument("--kills", type=numbers, default=KILLS_S, help="of experiments 4 and 5, seconds, e.g. 5,15,30")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--out", type=Path, default=Path("out/figures-standby"))
    options = parser.parse_args()
    options.out = options.out.resolve()
    for left in ("work", "kafka"):
        fresh(options.out / left)
    broker = Broker(options.out / "kafka", options.port)
    began = time.monotonic()
    bench = Bench(options, broker.servers)
    try:
        broker.start()
        broker.wait_ready()
        for number in options.experiments:
            say(f"experiment {number}: {EXPERIMENTS[number].__doc__}")
            EXPERIMENTS[number](bench)
    finally:
        broker.stop()
    bench.save(
        {
            "bench": "figures-standby",
            "repeat": options.repeat,
            "batches": options.batches,
            "seconds": round(time.monotonic() - began),
        }
    )
    say(f"{sum(claim.held for claim in bench.claims)} of {len(bench.claims)} statements held; {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
