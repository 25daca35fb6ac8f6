"""The elastic part of the scaler: starts and stops workers as they are wanted, and moves slots to and from them.

Other modules decide: `rescale` (who is started and stopped), `assignments` (where slots should be), `handover` (how
they get there), `load` (how much work there is). This module feeds them with what is measured, and carries out what
they answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from structlog.stdlib import BoundLogger

from tsunagi.runtime import metrics
from tsunagi.runtime.beat_routes import OWNING
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import Assignment, Heartbeat, SlotMove, Workers
from tsunagi.runtime.plan import MOVE
from tsunagi.runtime.settings import LOCAL, ConfigError, ScalerSettings, Settings
from tsunagi.scaler.assignments import Placer, split
from tsunagi.scaler.capacity import Capacities
from tsunagi.scaler.fleet_metrics import SlotGauges
from tsunagi.scaler.handover import PREPARE, Pair
from tsunagi.scaler.launcher import Launcher
from tsunagi.scaler.launcher_thread import LauncherThread
from tsunagi.scaler.load import Delays, Saturation, SlotLoad, SlotView
from tsunagi.scaler.pace import between_figures
from tsunagi.scaler.planner import Planner
from tsunagi.scaler.policy import HOUR_S, PolicySettings, WorkerType
from tsunagi.scaler.policy_by_name import make_policy
from tsunagi.scaler.policy_runner import PolicyDecision, PolicyRunner, Ponder, ScalerMeasurement, at_once, step_of
from tsunagi.scaler.rescale import Rescale, Todo, WorkerSlots
from tsunagi.scaler.trace import read_trace, resample

LATENCY_S = 30.0
"""Seconds over which the latency of a worker type is averaged. A shorter time would blame the type for a single
stall."""
DRAIN_S = 20.0
"""Time that moving a worker's slots away takes, in seconds. A worker that is to stop at the end of its paid hour begins
to lose its slots this long before."""

FIXED = "fixed"
"""Value of `[scaler] policy` with which the number of workers is fixed and no policy is asked."""
POLICY = "policy"
"""Name under which `plan` keeps a number of workers that a policy asked for."""


class Elastic:
    """What one scaler does with its workers. Times are monotonic seconds of the caller's clock.

    Args:
        launcher: starts and stops workers; None if somebody else does.
        settle_s: after its start the scaler launches nothing for this many seconds.
        ponder: as in `Pilot`.

    Attributes:
        rescale: how many workers are wanted, who boots, and who is to stop.
        views: the state of each slot at the last measurement.
        runner: asks the policy; None if the number of workers is fixed.
    """

    def __init__(
        self,
        settings: Settings,
        planner: Planner,
        launcher: Launcher | None,
        logger: BoundLogger,
        settle_s: float,
        now: float,
        now_s: float,
        ponder: Ponder = at_once,
    ) -> None:
        scaler = settings.scaler
        self._kept = scaler.kept
        self.rescale = Rescale(
            scaler.kept(settings.slots.count), scaler.boot_of, settle_s, now, launches=launcher is not None
        )
        self.runner = make_policy_runner(scaler, now_s, ponder, settings.paper.hour_s)
        self.views: dict[int, SlotView] = {}
        self._loads: dict[int, SlotLoad] = {}
        self.grow(settings.slots.count)
        self.capacities = Capacities(scaler)
        self._planner = planner
        self._logger = logger
        self._launcher_thread = None if launcher is None else LauncherThread(launcher, logger)
        self._placer = Placer(planner.cells)
        self._gauges = SlotGauges()
        self._saturation = Saturation()
        self._delays = Delays(scaler.slo_s)
        self._latency_at = now
        self._saturated: dict[str, float] = {}
        self._slo_s = scaler.slo_s
        self._late = 0.0
        self._measured_at = now - between_figures(len(self.views))
        self._counted: Counter[str] = Counter()
        self._by_hand = False
        self._asked: dict[str, int] | None = None  # what the policy has asked for last in `plan`
        self._moves: dict[int, str] = {}  # slot -> the worker that somebody wants to own it
        self._named: dict[str, set[tuple[str, ...]]] = {}

    def grow(self, slots: int) -> None:
        """Take note that there are so many slots, or more."""
        for slot in range(len(self.views), slots):
            self.views[slot], self._loads[slot] = SlotView(), SlotLoad()
        self.rescale.least = self._kept(len(self.views))

    def on_heartbeat(self, beat: Heartbeat, now: float) -> None:
        """Take note of what a worker says about its slots."""
        if beat.role == "worker":
            for part in beat.slots:
                if part.slot in self._loads:
                    self._loads[part.slot].on_beat(part, now)

    def on_workers(self, workers: Workers) -> None:
        """Take note of the number of workers that `plan` asks for."""
        wanted = None if workers.as_configured else dict(workers.count)
        if wanted != self.rescale.wanted:
            self._logger.info("workers wanted", count=wanted, by=workers.by)
        self.rescale.wanted = wanted
        self._by_hand = wanted is not None and workers.by != POLICY
        if wanted is not None and workers.by == POLICY and self.runner is not None and self._asked is None:
            self.runner.resume(wanted)
            self._asked = wanted

    def on_move(self, move: SlotMove) -> None:
        """Take note of whom somebody wants to own a slot."""
        self._logger.info("a slot should move", slot=move.slot, to=move.to, by=move.by)
        self._moves[move.slot] = move.to

    def seen_to(self, assignment: Assignment) -> None:
        """Take note that an assignment is newer than the wish to move its slot, which a scaler before has seen to."""
        goes_on = (PREPARE, assignment.secondary), (MOVE, assignment.owner)
        if (assignment.reason, self._moves.get(assignment.slot)) not in goes_on:
            self._moves.pop(assignment.slot, None)

    def ask(self, alive: Mapping[str, Heartbeat], now_s: float) -> Workers | None:
        """Ask the policy if it is time; return the new wish for `plan`, or None if it stays as it is.

        Args:
            now_s: time of day, in seconds since 1970.
        """
        if self.runner is None:
            return None
        decision = self.runner.step(self._measurement(alive), now_s)
        if decision is not None:
            self._tell(decision)
        self.rescale.prefer = frozenset(self.runner.due)
        target = dict(self.runner.target)
        if self._by_hand or target == (self._asked or {}):
            return None  # a wish by hand stands until it is taken back; the policy goes on measuring
        self._asked = target
        return Workers(count=target, by=POLICY)

    def turn(self, alive: Mapping[str, Heartbeat], now: float) -> None:
        """Start and stop workers, and say where slots should be."""
        running: Mapping[str, str] | None = {}
        if self._launcher_thread is not None:
            for name in self._launcher_thread.look(now):
                self.rescale.refused(name, now)
            running = self._launcher_thread.running
        if running is None:
            return  # nobody knows what runs: a launch might be one too many
        todo = self.rescale.step(self._standing(alive), running, self._known(alive), now)
        self._carry_out(todo, now)
        self._planner.usable = todo.usable
        measuring = now - self._measured_at >= between_figures(len(self.views))
        if measuring:
            self._measured_at = now
            self._measure(alive, now)
        self._place(alive, todo, now)
        if measuring:
            self._export(alive, todo)

    def close(self) -> None:
        """Release the launcher; the workers go on."""
        if self._launcher_thread is not None:
            self._launcher_thread.close()

    def present(self, alive: Mapping[str, Heartbeat]) -> dict[int, Pair]:
        """Return who has each planned slot: the owner according to itself, the secondary according to the plan."""
        owners = self._planner.owners(alive)
        return {
            slot: Pair(owners.get(slot) or wish.owner, wish.secondary)
            for slot, wish in self._planner.assignments.items()
            if slot in self.views
        }

    def _known(self, alive: Mapping[str, Heartbeat]) -> set[str]:
        return {*alive, *self._planner.heard(), *self._planner.named()}

    def _standing(self, alive: Mapping[str, Heartbeat]) -> dict[str, WorkerSlots]:
        named = self._planner.named()
        return {
            name: WorkerSlots(
                owns=sum(part.role in OWNING for part in beat.slots),
                hosts=len(beat.slots) + (name in named),
            )
            for name, beat in alive.items()
        }

    def _measurement(self, alive: Mapping[str, Heartbeat]) -> ScalerMeasurement:
        rescale, views = self.rescale, self.views.values()
        kinds = rescale.kinds(alive)
        local = [name for name in alive if kinds[name] == LOCAL]
        local_rate = self.capacities.of(LOCAL) if self.capacities.knows(LOCAL) else 0.0
        return ScalerMeasurement(
            arrived=sum(view.arrived for view in views),
            late=self._late,
            backlog=sum(view.backlog for view in views),
            delay_s=max((view.delay_s for view in views), default=0.0),
            workers={name: kind for name, kind in kinds.items() if kind != LOCAL},
            ready=set(alive),
            local_rate=local_rate * len(local),
            saturated=self._take_saturated(len(local)),
            within=self.capacities.within,
        )

    def _take_saturated(self, locals_count: int) -> dict[str, float]:
        """Return the tuples/s of one saturated worker of each type; for "", those of all local workers together."""
        found, self._saturated = self._saturated, {}
        if LOCAL in found:
            found[""] = found.pop(LOCAL) * locals_count
        return found

    def _tell(self, decision: PolicyDecision) -> None:
        answer = decision.answer
        metrics.DECISIONS.labels(kind=decision.kind).inc()
        metrics.FALLBACKS.inc(bool(answer.fallback))
        for what, value in (("forecast", answer.forecast), ("quantile", answer.quantile), ("capacity", answer.rate)):
            metrics.PLANNED_RATE.labels(what=what).set(value)
        self._logger.info(
            "scaling decision",
            kind=decision.kind,
            wanted=dict(answer.wanted),
            launches=dict(decision.launches),
            stops=dict(decision.stops),
            forecast=answer.forecast,
            quantile=answer.quantile,
            capacity=answer.rate,
            rate=decision.rate,
            backlog=decision.backlog,
            reason=answer.reason,
            fallback=answer.fallback,
        )

    def _carry_out(self, todo: Todo, now: float) -> None:
        metrics.WORKERS_LOST.inc(todo.lost)
        if self._launcher_thread is None:
            return
        for name, kind in todo.launch:
            self._logger.info("launching a worker", node=name, type=kind)
            self._launcher_thread.launch(name, kind)
            metrics.LAUNCHES.inc()
        for name in todo.stop:
            if self._launcher_thread.stop(name, now):
                self._logger.info("stopping a worker", node=name, type=self.rescale.kind(name))
                metrics.STOPS.inc()

    def _measure(self, alive: Mapping[str, Heartbeat], now: float) -> None:
        before, self.views = self.views, {slot: load.view(now) for slot, load in self._loads.items()}
        for slot, view in self.views.items():
            self._late += (view.served - before[slot].served) * view.late_share(self._slo_s)
        self._saturation.update(alive, self.views, now)
        self._delays.update(alive, self.views, now, self.rescale.kind, self.capacities.throughput)
        for name, rate in self._saturation.take().items():
            self.capacities.correct(self.rescale.kind(name), rate)
            self._saturated[self.rescale.kind(name)] = rate
        for slot, view in self.views.items():
            self._gauges.set(metrics.SLOT_RATE, slot, view.rate)
            self._gauges.set(metrics.SLOT_BACKLOG, slot, view.backlog)
            self._gauges.set(metrics.SLOT_DELAY_S, slot, view.delay_s)
        if now - self._latency_at >= LATENCY_S:
            self._latency_at = now
            for kind, latency in self._delays.take().items():
                metrics.TYPE_DELAY_S.labels(type=kind).set(latency.delay_s)
                self.capacities.on_latency(kind, latency)

    def _place(self, alive: Mapping[str, Heartbeat], todo: Todo, now: float) -> None:
        present = self.present(alive)
        rates = [self.views[slot].rate for slot in sorted(self.views)]
        capacity = {name: self.capacities.of(self.rescale.kind(name)) for name in sorted(todo.placed)}
        if self._placer.update(rates, capacity, present, now, retiring=self.rescale.retiring):
            goal = {slot: pair for slot, pair in self._placer.goal.items() if pair != present[slot]}
            if goal:
                self._logger.info("slots should move", goal={slot: list(pair) for slot, pair in goal.items()})
        for slot, to in list(self._moves.items()):
            if slot in present:
                del self._moves[slot]
                self._ask_to_move(slot, to, present[slot], capacity)
        self._planner.handover.goal = self._placer.goal

    def _ask_to_move(self, slot: int, to: str, pair: Pair, workers: Collection[str]) -> None:
        if to not in workers:
            self._logger.warning("a slot cannot move: no such worker lives", slot=slot, to=to)
        elif to != pair.owner:
            self._placer.ask(slot, Pair(to, pair.owner))

    def _export(self, alive: Mapping[str, Heartbeat], todo: Todo) -> None:
        rescale, handover = self.rescale, self._planner.handover
        have = rescale.count(alive)
        retiring = Counter(rescale.kind(name) for name in rescale.retiring)
        wanted = rescale.wanted or {}
        for kind in sorted({LOCAL, *have, *retiring, *wanted}):
            for state, number in (("wanted", wanted.get(kind, 0)), ("have", have[kind]), ("retiring", retiring[kind])):
                metrics.WORKERS_OF_TYPE.labels(type=kind, state=state).set(number)
        metrics.MOVING.set(handover.under_way(self._planner.assignments))
        for end, count in (("done", handover.done), ("given up", handover.given_up)):
            metrics.MOVES.labels(end=end).inc(count - self._counted[end])
            self._counted[end] = count
        rates = [self.views[slot].rate for slot in sorted(self.views)]
        shares = split(rates, self.present(alive), todo.usable)
        for name, share in shares.items():
            metrics.SHARE.labels(node=name).set(share)
        for gone in self._named.get("share", set()) - {(name,) for name in shares}:
            metrics.SHARE.remove(*gone)
        self._named["share"] = {(name,) for name in shares}


def make_policy_runner(
    scaler: ScalerSettings, now_s: float, ponder: Ponder = at_once, hour_s: float = HOUR_S
) -> PolicyRunner | None:
    """Return what asks the policy that the settings name; None if the number of workers is fixed.

    Args:
        hour_s: how long a paid hour lasts, seconds.

    Raises:
        ConfigError: no type of worker can be launched, or one has no rate.
        PolicyError: there is no such policy, or it cannot work with these settings.
        TraceError: the file of past rates cannot be used.
    """
    if scaler.policy == FIXED:
        return None
    types = []
    for name, size in scaler.sizes.items():
        rate = size.rate or size.limit
        if rate is None:
            raise ConfigError(f"[scaler.sizes] {name}: found no rate, expected one (`tsunagi scaler capacity`)")
        if name != LOCAL:
            types.append(
                WorkerType(name, rate, size.price_h, scaler.boot_of(name), limit=size.most, price_gb=size.price_gb)
            )
    if not types:
        raise ConfigError(f"[scaler] policy: found {scaler.policy!r} without a type in [scaler.sizes], expected one")
    wanted = PolicySettings(
        policy=scaler.policy,
        types=tuple(types),
        slot_s=scaler.slot_s,
        billing=scaler.billing,
        hour_s=hour_s,
        slo_s=scaler.slo_s,
        forecast=scaler.forecast,
        solver=scaler.solver,
        solve_s=scaler.solve_s,
    )
    policy = make_policy(wanted)
    if scaler.history:
        policy.learn(read_history(Path(scaler.history), scaler.slot_s), step_of(scaler.slot_s))
    return PolicyRunner(policy, wanted, DRAIN_S, now_s, ponder)


def read_history(path: Path, slot_s: float) -> Floats:
    """Read past rates in the steps that a policy is given, as whole slots; a rest at the beginning is left out.

    Raises:
        TraceError: the file cannot be used.
    """
    step_s = step_of(slot_s)
    rates = resample(read_trace(path), step_s).rates
    return rates[len(rates) % round(slot_s / step_s) :]
