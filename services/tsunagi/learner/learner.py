"""The learner on the log: collects what edges send, fits models to it, and puts them in force through `plan`.

It reads `tuples`, so estimates of lost readings are not among what it learns from: what an edge did not send is a gap.
Each model is tried on the newest part of the history, where edges are taken for dead though they lived. A model that
estimates them worse than the last value or the mean does is not put in force.
"""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np
from structlog.stdlib import BoundLogger

from tsunagi.learner.schedule import Fitted, is_due, new_steps
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import FitReport
from tsunagi.recovery.fit import fit_steps, summary
from tsunagi.recovery.logged_steps import LoggedSteps
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store, publish_refit
from tsunagi.runtime import metrics
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.heartbeat import Heartbeats
from tsunagi.runtime.log import PLAN, TUPLES, Log, OffsetLostError, Position, Record
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import VERSION, Heartbeat, ModelTarget, Plan
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.task import Task
from tsunagi.system.fleet_table import TableFollower
from tsunagi.system.plan import append_plan
from tsunagi.system.topics import offset_of_last

NODE = "learner"
"""The name of all learners. Of two that run, the one that began first ends."""
BEAT_S = 0.5
"""Time between two heartbeats, seconds. Nobody takes over from a learner, so few are enough."""
READ_S = 0.2
"""Longest wait of one read for records, in seconds."""
READ_RECORDS = 2000
"""Most records that are read at once."""
MOST_BYTES = 128 * 2**20
"""How much history is kept, as float64; the fit itself takes a multiple of that."""
WORSE = 1.05
"""A model is put in force if its error on hidden readings is at most so many times that of the better of the last value
and the mean. Where sensors have nothing in common, no model is better than these, but its bounds hold."""
SPARE = 2
"""The log is read from so many times the length on that there is room for: edges may have sent late."""
BEHIND_STEPS = 5
"""An edge that is so many steps behind the newest one is out: a model that comes into force then would make what is
estimated for its sensors jump."""


class Learner:
    """One learner process.

    Args:
        log: the Kafka cluster, or a log in memory.
        threads: whether a thread fits models, so that the loop goes on meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        clock: Clock,
        logger: BoundLogger,
        *,
        threads: bool = True,
    ) -> None:
        self._settings = settings
        self._log = log
        self._logger = logger
        self._threads = threads
        self._followed = TableFollower(log, settings)
        self._table = table = self._followed.table
        self._logged = LoggedSteps(settings, table, "what edges have sent", MOST_BYTES)
        self._collector = self._logged.collector
        self._words = Words()
        self._target = ModelTarget()  # the one in force in `plan`
        self._fitted: Fitted | None = None
        self._fault = ""
        self._fitting: Task[tuple[Model, FitReport]] | None = None
        self._fitting_of = 0, 0  # how many steps, and the newest of them
        self._waiting: tuple[Model, FitReport] | None = None  # a good model that waits until no edge is out
        self.heartbeats = Heartbeats(log, NODE, "learner", BEAT_S, self._fill, incarnation=clock.now_us() * 1000)
        self._reader = log.reader()
        places = [(PLAN, 0), *((TUPLES, slot) for slot in range(log.partitions(TUPLES)))]
        ranges = {place: self._reader.range(*place) for place in places}
        self._at = {place: first for place, (first, _) in ranges.items()}  # the next offset of each partition
        room_us = MOST_BYTES // (8 * max(1, len(table))) * settings.steps.slide_us
        for topic, slot in places[1:]:  # what is older than there is room for need not be read
            first, end = ranges[topic, slot]
            if end - first > READ_RECORDS:
                self._at[topic, slot] = offset_of_last(self._reader, topic, slot, (first, end), SPARE * room_us)
        self._ends = {place: end for place, (first, end) in ranges.items() if first < end}  # what is not read up to yet
        self._reader.assign([Position(*place, offset) for place, offset in self._at.items()])

    def start(self) -> None:
        """Begin to send heartbeats."""
        self.heartbeats.start()

    def close(self) -> None:
        """Stop in good order. A fit that is under way is given up; the next learner begins it again."""
        self.heartbeats.leaving = True
        self.heartbeats.close()
        self._reader.close()
        self._followed.close()

    # ---- the loop

    def step(self) -> None:
        """Take one turn: read what came, fit a model if one is due, and put it in force.

        Raises:
            LogError: the log does not take a record.
        """
        self._use(self._followed.poll())
        try:
            records = self._reader.read(READ_RECORDS, READ_S)
        except OffsetLostError:  # retention was faster than the reading
            self._at = {place: max(at, self._reader.range(*place)[0]) for place, at in self._at.items()}
            self._reader.assign([Position(*place, offset) for place, offset in self._at.items()])
            return
        for record in records:
            place = record.topic, record.partition
            self._at[place] = record.offset + 1
            if self._at[place] >= self._ends.get(place, 0):
                self._ends.pop(place, None)
            if record.topic == PLAN:
                self._on_plan(record)
            else:
                self._logged.take(record)
        metrics.LEARNER_STEPS.set(len(self._collector))
        if not records:
            self._ends.clear()  # compaction may have removed the last records, so the end may never come
        if self._ends:
            return
        self._finish()
        if self._fitting is None and self._waiting is None and self._is_due():
            self._begin()
        if self._given_by_user:
            self._waiting = None
        elif self._waiting is not None and not self._out():
            self._put_in_force(*self._waiting)

    def _use(self, table: SensorTable) -> None:
        """Go by the table in force. A fit that is under way ends with the one before."""
        if table is self._table or len(table) < len(self._table):  # only a file can shrink, and ids would not fit
            return
        self._table = table
        self._logged.use(table)
        self._logger.info("a sensors table is in force", sensors=len(table.present), edges=len(table.edges))

    def _on_plan(self, record: Record) -> None:
        plan = read_message(Plan, record, self._logger)
        if plan is None or not self._words.take(plan, record.offset):
            return
        if plan.HasField("placement"):
            self._follow(plan.placement.slots)
        if not plan.HasField("model"):
            return
        known_already = bool(plan.model.sha256) and plan.model.sha256 == self._target.sha256
        self._target = target = plan.model
        if known_already and target.by == NODE and not target.as_configured:
            return  # what this learner has written itself; its file need not be read
        if target.by != NODE or target.as_configured:
            self._fitted = None
            return
        known: frozenset[str] = frozenset()
        with contextlib.suppress(ModelError):  # the store was emptied, so all sensors have to join
            known = frozenset(load_from_store(self._settings.recovery.store, target.sha256).names)
        self._fitted = Fitted(target.steps, target.newest, known)
        metrics.LEARNER_ERROR.set(target.error)

    def _follow(self, slots: int) -> None:
        """Read the logs of this many slots, if there are more than before."""
        for slot in range(slots):
            if (TUPLES, slot) not in self._at:
                self._at[TUPLES, slot] = first = self._reader.range(TUPLES, slot)[0]
                self._reader.add(Position(TUPLES, slot, first))

    # ---- fitting

    @property
    def _given_by_user(self) -> bool:
        """Whether a user has put a model in force. It stays then."""
        return bool(self._target.sha256) and self._target.by != NODE

    def _is_due(self) -> bool:
        newest = self._collector.newest
        if newest is None or self._given_by_user:
            return False
        least = self._settings.recovery.learn_steps
        joining = False
        if self._fitted is not None and self._fitted.good:
            enough = np.flatnonzero(self._collector.readings >= least).tolist()
            sensors = [self._table.sensors[place] for place in enough]
            joining = any(sensor.key not in self._fitted.sensors for sensor in sensors if not sensor.removed)
            # A sensor that was left out of a fit to all these readings joins with one to more of them.
            joining = joining and newest - self._fitted.newest >= least
        return is_due(self._fitted, len(self._collector), newest, least, joining=joining)

    def _begin(self) -> None:
        assert self._collector.newest is not None  # noqa: S101 - `_is_due` has seen to that
        self._fitting_of = len(self._collector), self._collector.newest
        history = self._logged.history()
        self._logger.info("fitting", steps=self._fitting_of[0], sensors=len(history.names))
        work = partial(fit_steps, history, self._table, self._settings.steps, "auto")
        self._fitting = Task(work, "fit", at_once=not self._threads)

    def _finish(self) -> None:
        """Take over what a fit has given."""
        if self._fitting is None or not self._fitting.done.is_set():
            return
        task, self._fitting = self._fitting, None
        steps, newest = self._fitting_of
        try:
            model, report = task.result()
        except ModelError as error:
            self._refuse(steps, newest, str(error))
            return
        naive = min(report.last_value_nrmse, report.mean_nrmse)
        for line in summary(model, report, self._settings.steps):
            self._logger.info("fitted", said=line)
        if not report.nrmse <= WORSE * naive:
            said = (
                f"its error on hidden readings is {report.nrmse:.3g} sd, that of the last value or the mean {naive:.3g}"
            )
            self._refuse(steps, newest, said)
            return
        self._waiting = model, report

    def _refuse(self, steps: int, newest: int, why: str) -> None:
        known = self._fitted.sensors if self._fitted is not None else frozenset()
        self._fitted, self._fault = Fitted(steps, newest, known, good=False), why
        self._logger.warning("a model was not put in force", steps=steps, reason=why)

    def _out(self) -> list[str]:
        """Return the edges that are out. One that has not sent for as long as a first model takes is not waited for."""
        newest = max(self._logged.newest.values(), default=0)
        longest = max(BEHIND_STEPS, self._settings.recovery.learn_steps)
        return sorted(edge for edge, step in self._logged.newest.items() if BEHIND_STEPS < newest - step <= longest)

    def _put_in_force(self, model: Model, report: FitReport) -> None:
        settings, (steps, newest) = self._settings, self._fitting_of
        self._waiting, self._fault = None, ""
        sha256 = publish_refit(model, settings.recovery.store, 2 * settings.kafka.retention_s)
        target = ModelTarget(
            sha256=sha256,
            by=NODE,
            sensors=len(model),
            steps=steps,
            newest=newest,
            error=report.nrmse,
            naive=min(report.last_value_nrmse, report.mean_nrmse),
        )
        self._fitted, self._target = Fitted(steps, newest, frozenset(model.names)), target
        metrics.LEARNER_ERROR.set(target.error)
        append_plan(self._log, {"model": Plan(version=VERSION, model=target)})
        self._logger.info("a model is put in force", sha256=sha256, steps=steps, sensors=len(model), error=report.nrmse)

    # ---- what it says of itself

    def _fill(self, beat: Heartbeat) -> None:
        steps, last = len(self._collector), self._fitted
        since = steps if last is None else (self._collector.newest or last.newest) - last.newest
        beat.learner.steps = steps
        beat.learner.needed = steps + max(0, new_steps(last, self._settings.recovery.learn_steps) - since)
        beat.learner.fitting = self._fitting is not None
        beat.learner.fault = self._fault
        if self._waiting is not None:
            beat.learner.out.extend(self._out())
