"""`tsunagi chaos`: puts plan, driver and reader together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tsunagi.chaos.plan import ALL, PlanError, Round, rounds
from tsunagi.chaos.run import Runner
from tsunagi.chaos.targets import Driver
from tsunagi.chaos.watch import Watch
from tsunagi.runtime.settings import Operator, Settings
from tsunagi.system.topics import tool_log

_PLAIN = (Operator(use="recover"),)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        local: processes of this machine instead of containers.
        servers: the broker's address; "" = as configured.
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


def run_chaos(settings: Settings, config: Path | None, options: Options, tell: Callable[[str], None]) -> int:
    """Carry a run out; return the exit code.

    Raises:
        PlanError: the options do not fit.
        ChaosError: the system is not there, or not well, or a fault cannot be set.
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
    values = settings.query.operators == _PLAIN
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
        watch = Watch(log, values=values, grace_s=settings.steps.grace_s, delta=settings.recovery.delta)
        stack.callback(watch.close)
        runner = Runner(driver, watch, tell, patience_s=options.patience_s, every_s=options.every_s, out=out)
        return runner.run(plans, seed=options.seed, asked=options.count)


def _driver(settings: Settings, config: Path | None, options: Options, tell: Callable[[str], None]) -> Driver:
    # Whoever uses one of them needs not have what the other imports.
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
