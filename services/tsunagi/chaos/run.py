"""Carries out the rounds of a run: wait until all is well, disturb, wait until all is well again, judge."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TextIO

from tsunagi.audit.causes import Disturbance
from tsunagi.audit.tally import Tally, number
from tsunagi.chaos.plan import Round
from tsunagi.chaos.report import HEADER, Outcome, TakeoverTimes, summary
from tsunagi.chaos.targets import ChaosError, Driver, Unit
from tsunagi.chaos.watch import ChaosWatch
from tsunagi.runtime.loop import StopFlag

LATE_US = 6_000_000
"""Results may be this much and two steps behind event time, in microseconds, and all is still well."""

EDGE_US = 3_000_000
"""An edge counts as away when its newest batch with readings is older than this and two steps, in microseconds."""

SETTLED_S = 1.0
"""All must have been well for this long without a break before the next round begins, in seconds."""

_WARM_S = 3.0
"""Time for which records are read before the first look at whether all is well, in seconds."""
_SAY_S = 10.0
"""Time between two lines that say what is waited for, in seconds."""
Tell = Callable[[str], None]


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The user has interrupted the run."""


class Runner:
    """Carries a run out.

    Args:
        driver: sets the faults and takes them back.
        watch: reads the topics for the ledger.
        tell: called with each line for people.
        patience_s: how long to wait until all is well, before a round and after it, in seconds.
        every_s: shortest time from the beginning of a round to that of the next, in seconds.
        out: receives a JSON line for each round, and one for the summary; None if nothing does.

    Attributes:
        outcomes: the rounds so far.
    """

    def __init__(
        self,
        driver: Driver,
        watch: ChaosWatch,
        tell: Tell,
        *,
        patience_s: float = 180.0,
        every_s: float = 0.0,
        out: TextIO | None = None,
    ) -> None:
        self._driver = driver
        self._watch = watch
        self._tell = tell
        self._patience_s = patience_s
        self._every_s = every_s
        self._out = out
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="chaos")
        self._stop = StopFlag()
        self._checked_at = 0.0
        self._troubles: list[str] = []
        self._units: list[Unit] = []
        self.outcomes: list[Outcome] = []

    def run(self, plans: Iterable[Round], *, seed: int, asked: int) -> int:
        """Carry the rounds out, and return the exit code.

        It is 0 only if nothing wrong was found, everything came back, and all rounds that were asked for took place.
        """
        code = 1
        ledger = self._watch.ledger
        try:
            self._warm_up()
            self._tell(HEADER)
            for plan in plans:
                began = time.monotonic()
                outcome = self._round(plan)
                self.outcomes.append(outcome)
                self._write(outcome.as_json())
                self._tell(outcome.line())
                self._tell_problems(outcome.found)
                if outcome.missing:
                    break
                if len(self.outcomes) < asked:
                    self._pump(began + self._every_s - time.monotonic())
            self._finish()
            complete = len(self.outcomes) == asked and all(item.ok for item in self.outcomes)
            code = 0 if complete and ledger.tally.ok else 1
        except Interrupted:
            self._finish()
            code = 130
        finally:
            self._pool.shutdown(wait=True)
            self._driver.close()
            self._stop.restore()
            found = summary(self.outcomes, ledger.tally, ledger.counts(), seed=seed, asked=asked, exit_code=code)
            self._write(found)
            self._conclude(found)
        return code

    # ---- a round

    def _warm_up(self) -> None:
        self._pump(_WARM_S)
        self._wait_well(None)
        self._watch.ledger.begin()
        self._pump(SETTLED_S)

    def _round(self, plan: Round) -> Outcome:
        ledger = self._watch.ledger
        self._wait_well(None)
        before = ledger.tally.copy()
        node, as_role, slots = self._choose(plan)
        former = ledger.roles.beats.get(node)
        self._pump(into_step_s(plan.phase, ledger.step_us, _now_us()))
        if plan.target in ("gateway", "secondary"):
            node, as_role, slots = self._choose(plan)
        owned, from_us = frozenset(ledger.roles.owned_by(node)), _now_us()
        try:
            at_us = self._beside(lambda: self._driver.apply(plan, node))
            self._pump(plan.seconds)
        finally:
            self._beside(self._driver.undo, interruptible=False)
        outcome = Outcome(plan, node, as_role, at_us, slots)
        outcome.missing = self._wait_well(at_us)
        now_us = _now_us()
        if outcome.missing:
            ledger.expire(at_us)
        self._measure(outcome, now_us)
        beat = ledger.roles.beats.get(node)
        if former is not None and beat is not None and beat.message.incarnation != former.message.incarnation:
            outcome.back_as = ledger.roles.role_of(node) if beat.message.role == "worker" else ""
        ledger.after(Disturbance(node, plan.target == "kafka", owned, from_us, now_us))
        outcome.found = ledger.tally.since(before)
        return outcome

    def _choose(self, plan: Round) -> tuple[str, str, list[int]]:
        """Return (the node to hit, the role in which it is hit, the slots that the fault concerns)."""
        ledger = self._watch.ledger
        everything = list(range(self._watch.slots))
        if plan.target in ("gateway", "secondary"):
            slot = int(plan.choice * self._watch.slots)
            owner = ledger.roles.owner(slot)
            if plan.target == "gateway":
                node = owner.node if owner is not None else ""
                return node, f"owner of slot {slot}", ledger.roles.owned_by(node)
            node = ledger.roles.secondary(slot, _now_us())
            if not node:
                raise ChaosError(f"slot {slot} has no ready secondary to disturb")
            owned = ledger.roles.owned_by(node)
            return node, f"secondary of slot {slot}", sorted({slot, *owned})
        names = [unit.node for unit in self._driver.units() if unit.role == plan.target and unit.node != "spark-master"]
        if not names:
            raise ChaosError(f"--target {plan.target}: nothing of that role is there")
        node = plan.pick(names)
        concerned = {"edge": sorted(ledger.edge_slots.get(node, set())), "kafka": everything}
        return node, plan.target, concerned.get(plan.target, [])

    def _measure(self, outcome: Outcome, now_us: int) -> None:
        ledger, at_us = self._watch.ledger, outcome.at_us
        others = [slot for slot in range(self._watch.slots) if slot not in outcome.slots]
        outcome.silence_s = ledger.silence_s(outcome.slots, at_us, now_us)
        outcome.others_s = ledger.silence_s(others, at_us, now_us)
        outcome.recovered_s = None if outcome.missing else (now_us - at_us) / 1e6
        ready = []
        for slot in range(self._watch.slots):
            terms = ledger.roles.terms_since(slot, at_us)
            for term in terms:
                first_us = ledger.times[slot].first_of(term.epoch)
                takeover = TakeoverTimes(
                    slot,
                    term.epoch,
                    term.node,
                    (term.appended_us - at_us) / 1e6,
                    None if first_us is None else (first_us - term.appended_us) / 1e6,
                )
                outcome.takeovers.append(takeover)
            from_us = terms[-1].appended_us if terms else at_us
            ready_us = ledger.roles.protected_us(slot, from_us, now_us)
            if ready_us is not None and (terms or slot in outcome.slots):
                ready.append((ready_us - from_us) / 1e6)
                if terms:
                    outcome.takeovers[-1] = replace(outcome.takeovers[-1], protected_s=ready[-1])
        outcome.ready_s = max(ready, default=None)

    # ---- health

    def missing(self, at_us: int | None) -> list[str]:
        """Return in words what is not well now.

        Args:
            at_us: when the system was disturbed, in microseconds since 1970. A secondary must have been ready after
                that, and all readings from before must be accounted for. None if nothing was disturbed.
        """
        ledger, now_us = self._watch.ledger, _now_us()
        found = list(self._unit_troubles())
        found += ledger.roles.missing(now_us, at_us)
        slack_us = 2 * ledger.step_us
        for unit in self._units:
            if unit.role == "edge" and now_us - ledger.edges.get(unit.node, 0) > EDGE_US + slack_us:
                found.append(f"{unit.node} sends no readings")
        for role in ("scaler", "spark"):
            if any(unit.role == role for unit in self._units) and not ledger.roles.fresh(role, now_us):
                found.append(f"no heartbeat of {role}")
        frontier = ledger.frontier()
        if frontier < 0 or now_us - frontier * ledger.step_us > LATE_US + slack_us:
            late = "none" if frontier < 0 else f"of {(now_us - frontier * ledger.step_us) / 1e6:.1f} s ago"
            found.append(f"the newest results of all groups: {late}")
        if at_us is not None and not found:
            outstanding = ledger.outstanding(max(at_us, now_us - LATE_US - slack_us))
            found += [outstanding] if outstanding else []
        return list(dict.fromkeys(found))

    def _unit_troubles(self) -> list[str]:
        if time.monotonic() - self._checked_at > 0.5:
            self._checked_at = time.monotonic()
            self._units = self._driver.units()
            self._troubles = [f"{unit.node} is {unit.trouble}" for unit in self._units if unit.trouble]
        return self._troubles

    def _wait_well(self, at_us: int | None) -> list[str]:
        """Wait until all is well, and return what is not well when the time to wait is over.

        Raises:
            ChaosError: the time is over and no fault was set (`at_us` is None).
        """
        deadline = time.monotonic() + self._patience_s
        well_since: float | None = None
        said_at = time.monotonic()
        while True:
            missing = self.missing(at_us)
            now = time.monotonic()
            if missing:
                well_since = None
            elif well_since is None:
                well_since = now
            if well_since is not None and now - well_since >= SETTLED_S:
                return []
            if missing and now > deadline:
                if at_us is None:
                    raise ChaosError(f"the system is not well after {self._patience_s:g} s: {'; '.join(missing)}")
                return missing
            if missing and at_us is None and now - said_at > _SAY_S:
                said_at = now
                self._tell(f"waiting: {'; '.join(missing)}")
            self._pump(0.05)

    # ---- time

    def _pump(self, seconds: float) -> None:
        """Read for this long, and at least once."""
        deadline = time.monotonic() + seconds
        while True:
            if self._stop.is_set():
                raise Interrupted
            self._watch.pump(max(0.0, min(0.05, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                return

    def _beside(self, act: Callable[[], Any], *, interruptible: bool = True) -> Any:  # noqa: ANN401 - what `act` returns
        """Do something that may take long, in a thread, while reading goes on; return its result."""
        doing: Future[Any] = self._pool.submit(act)
        while not doing.done():
            self._watch.pump(0.02)
        if interruptible and self._stop.is_set():
            raise Interrupted
        return doing.result()

    # ---- telling

    def _write(self, fields: dict[str, Any]) -> None:
        if self._out is not None:
            self._out.write(json.dumps(fields) + "\n")
            self._out.flush()

    def _finish(self) -> None:
        """Judge what is judged only once. A run that was interrupted is judged as well."""
        ledger = self._watch.ledger
        before = ledger.tally.copy()
        ledger.finish()
        self._tell_problems(ledger.tally.since(before))

    def _tell_problems(self, found: Tally) -> None:
        for problem in found.problems[:5]:
            self._tell(f"        {problem}")

    def _conclude(self, found: dict[str, Any]) -> None:
        judged = found["judged"]
        self._tell(
            f"{found['ok']} of {found['asked']} rounds ok (seed {found['seed']}): lost {found['lost']}, duplicated "
            f"{found['duplicated']}, inverted {found['inverted']}, wrong {sum(found['wrong'].values())}; judged "
            f"{judged['readings']} readings in {judged['batches']} batches ({judged['aside']} set aside), "
            f"{judged['bounds_held']} of {judged['bounds']} bounds hold where the truth came later, "
            f"{judged['rows']} rows of {judged['steps']} steps, {judged['repeats']} repeats dropped by name"
        )
        for kind, figures in found["kinds"].items():
            p50, most = (number(figures[name], unit=" s") for name in ("silence_p50_s", "silence_max_s"))
            self._tell(f"  {kind:<20} {figures['ok']} of {figures['rounds']} ok, silence p50 {p50}, max {most}")


def into_step_s(phase: float, step_us: int, now_us: int) -> float:
    """Return how long to wait until the present time is `phase` of a step after the end of a step, in seconds.

    It is 0 if the length of a step is not known (`step_us` is 0).
    """
    return (phase * step_us - now_us) % step_us / 1e6 if step_us else 0.0


def _now_us() -> int:
    return time.time_ns() // 1000
