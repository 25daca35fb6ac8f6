"""`tsunagi chaos`: checks the options, and puts the plan, the driver and the reader together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tsunagi.chaos.plan import ALL, PlanError, Round, rounds
from tsunagi.chaos.run import Runner
from tsunagi.chaos.targets import Driver
from tsunagi.chaos.watch import ChaosWatch
from tsunagi.runtime.settings import OperatorSettings, Settings
from tsunagi.system.topics import tool_log

_PLAIN = (OperatorSettings(use="recover"),)
"""The chain of operators that leaves measured values unchanged. Only then are the values of readings compared."""


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """The options of the command line.

    Attributes:
        targets: the kinds of nodes that are hit.
        faults: the faults that are set.
        count: the number of rounds.
        seed: the seed of the plan.
        out: the file of JSON lines; None if there is none.
        project: the name of the compose project.
        local: whether to hit processes of this machine instead of containers.
        servers: the address of the broker; "" takes the configured one.
        patience_s: longest time until all is well, in seconds.
        every_s: shortest time from the beginning of a round to that of the next, in seconds.
    """

    targets: Sequence[str]
    faults: Sequence[str]
    count: int
    seed: int
    out: Path | None
    project: str
    local: bool
    servers: str
    patience_s: float
    every_s: float


def run_chaos(settings: Settings, config: Path | None, options: ChaosOptions, tell: Callable[[str], None]) -> int:
    """Carry a run out, and return its exit code.

    Raises:
        PlanError: the options or the settings do not allow such a run.
        ChaosError: the system is not there, or is not well, or a fault cannot be set.
        LogError: the broker does not answer.
    """
    if settings.results.format != "blocks":
        raise PlanError(f"[results] format: found {settings.results.format!r}, expected 'blocks': only they are judged")
    if settings.query.mode != "steps":
        raise PlanError(
            f"[query] mode: found {settings.query.mode!r}, expected 'steps': results are judged step by step"
        )
    faults = options.faults
    offered = _offered(local=options.local)
    if ALL in faults:
        faults = offered
    plans = list(rounds(options.targets, faults, options.count, options.seed))
    _check(plans, offered, local=options.local)
    if options.servers:
        settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"servers": options.servers})})
    values = settings.query.chain == _PLAIN
    if not values:
        tell("the chain is not `recover` alone: readings are looked for by step and sensor, their values not compared")
    with contextlib.ExitStack() as stack:
        out = None
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            out = stack.enter_context(options.out.open("w", encoding="utf-8"))
        driver = _driver(settings, config, options, tell)
        stack.callback(driver.close)
        log = tool_log(settings, "chaos")
        watch = ChaosWatch(log, values=values, grace_s=settings.steps.grace_s, delta=settings.recovery.delta)
        stack.callback(watch.close)
        runner = Runner(driver, watch, tell, patience_s=options.patience_s, every_s=options.every_s, out=out)
        return runner.run(plans, seed=options.seed, asked=options.count)


def _driver(settings: Settings, config: Path | None, options: ChaosOptions, tell: Callable[[str], None]) -> Driver:
    # Only the driver that is used is imported: the other one may need packages that are not installed.
    if options.local:
        from tsunagi.chaos.local import LocalDriver  # noqa: PLC0415

        return LocalDriver(settings, config)
    from tsunagi.chaos.containers import ContainerDriver  # noqa: PLC0415

    return ContainerDriver(options.project, settings.state, tell)


def _offered(*, local: bool) -> tuple[str, ...]:
    if local:
        from tsunagi.chaos.local import LocalDriver  # noqa: PLC0415

        return LocalDriver.faults
    from tsunagi.chaos.containers import ContainerDriver  # noqa: PLC0415

    return ContainerDriver.faults


def _check(plans: Sequence[Round], offered: Sequence[str], *, local: bool) -> None:
    for plan in plans:
        if plan.fault not in offered:
            where = " with --local" if local else ""
            raise PlanError(f"--fault: found {plan.fault}, expected {', '.join(offered)} or {ALL}{where}")
