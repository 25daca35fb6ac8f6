"""The edge's loop: read the source, close the steps whose time has passed, send them.

`EdgeService` is the body of the loop: one turn at a time and without waiting, so that a test can drive it with a clock
of its own. `tsunagi.edge.process` adds what a process needs around it.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import structlog

from tsunagi.edge.counts import Counts
from tsunagi.edge.dead_letters import DeadLetters
from tsunagi.edge.namesakes import Namesakes
from tsunagi.edge.passing import Passed, Passing
from tsunagi.edge.position import PositionFile
from tsunagi.edge.publish import EdgePlacementReader, EdgePublisher, placed_rows
from tsunagi.edge.sensing import Sensing
from tsunagi.edge.source import UNKNOWN_SENSOR, EdgePosition, Opener, Source, SourceError, SourceRow, Unusable
from tsunagi.edge.spool import Spool
from tsunagi.edge.window import EARLY, LATE, Rejected, SlidingWindows
from tsunagi.query.form import to_columns
from tsunagi.runtime.beat_routes import EdgeRoutes
from tsunagi.runtime.clock import Clock, SteadyClock
from tsunagi.runtime.log import Log
from tsunagi.runtime.messages import Heartbeat
from tsunagi.runtime.sensors import Sensor, SensorsError, read_sensors
from tsunagi.runtime.settings import MICROSECONDS, Settings
from tsunagi.system.identity import Membership

MAX_ROWS = 256
"""Most rows that are taken from the source in one turn. Heartbeats, probes and signals are looked after between two
turns, which must not take long."""
MAX_STEPS = 64
"""Most steps that are closed in one turn, for the same reason."""
_IDLE_S = 0.1
"""Longest rest of the loop between two turns, in seconds: placements, signals and acknowledgements are noticed that
late."""
_OVERDUE_S = 0.01
"""Rest of the loop while a step is due and cannot be closed yet, in seconds: asking again at once would burn a core."""
SPOOL_S = 5.0
"""At its end an edge gives its waiting records this many seconds to be sent; the rest stays in the spool."""
_LOG_INTERVAL_S = 5.0
"""Shortest time between two lines in the log about the same event, in seconds."""


class EdgeService:
    """One incarnation of an edge.

    Args:
        clock_offset_s: how many seconds the edge's clock is wrong, for tests: event times are shifted by it, while rows
            are handed out by the true time.
        opener: opens the source; None means the source that the settings name.

    Attributes:
        incarnation: time of the start in nanoseconds, or more: it is greater than that of each earlier incarnation that
            published a step.
        done: whether the source has ended and the log has acknowledged every record.

    Raises:
        SensorsError: the file of the sensors table cannot be used.
        SourceError: the source, the spool or the edge's position cannot be used.
        ReplacedError: a newer process of this edge has taken over. `step` raises it too.
    """

    def __init__(
        self,
        settings: Settings,
        edge: str,
        log: Log,
        clock: Clock,
        logger: structlog.stdlib.BoundLogger,
        *,
        clock_offset_s: float = 0.0,
        incarnation: int | None = None,
        opener: Opener | None = None,
    ) -> None:
        table = read_sensors(settings.sensors)
        self.name = edge
        self.done = False
        self._settings = settings
        clock = self._clock = SteadyClock(clock)
        self._logger = logger
        self._offset_us = round(clock_offset_s * MICROSECONDS)
        self._position_file = PositionFile(settings.state, edge)
        self._position_fault = ""
        # The spool comes first: another process of this edge then releases the directory and writes no more
        # positions.
        spool_file = self._position_file.path.with_name("spool.bin")
        spool = Spool(spool_file, settings.edge.spool_bytes, logger, clock.monotonic())
        try:
            for path in settings.query.files:
                if not path.exists():
                    logger.warning("no such file of queries: streams that it creates are not known", path=str(path))
            self._sensing = Sensing(settings, edge, table, logger, clock, opener)
            self._position = self._load_position()
        except BaseException:
            spool.close()
            raise
        started = clock.now_us() * 1000 if incarnation is None else incarnation
        self.incarnation = started if self._position is None else max(started, self._position.incarnation + 1)
        if settings.query.mode == "tuples":
            self._sensing.passing = Passing(self._own, None if self._position is None else self._position.step)
        self._source: Source | None = None
        self._in_force = False  # whether the edge has gone over from the file's table to the one in `plan`
        self._begun = (0, 0)
        self._skipped = 0
        self._counts = Counts(edge)
        self._placements = EdgePlacementReader(log, table, clock, logger, Membership(settings))
        self.publisher = EdgePublisher(log, edge, self._own, spool, clock, logger)
        self.routes = EdgeRoutes(log, self.publisher, settings.standby.edge_heartbeat_s)
        self._namesakes = Namesakes(log, edge, self.incarnation, clock, self.routes, settings.security)
        self.dead_letters = DeadLetters(self.publisher.producer, edge, clock, logger, self._opener.letters_per_s)
        self._said_s: dict[str, float] = {}

    def ready(self) -> tuple[bool, str]:
        """Return whether steps are being published, and what is wrong; a source that is away leaves the edge ready."""
        if not self._own and self._placements.caught_up:
            return False, f"the sensors table in force has no sensor of edge {self.name!r}"
        if self._source is None:
            return False, self._placements.trouble
        source = self._source
        return True, "; ".join(
            filter(None, (source.trouble, source.fault, self._opener.lacking, self._clock_fault, self._disk_fault))
        )

    @property
    def _own(self) -> tuple[Sensor, ...]:
        return self._sensing.own

    @property
    def _opener(self) -> Opener:
        return self._sensing.opener

    @property
    def _windows(self) -> SlidingWindows:
        return self._sensing.windows

    @property
    def _clock_fault(self) -> str:
        """What a jump of the wall clock means for the steps, while they do not follow it or wait for it; else ""."""
        apart_us, last = self._clock.apart_us, self.publisher.last_step
        if last is None and self._position is not None and self._windows.next_step == self._position.step + 1:
            last = self._position.step
        if apart_us:
            return f"the clock has jumped by {apart_us / MICROSECONDS:+.1f} s: steps go on as before it"
        wait_us = (
            0
            if last is None or self._sensing.passing is not None
            else last * self._settings.slide_us - self._offset_us - self._clock.now_us()
        )
        if wait_us > self._settings.slide_us:
            return f"the clock was set back: the next step comes in {wait_us / MICROSECONDS:.1f} s"
        return ""

    @property
    def _disk_fault(self) -> str:
        spool = self.publisher.spool
        return "; ".join(filter(None, (spool.fault, self._position_fault, spool.lock.fault)))

    def step(self) -> float:
        """Do what is due, without waiting; return in how many seconds something may be due again.

        Raises:
            SensorsError: the table has no sensor of this edge, or contradicts the placement.
            SourceError: the source is malformed from here on.
            ConfigError: the log is of another system than this edge's state directory.
            LogError: a record can never be delivered.
            ReplacedError: a newer process of this edge has taken over.
        """
        self.publisher.poll()
        if self.publisher.depth == 0:  # only while the broker answers: reading may take its time
            self._namesakes.poll()
        if self._placements.poll():
            self._place()
        self._hear_queries()
        self._follow_clock()
        now_us = self._clock.now_us()
        if self._source is None:
            if not self._may_open(now_us):
                return _IDLE_S
            self._source = self._open(now_us)
        source = self._source
        rows = self._read(source, now_us)
        self._note_skipped(source)
        if self._sensing.passing is None:
            for row in rows:
                self._add(row)
        for item in source.unusable():
            if item.reason == UNKNOWN_SENSOR and item.origin is None and item.letter:
                self._logger.warning("a column is not in the sensors table", sensor=item.sensor, row=item.number)
            self.dead_letters.write(item)
        more = False
        if self._sensing.passing is None:
            more = self._close_steps(source, now_us)
        else:
            self._pass_on(source, self._sensing.passing, rows)
        self.dead_letters.poll()
        self._counts.update(len(rows), self.publisher, self.dead_letters.counts)
        self._counts.look(source, self._disk_fault)
        if self._sensing.needed_events is not None:
            self._counts.note_filtered(self._sensing.needed_events.dropped)
        if source.finished and not more and len(rows) < MAX_ROWS:
            self.done = self.publisher.depth == 0
            return _IDLE_S
        at_once = more or len(rows) == MAX_ROWS or (source.waiting > 0 and not self.dead_letters.full)
        return 0.0 if at_once else self._until_due_s(source, now_us)

    def _may_open(self, now_us: int) -> bool:
        """Go by the table in force; return whether the source can be opened."""
        plan = self._placements
        if plan.caught_up and (not self._in_force or self._must_change(now_us + self._offset_us)):
            self._in_force = True
            self._change_over(now_us)
        if plan.caught_up and not self._own:
            if plan.from_us is None:
                raise SensorsError(
                    f"{self._settings.sensors}: no sensor of edge {self.name!r}; found the edges "
                    f"{', '.join(self._sensing.table.edges)}"
                )
            self._say("waiting for sensors", reason=self.ready()[1])
            return False
        if plan.current is None:
            self._say("waiting for the placement", reason=plan.trouble)
        return plan.current is not None

    def fill(self, beat: Heartbeat) -> None:
        """Write into a heartbeat the edge's last step, -1 before the first one, and by which table it goes."""
        beat.step = -1 if self.publisher.last_step is None else self.publisher.last_step
        beat.table = self._sensing.serial_in(self._placements)

    def close(self, spool_s: float = SPOOL_S) -> None:
        """Give waiting records `spool_s` seconds to be sent, then release everything."""
        kept = self.publisher.close(spool_s)
        if kept:
            path = str(self.publisher.spool.path)
            self._logger.warning(
                "stopped before the log had every record: the next start sends them", kept=kept, path=path
            )
        self._placements.close()
        self._namesakes.close()
        if self._source is not None:
            self._source.close()
        else:
            self._opener.close()

    def _follow_clock(self) -> None:
        """Compare the wall clock with the log's time; go on, follow the wall clock, or begin anew."""
        if self.publisher.log_time is not None:
            self._clock.hear(*self.publisher.log_time)
        source, jumps = self._source, self._clock.jumps
        # The rows of a replay have their times from its beginning: with a clock that went back it would stand still.
        moved_us = self._clock.look(may_go_back=source is None or not source.origin_us)
        if self._clock.jumps > jumps:
            self._counts.clock_jumps.inc()
            self._logger.warning(
                "the clock has jumped", apart_s=self._clock.apart_us / MICROSECONDS, followed_s=moved_us / MICROSECONDS
            )
        elif moved_us:
            self._logger.warning("the log's time agrees: the clock is followed", seconds=moved_us / MICROSECONDS)
        if moved_us < -self._settings.steps.max_ahead_s * MICROSECONDS and source is not None:
            self._begin_anew(source)

    def _begin_anew(self, source: Source) -> None:
        """Go on as after a start: the edge's time was so far ahead of the log's that the slots refused its batches.

        Batches that were ahead by less than `[steps] max_ahead_s` did count. The steps up to theirs are refused now, as
        duplicates, and are counted in `late`: at most `max_ahead_s` of readings.
        """
        source.close()
        self._sensing.begin_anew()
        self._position = self._load_position()
        self._source = None
        self._skipped = 0
        self.publisher.last_step = None

    def _load_position(self) -> EdgePosition | None:
        opener = self._opener
        try:
            position = self._position_file.load()
            kept = (opener.name, opener.digest) if position is None else (position.source, position.header_sha256)
            if opener.digest and kept != (opener.name, opener.digest):
                raise SourceError(  # noqa: TRY301 - closed below, as for a damaged file
                    f"{self._position_file.path}: this is a position in {kept[0]!r} with another header, found "
                    f"{opener.name!r}; delete the file to begin at the source's first row"
                )
        except SourceError:
            opener.close()
            raise
        return position

    def _open(self, now_us: int) -> Source:
        steps, position = self._settings.steps, self._position
        opened = self._opener.open(now_us, position, self.incarnation)
        not_before = None
        if position is not None:
            ahead = position.step * self._settings.slide_us - (now_us + self._offset_us)
            if ahead > steps.max_ahead_s * MICROSECONDS:
                self._logger.warning("the clock was set back", step=position.step, ahead_s=ahead / MICROSECONDS)
            else:
                not_before = position.step + 1
        if self._sensing.passing is None:
            self._observe(opened, not_before, not_before=not_before)
            for row in opened.refill:
                self._add(row._replace(again=True))
        opened.refill.clear()
        self._logger.info(
            "source",
            kind=self._settings.source.kind,
            name=self._opener.name,
            origin_us=opened.origin_us,
            incarnation=self.incarnation,
            first_step=self._windows.next_step,
            mode=self._settings.query.mode,
        )
        return opened

    def _note_skipped(self, source: Source) -> None:
        skipped = source.skipped_rows - self._skipped
        if skipped:
            self._skipped = source.skipped_rows
            self._counts.rows_skipped.inc(skipped)
            self._say("rows not sent: their time was over", rows=skipped, in_all=self._skipped)
        if self._sensing.passing is None and (source.observed_us, source.send_after_us) != self._begun:
            self._observe(source, self._windows.next_step)

    def _observe(self, source: Source, expected: int | None, *, not_before: int | None = None) -> None:
        """Begin with the first whole window that is to be sent; count the steps from `expected` to it as skipped."""
        self._begun = (source.observed_us, source.send_after_us)
        first = (source.send_after_us + self._offset_us) // self._settings.steps.slide_us + 1
        not_before = first if not_before is None else max(first, not_before)
        self._windows.observe_from(source.observed_us + self._offset_us, not_before=not_before)
        following = self._windows.next_step
        if following is not None and (dropped := self._sensing.events.skip(following)):
            self.dead_letters.counts[LATE] += dropped
        if expected is not None and following is not None and following > expected:
            self._counts.steps_skipped.inc(following - expected)
            self._logger.warning("steps not sent", first=expected, last=following - 1)

    def _add(self, row: SourceRow) -> None:
        if row.stream:
            self._add_event(row)
            return
        early = 0 if row.again else self._windows.early(row.time_us + self._offset_us, row.places)
        if early:  # about a second's worth at each start, and of new sensors: they get no letters
            self.dead_letters.counts[EARLY] += early
        rejected = self._windows.add(row.time_us + self._offset_us, row.places, row.values)
        if not row.again:
            self._set_aside(row, rejected)

    def _add_event(self, row: SourceRow) -> None:
        if row.cells is None:  # of another edge
            return
        reason = self._sensing.events.add(row.stream, row.time_us + self._offset_us, row.cells, self._windows.next_step)
        if reason == LATE and self.publisher.last_step is None:
            if not row.again:
                self.dead_letters.counts[EARLY] += 1
        elif reason and not row.again:
            detail = (
                "its step had closed"
                if reason == LATE
                else "the step's record is full: raise [kafka] max_message_bytes"
            )
            payload = b"" if row.origin is None else row.origin.payload
            self.dead_letters.write(Unusable(reason, row.stream, row.number, detail, payload, row.origin))

    def _set_aside(self, row: SourceRow, rejected: list[Rejected]) -> None:
        for reading in rejected:
            sensor = self._own[reading.place]
            detail = f"found {reading.value}, expected {sensor.minimum} to {sensor.maximum}"
            if reading.reason == LATE:
                detail = "its step had closed: too far out of order"
            payload = str(reading.value).encode() if row.origin is None else row.origin.payload
            self.dead_letters.write(Unusable(reading.reason, sensor.name, row.number, detail, payload, row.origin))

    def _close_steps(self, source: Source, now_us: int) -> bool:
        """Publish the steps whose readings have all come; return whether more may be ready."""
        complete_us = source.complete_until_us(now_us) + self._offset_us
        for _ in range(MAX_STEPS):
            step = self._windows.next_step
            if step is not None and self._must_change(self._windows.end_us(step)):
                self._change_over(now_us)
            if step is None or self._windows.end_us(step) > complete_us:
                return False
            closed = self._windows.close(step)
            read_us = min(self._windows.begin_us(step + 1), self._windows.end_us(step))  # events lie within a slide
            self._save(source, step, read_us - self._offset_us)
            self.publisher.publish(
                closed, self._windows.end_us(step), self.incarnation, events=self._sensing.events.close(step)
            )
        return True

    def _must_change(self, event_us: int) -> bool:
        """Return whether a newer table is to be used at an event time: all sensors of this edge have places in it."""
        table, from_us, placement = self._placements.table, self._placements.from_us, self._placements.current
        if table is self._sensing.table or from_us is None or placement is None or event_us <= from_us:
            return False
        return all(sensor.id < placed_rows(placement) for sensor in table.of_edge(self.name))

    def _change_over(self, now_us: int) -> None:
        """Go by the newest sensors table from here on."""
        before = self._sensing.change(self._placements.table, now_us, self._offset_us)
        if before is None:
            return
        self.publisher.change(self._own)
        self._place()
        old, new = ({sensor.id for sensor in sensors} for sensors in (before, self._own))
        counts = {"sensors": len(new), "added": len(new - old), "removed": len(old - new)}
        self._logger.info("fleet table", **counts, from_step=self._windows.next_step, lacking=self._opener.lacking)

    def _place(self) -> None:
        if self._placements.current is not None:
            self.publisher.place(self._placements.current)
            self.publisher.help(self._placements.helpers)

    def _read(self, source: Source, now_us: int) -> list[SourceRow]:
        """Return the rows whose time has come. Where tuples are passed on as they come, a change lies between two."""
        if self.dead_letters.full:  # reading on would only fill the memory
            return []
        until_us = now_us
        if self._sensing.passing is not None:
            following_us = source.next_us()
            if self._must_change((now_us if following_us is None else following_us) + self._offset_us):
                self._change_over(now_us)
            elif self._must_change(now_us + self._offset_us):  # a file has rows of the time before the change
                until_us = min(now_us, (self._placements.from_us or 0) - self._offset_us)
        rows = source.due(until_us, MAX_ROWS)
        return rows if self._own else []

    def _hear_queries(self) -> None:
        for change in self._placements.queries:
            for needed in (self._sensing.needed, self._sensing.needed_events):
                if needed is not None:
                    needed.on_query(change)
        self._placements.queries.clear()

    def _pass_on(self, source: Source, passing: Passing, rows: list[SourceRow]) -> None:
        """Publish the readings of each row, where the query takes each tuple as it comes."""
        passed: list[Passed] = []
        taken: list[SourceRow] = []
        for row in rows:
            if row.again:  # an earlier incarnation has sent this row
                continue
            item, rejected = passing.take(row, self._offset_us)
            self._set_aside(row, rejected)
            if item is not None:
                passed.append(item)
                taken.append(row)
        if passed:
            newest_us = max(item.event_time_us for item in passed) - self._offset_us
            self._save(source, passed[-1].rows.step, newest_us - source.delay_us)
        form, kept = self._sensing.form, np.ones(len(passed), dtype=np.bool_)
        if self._sensing.needed is not None:
            form, kept = self._sensing.needed.form, self._sensing.needed.choose(taken, self._offset_us)
            self._counts.note_filtered(self._sensing.needed.dropped)
        for item in itertools.compress(passed, kept.tolist()):
            columns = () if item.cells is None or form is None else to_columns(item.cells, form)
            self.publisher.publish(item.rows, item.event_time_us, self.incarnation, everywhere=False, columns=columns)

    def _save(self, source: Source, step: int, after_us: int) -> None:
        """Save the position before the step is sent, so that no step is made twice (tsunagi.edge.position)."""
        self.publisher.spool.lock.check()
        position = EdgePosition(
            edge=self.name,
            source=self._opener.name,
            header_sha256=self._opener.digest,
            origin_us=source.origin_us,
            step=step,
            incarnation=self.incarnation,
            progress=source.progress(after_us),
        )
        try:
            self._position_file.save(position)
        except SourceError as error:
            if not self._position_fault:
                self._logger.warning("the edge goes on without its position on disk", detail=str(error))
            self._position_fault = str(error)
        else:
            if self._position_fault:
                self._logger.info("the edge's position is on disk again", step=step)
            self._position_fault = ""

    def _until_due_s(self, source: Source, now_us: int) -> float:
        step = self._windows.next_step  # always None where tuples are passed on as they come
        close_us = None if step is None else self._windows.end_us(step) - self._offset_us + source.delay_us
        times = [time for time in (source.next_us(), close_us) if time is not None]
        soonest_us = min(times, default=now_us + MICROSECONDS)
        # A step that is due and cannot be closed yet waits for something else; asking again at once would burn a
        # core.
        wait_s = (soonest_us - now_us) / MICROSECONDS
        return min(wait_s, _IDLE_S) if wait_s > 0 else _OVERDUE_S

    def _say(self, event: str, **fields: object) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._said_s.get(event, -math.inf) >= _LOG_INTERVAL_S:
            self._said_s[event] = now_s
            self._logger.info(event, **fields)
