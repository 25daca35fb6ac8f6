"""`tsunagi demo`: runs the whole system on real readings, with real kills, and checks it row by row."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tsunagi.audit.evidence import Collected, read_placement
from tsunagi.audit.truth import Truth, World, read_readings, windows
from tsunagi.broker.checks import free_port
from tsunagi.demo.inputs import DemoError, Inputs, configuration, prepare
from tsunagi.demo.report import judge, summary, write_report
from tsunagi.demo.stream import Noted, Schedule, StreamClock, stream
from tsunagi.local.up import System
from tsunagi.recovery.fit import fit_history
from tsunagi.recovery.model import Model
from tsunagi.recovery.progress import Tell
from tsunagi.runtime import log
from tsunagi.runtime.marked import DEMO, empty, mark
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load
from tsunagi.runtime.toml_text import to_toml
from tsunagi.system import processes
from tsunagi.system.topics import read_topic, tool_log

QUIET_SHARE = 0.4
"""Share of the stream, from its beginning, that has no faults: meanwhile bounds are tried on living edges."""
LEAD_S = 6.0
"""Shortest time from the start of the edges to the first row, in seconds. `lead` gives more on a slow machine."""
LEAD_SHARE, LEAD_SHARE_AN_EDGE = 0.5, 0.025
"""The edges start before the first row by a share of the time that workers and Spark took to start: the first share is
for all edges together, and the second one for each edge. On a busy machine edges start as slowly as the others."""
# The demo chooses these settings itself. Environment variables for them are meant for other runs, so they are removed.
_OURS = (
    "STATE",
    "SENSORS",
    "KAFKA__",
    "STEPS__",
    "SLOTS__",
    "RECOVERY__MODEL",
    "RECOVERY__STORE",
    "SPARK__CHECKPOINT",
    "SCALER__",
    "SOURCE__",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line. The directory `out` is emptied first."""

    data: Path | None
    edges: int
    sensors: Path | None
    model: Path | None
    out: Path
    seed: int


class DemoProgress:
    """Shows the progress of the run: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, total_s: float) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description:<44.44}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("starting", total=total_s)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Show what happens now."""
        self._bar.update(self._task, description=text.splitlines()[0] if text else "")
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)

    def at(self, done_s: float) -> None:
        """Move the bar to this many seconds of the run."""
        self._bar.update(self._task, completed=done_s)


def run(plan: Plan) -> int:
    """Run the demo, and return the exit code: 0 if every check passed, else 1.

    Raises:
        DemoError, SourceError, SensorsError, ModelError: the input cannot be used.
        ProcessError, BrokerError, FaultError, LogError: the run could not be carried out.
    """
    began = time.monotonic()
    console = Console()
    _own_environment()
    out = _fresh(plan.out)
    inputs = prepare(plan.data, plan.edges, plan.sensors, out)
    for note in inputs.notes:
        console.print(note, highlight=False, soft_wrap=True)
    model = plan.model or _fit(inputs, out, lambda line: console.print(line, highlight=False, soft_wrap=True))
    config = out / "tsunagi.toml"
    port = free_port()
    config.write_text(to_toml(configuration(inputs, out, port, model, 0)), encoding="utf-8")
    os.environ[CONFIG_VARIABLE] = str(config)
    settings = load(config)
    with (
        DemoProgress(console, LEAD_S + inputs.stream_s) as stage,
        _interruptible(),
        _stopping(settings, config) as system,
    ):
        system.tell = stage.say
        system.start_broker()
        system.make_topics()
        starting = time.monotonic()
        nodes = system.start_workers()
        system.wait_ready(nodes)
        lead_s = lead(time.monotonic() - starting, len(inputs.table.edges))
        stage.say("waiting for Spark's first batch")
        system.wait_consuming()
        origin_us = _origin_us(settings, lead_s)
        config.write_text(to_toml(configuration(inputs, out, port, model, origin_us)), encoding="utf-8")
        truth = _truth(inputs, settings, origin_us)
        stage.say("starting the edges")
        system.start_edges()
        clock = StreamClock(origin_us, inputs.stream_s, lambda since_s: stage.at(LEAD_S + since_s))
        noted = stream(
            settings, system, inputs.table, clock, Schedule(QUIET_SHARE, plan.seed), truth.last_step, stage.say
        )
        stage.say("stopping")
        ended_us = time.time_ns() // 1000
        system.stop(broker=False)
        stage.say("reading the topics")
        collected = _collect(settings, noted, ended_us)
        stage.say("checking")
        world = _world(inputs, settings, truth, Model.load(model))
        judged = judge(collected, world, settings)
    report = write_report(judged, out, wall_s=time.monotonic() - began, inputs=inputs)
    console.print(summary(report), highlight=False, soft_wrap=True)
    console.print(f"{out / 'report.json'}\n{out / 'report.html'}", highlight=False, soft_wrap=True)
    return 0 if report["ok"] else 1


def _own_environment() -> None:
    for name in list(os.environ):
        if name.startswith(tuple(f"TSUNAGI_{ours}" for ours in _OURS)):
            del os.environ[name]


def _fresh(out: Path) -> Path:
    """Remove from the directory what an earlier demo wrote, and return it. Services that still run there are stopped.

    Raises:
        DemoError: the directory was not made by a demo, or services of an earlier demo run there and do not end.
    """
    out = out.resolve()
    if not mark(out):
        raise DemoError(f"{out}: not empty, and not of an earlier demo; expected a new or empty directory")
    left = out / "tsunagi.toml"
    if left.exists() and System(load(left), left, lambda _line: None).stop().left:
        raise DemoError(f"{out}: services of an earlier demo run there and do not end")
    empty(out, DEMO)
    mark(out)
    return out


def _fit(inputs: Inputs, out: Path, tell: Tell) -> Path:
    path = out / "model.bin"
    config = out / "fit.toml"
    config.write_text(to_toml(configuration(inputs, out, 0, path, 0)), encoding="utf-8")
    steps = load(config).steps
    model, _ = fit_history(inputs.history, inputs.table, steps, (0, inputs.fit_rows), tell=tell)
    config.unlink()
    model.save(path)
    return path


def lead(took_s: float, edges: int) -> float:
    """Return how long before the first row the edges are started, in seconds.

    Args:
        took_s: how long workers and Spark took to start, in seconds.
        edges: the number of edges.
    """
    return max(LEAD_S, (LEAD_SHARE + LEAD_SHARE_AN_EDGE * edges) * took_s)


def _origin_us(settings: Settings, lead_s: float) -> int:
    slide_us = settings.steps.slide_us
    return -(-round((time.time() + lead_s) * 1e6) // slide_us) * slide_us


def _truth(inputs: Inputs, settings: Settings, origin_us: int) -> Truth:
    interval_us = round(inputs.interval_s * 1e6)
    readings = read_readings(
        inputs.data, inputs.table, origin_us=origin_us, interval_us=interval_us, speed=inputs.speed
    )
    max_age_us = np.array([sensor.max_age_s for sensor in inputs.table.sensors]) * 1e6
    return windows(readings, settings.steps, max_age_us)


@contextmanager
def _stopping(settings: Settings, config: Path) -> Iterator[System]:
    """Stop all processes of the demo when the block ends, in whatever way it ends."""
    system = System(settings, config, lambda _line: None)
    try:
        yield system
    finally:
        before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            system.stop()
        finally:
            for number, handler in before:
                signal.signal(number, handler)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does, so that every `finally` is executed."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- afterwards ----------------------------------------------------------------------------------------------------


def _collect(settings: Settings, noted: Noted, ended_us: int) -> Collected:
    source = tool_log(settings, "checker")
    topics = {
        topic: read_topic(source, topic)
        for topic in (log.TUPLES, log.RECOVERED, log.RESULTS, log.LATE, log.DEAD_LETTERS, log.PLAN)
    }
    return Collected(
        tuples=topics[log.TUPLES],
        recovered=topics[log.RECOVERED],
        results=topics[log.RESULTS],
        late=topics[log.LATE][0],
        dead_letters=topics[log.DEAD_LETTERS][0],
        placement=read_placement(topics[log.PLAN][0]),
        kills=noted.kills,
        outages=noted.outages,
        reads=noted.reads,
        notes=list(processes.logged(settings.state, "takeover")),
        ended_us=ended_us,
    )


def _world(inputs: Inputs, settings: Settings, truth: Truth, model: Model) -> World:
    names = set(model.names)
    with np.errstate(invalid="ignore"):
        scale = np.nan_to_num(np.nanstd(truth.values, axis=0))
    return World(
        table=inputs.table,
        truth=truth,
        steps=settings.steps,
        modelled=frozenset(sensor.id for sensor in inputs.table.sensors if sensor.name in names),
        range_us=round(settings.query.range_s * 1e6),
        unknown_group=settings.spark.unknown_group,
        scale=scale,
        delta=settings.recovery.delta,
    )
