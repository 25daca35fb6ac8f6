"""What the paper says of its figures 5, 6 and 7, and what Tsunagi is meant to do better, judged from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.bench.findings import EQUAL, Claim

IDEAL_S = 1.0
"""The ideal response: a window of 10 readings, 0.1 s apart."""
MANY = 0.9
"""The share of satisfied values that the paper has at r_f = .1."""


class Row(NamedTuple):
    """A method in a scenario: medians over the repetitions, and their spread (max - min). See `trial.Outcome`."""

    vary: str
    value: float
    missing: float
    method: str
    rmse: float
    rmse_spread: float
    satisfied: float
    satisfied_spread: float
    coverage: float
    helpers: float
    decide_ms: float
    filter_ms: float
    slowest_ms: float
    response_s: float
    response_spread: float
    one_core_s: float


class Sized(NamedTuple):
    """A method over a fleet of n sensors, the same way. `prepare_s` is the paper's: the split, or of a method with
    helpers what these are chosen by."""

    sensors: int
    method: str
    prepare_s: float
    prepare_spread: float
    split_s: float
    helpers_s: float
    filters_s: float
    decide_ms: float
    filter_ms: float
    slowest_ms: float
    response_s: float
    response_spread: float
    one_core_s: float
    repetitions: int


class _Table:
    """Rows by method and scenario."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.vary, row.value, row.method): row for row in rows}
        self.scenarios = list(dict.fromkeys((row.vary, row.value) for row in rows))

    def __call__(self, scenario: tuple[str, float], method: str) -> Row:
        return self._rows[*scenario, method]

    def along(self, vary: str, method: str) -> list[Row]:
        """Return a method's rows, by what varies, ascending."""
        found = [row for row in self._rows.values() if row.vary == vary and row.method == method]
        return sorted(found, key=lambda row: row.value)

    def worst(self) -> tuple[str, float]:
        """Return the scenario of the greatest r_f."""
        return max((place for place in self.scenarios if place[0] == "r_f"), key=lambda place: place[1])


def accuracy(rows: Sequence[Row]) -> list[Claim]:
    """Judge figure 5, section 5.2."""
    at = _Table(rows)
    all_ = at.scenarios
    worst = at.worst()

    def pairs(one: str, other: str, field: str) -> str:
        return ", ".join(f"{getattr(at(s, one), field):.3f}/{getattr(at(s, other), field):.3f}" for s in all_)

    gains = [at(s, "proposed+").satisfied - at(s, "proposed").satisfied for s in all_]
    return [
        Claim(
            "5",
            "proposed has a lower RMSE than random and satisfies more, in every scenario",
            all(
                at(s, "proposed").rmse < at(s, "random").rmse
                and at(s, "proposed").satisfied > at(s, "random").satisfied
                for s in all_
            ),
            f"RMSE {pairs('proposed', 'random', 'rmse')}; satisfied {pairs('proposed', 'random', 'satisfied')}",
        ),
        Claim(
            "5",
            "proposed recovers as well as vanilla: its RMSE is no more than 10 % above",
            all(at(s, "proposed").rmse <= at(s, "vanilla").rmse * (1 + EQUAL) for s in all_),
            f"RMSE {pairs('proposed', 'vanilla', 'rmse')}; satisfied {pairs('proposed', 'vanilla', 'satisfied')}",
        ),
        Claim(
            "5",
            "the RMSE of proposed+ is much like that of proposed (within 10 %)",
            all(abs(at(s, "proposed+").rmse / at(s, "proposed").rmse - 1) <= EQUAL for s in all_),
            f"RMSE {pairs('proposed+', 'proposed', 'rmse')}",
        ),
        Claim(
            "5",
            "proposed+ satisfies far more than proposed (0.1 of all values, in the median scenario)",
            sorted(gains)[len(gains) // 2] >= 0.1,
            f"satisfied {pairs('proposed+', 'proposed', 'satisfied')}",
        ),
        Claim(
            "5",
            f"proposed+ satisfies at least 90 % at r_f = {worst[1]:g}",
            at(worst, "proposed+").satisfied >= MANY,
            f"{at(worst, 'proposed+').satisfied:.3f} with {at(worst, 'proposed+').missing:.2f} missing",
        ),
        Claim(
            "5, ours",
            "ours satisfies at least what proposed+ does, within 0.01 in every scenario",
            all(at(s, "ours").satisfied >= at(s, "proposed+").satisfied - 0.01 for s in all_),
            f"{pairs('ours', 'proposed+', 'satisfied')}; helpers {pairs('ours', 'proposed+', 'helpers')}",
        ),
        Claim(
            "5, ours",
            "ours in one slot has the lowest RMSE and satisfies most, in every scenario",
            all(
                at(s, "ours, one slot").rmse <= row.rmse * (1 + 1e-6)
                and at(s, "ours, one slot").satisfied >= row.satisfied - 1e-6
                for s in all_
                for row in rows
                if (row.vary, row.value) == s
            ),
            f"{pairs('ours, one slot', 'proposed+', 'rmse')}; {pairs('ours, one slot', 'proposed+', 'satisfied')}",
        ),
        Claim(
            "5, ours",
            "bounds hold: the truth is within them in 0.9 of all cases, within 0.02 for every method and scenario",
            all(abs(row.coverage - MANY) <= 0.02 for row in rows),
            f"{min(row.coverage for row in rows):.3f} to {max(row.coverage for row in rows):.3f}",
        ),
    ]


def responses(rows: Sequence[Row]) -> list[Claim]:
    """Judge figure 6, section 5.3."""
    at = _Table(rows)
    all_ = at.scenarios
    worst = at.worst()

    def rise(vary: str, method: str) -> float:
        along = at.along(vary, method)
        return along[-1].response_s - along[0].response_s

    def listed(method: str) -> str:
        return f"{method} " + ", ".join(f"{at(s, method).response_s:.4g}" for s in all_) + " s"

    late = [row.response_s - IDEAL_S for row in (at(worst, "single"), at(worst, "proposed+"))]
    steps = [at(worst, name).slowest_ms for name in ("single", "proposed+", "ours", "ours, one slot")]
    return [
        Claim(
            "6",
            "the more is missing, the longer single takes to respond (over r_f, and over t_f)",
            rise("r_f", "single") > 0 and rise("t_f", "single") > 0,
            listed("single"),
        ),
        Claim(
            "6",
            "proposed responds nearly ideally whatever is missing (within 10 % of 1 s)",
            all(at(s, "proposed").response_s <= IDEAL_S * (1 + EQUAL) for s in all_),
            listed("proposed"),
        ),
        Claim(
            "6",
            "random, vanilla and proposed respond alike (within 10 %)",
            all(
                abs(at(s, name).response_s / at(s, "proposed").response_s - 1) <= EQUAL
                for s in all_
                for name in ("random", "vanilla")
            ),
            f"{listed('random')}; {listed('vanilla')}; {listed('proposed')}",
        ),
        Claim(
            "6",
            "proposed+ takes longer the more is missing, and more so over r_f than over t_f",
            rise("r_f", "proposed+") > max(0.0, rise("t_f", "proposed+")),
            f"{rise('r_f', 'proposed+'):.3g} s over r_f, {rise('t_f', 'proposed+'):.3g} s over t_f; "
            f"{listed('proposed+')}",
        ),
        Claim(
            "6",
            f"at r_f = {worst[1]:g} the response of proposed+ is 100 times below that of single, with 90 % satisfied",
            at(worst, "single").response_s >= 100 * at(worst, "proposed+").response_s
            and at(worst, "proposed+").satisfied >= MANY,
            f"{at(worst, 'single').response_s:.3g} against {at(worst, 'proposed+').response_s:.3g} s; beyond the ideal "
            f"{late[0]:.3g} against {late[1]:.3g} s; a step {steps[0]:.3g} against {steps[1]:.3g} ms",
        ),
        Claim(
            "6, ours",
            "ours responds no later than proposed+ in any scenario (within 10 %), in many slots and in one",
            all(
                at(s, name).response_s <= at(s, "proposed+").response_s * (1 + EQUAL)
                for s in all_
                for name in ("ours", "ours, one slot")
            ),
            f"{listed('ours')}; {listed('ours, one slot')}; a step at r_f = {worst[1]:g}: {steps[2]:.3g} and "
            f"{steps[3]:.3g} ms against {steps[1]:.3g} ms",
        ),
        Claim(
            "6, ours",
            "one core for all slots is enough for ours: within 10 % of the ideal in every scenario",
            all(at(s, "ours").one_core_s <= IDEAL_S * (1 + EQUAL) for s in all_),
            ", ".join(f"{at(s, 'ours').one_core_s:.4g}" for s in all_) + " s",
        ),
    ]


def scale(rows: Sequence[Sized]) -> list[Claim]:
    """Judge figure 7, section 5.3."""
    at = {(row.sensors, row.method): row for row in rows}
    sizes = sorted({row.sensors for row in rows})
    both = [n for n in sizes if (n, "vanilla") in at]
    largest = sizes[-1]

    def listed(method: str, field: str, unit: str = "s") -> str:
        found = [f"{getattr(at[n, method], field):.4g}" for n in sizes if (n, method) in at]
        return f"{method} {', '.join(found)} {unit}"

    prepared = [at[n, "vanilla"].prepare_s / at[n, "proposed"].prepare_s for n in both]
    single = at[largest, "single"]
    faster = {name: single.response_s / at[largest, name].response_s for name in ("proposed", "proposed+", "ours")}
    alone = at[largest, "ours, one slot"]
    return [
        Claim(
            "7",
            "proposed is prepared 5 times as fast as vanilla, for every n that both were run at",
            bool(both) and min(prepared) >= 5,
            f"{', '.join(f'{ratio:.3g}' for ratio in prepared)} times at n = {', '.join(map(str, both))}; "
            f"{listed('vanilla', 'prepare_s')}; {listed('proposed', 'prepare_s')}",
        ),
        Claim(
            "7",
            "what helpers are chosen by takes proposed+ no longer than its split",
            all(at[n, "proposed+"].helpers_s <= at[n, "proposed+"].split_s for n in sizes),
            f"{listed('proposed+', 'helpers_s')}; {listed('proposed+', 'split_s')}",
        ),
        Claim(
            "7",
            "single takes longer to respond the greater n is",
            single.response_s > at[sizes[0], "single"].response_s,
            listed("single", "response_s"),
        ),
        Claim(
            "7",
            "proposed responds nearly ideally at every n (within 10 % of 1 s)",
            all(at[n, "proposed"].response_s <= IDEAL_S * (1 + EQUAL) for n in sizes),
            listed("proposed", "response_s"),
        ),
        Claim(
            "7",
            f"at n = {largest} proposed responds 1000 times as fast as single",
            faster["proposed"] >= 1000,
            f"{faster['proposed']:.4g} times; a step of the slowest slot {single.slowest_ms:.4g} against "
            f"{at[largest, 'proposed'].slowest_ms:.3g} ms",
        ),
        Claim(
            "7",
            f"at n = {largest} proposed+ responds 100 times as fast as single",
            faster["proposed+"] >= 100,
            f"{faster['proposed+']:.4g} times; {listed('proposed+', 'response_s')}",
        ),
        Claim(
            "7, ours",
            f"at n = {largest} ours responds 1000 times as fast as single, on one core for all slots",
            single.response_s >= 1000 * at[largest, "ours"].one_core_s,
            f"{single.response_s / at[largest, 'ours'].one_core_s:.4g} times; {listed('ours', 'one_core_s')}",
        ),
        Claim(
            "7, ours",
            f"at n = {largest} ours in one slot does too, with single's own accuracy",
            single.response_s >= 1000 * alone.response_s,
            f"{single.response_s / alone.response_s:.4g} times; {listed('ours, one slot', 'response_s')}; a step "
            f"{listed('ours, one slot', 'slowest_ms', 'ms')}",
        ),
        Claim(
            "7, ours",
            "ours is prepared no slower than vanilla, for every n that both were run at (split and helpers)",
            bool(both)
            and all(at[n, "ours"].split_s + at[n, "ours"].helpers_s <= at[n, "vanilla"].prepare_s for n in both),
            f"split {listed('ours', 'split_s')}; helpers {listed('ours', 'helpers_s')}; "
            f"{listed('vanilla', 'prepare_s')}",
        ),
    ]


def devices(rows: Sequence[Row]) -> list[Claim]:
    """Judge the ablation."""
    at = {(row.value, row.method): row for row in rows}
    found = []
    for value in dict.fromkeys(row.value for row in rows):
        base = at[value, "proposed+, as published"]
        whole = at[value, "all, many slots (ours)"]
        base_ms, whole_ms = base.decide_ms + base.filter_ms, whole.decide_ms + whole.filter_ms
        found.append(
            Claim(
                "ablation",
                f"all devices together need less time and fewer helpers than proposed+ at r_f = {value:g}, "
                "and satisfy no less (within 0.01)",
                whole_ms < base_ms and whole.helpers < base.helpers and whole.satisfied >= base.satisfied - 0.01,
                f"{whole_ms:.3g} against {base_ms:.3g} ms, {whole.helpers:.3g} against {base.helpers:.3g} helpers, "
                f"{whole.satisfied:.3f} against {base.satisfied:.3f}",
            )
        )
        swap = at[value, "no helpers: the same, proposed-swap"]
        plain = at[value, "no helpers: precision form, slots at once"]
        found.append(
            Claim(
                "ablation",
                f"without helpers, proposed-swap has a lower RMSE than proposed at r_f = {value:g}",
                swap.rmse < plain.rmse,
                f"{swap.rmse:.3f} against {plain.rmse:.3f}, satisfied {swap.satisfied:.3f} and {plain.satisfied:.3f}",
            )
        )
    return found
