"""Sends each step to the slots that hold this edge's sensors: one record for each slot, in order, none dropped.

A slot that has lost sensors may ask for helpers, which are sensors of other slots. While it asks, their readings go to
that slot as well.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from tsunagi.edge.spool import Spool, SpooledRecord
from tsunagi.edge.window import ClosedWindow
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.columns import Sensors, pack_floats, pack_sensors, sensors
from tsunagi.runtime.fleet_table import KEY, unpack_or_none
from tsunagi.runtime.log import PLAN, TUPLES, Log, LogError, Position
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import (
    VERSION,
    Events,
    FleetTable,
    HelperRequest,
    LogRecord,
    Placement,
    Plan,
    QueryChange,
    TupleBatch,
    TypedColumn,
)
from tsunagi.runtime.moving import SensorSlots
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import Sensor, SensorsError, SensorTable
from tsunagi.system.identity import Membership

_NOWHERE = -1
"""Stands for the slot of a sensor that the placement does not know yet."""
_NOBODY = np.zeros(0, dtype=bool)
"""An empty mask, for slots that have asked for no helpers."""
_RETRY_S = 1.0
"""Time between two attempts to read `plan` while the log does not answer, in seconds."""
_SILENCE_S = 3.0
"""After this many seconds without an acknowledgement of the log, a line in the edge's log says so."""
_MOST_SENT = 2000
"""Most records that the client library holds at once. The others wait in the spool alone, or they would be in memory
twice."""


class EdgePlacementReader:
    """Follows `plan`, by the rule of `tsunagi.runtime.plan`: sensors table, placement, requests for helpers, queries.

    Attributes:
        table: the newest sensors table: that of the file until one is read in `plan`.
        from_us: edges go by the table in steps that end after this event time, microseconds; None = it is that of the
            file.
        table_serial: the serial number of the table's record; 0 = it is that of the file.
        current: the newest placement; None until the plan has been read to its end and has one.
        helpers: for each slot that asks for helpers, the ids of the sensors that it asks for.
        queries: statements that were added or dropped; whoever takes them empties the list.
        caught_up: whether all has been read that stood in `plan` at the start.
        trouble: why there is no placement yet, for people.

    Args:
        table: the sensors table of the file.
        member: checks which system the log belongs to; None means that any system's log will do.
    """

    def __init__(
        self,
        log: Log,
        table: SensorTable,
        clock: Clock,
        logger: structlog.stdlib.BoundLogger,
        member: Membership | None = None,
    ) -> None:
        self.table = table
        self.table_serial = 0
        self.from_us: int | None = None
        self.current: Placement | None = None
        self.helpers: dict[int, frozenset[int]] = {}
        self.queries: list[QueryChange] = []
        self.caught_up = False
        self._end = 0
        self._words = Words()
        self.trouble = "the plan has not been read"
        self._reader = log.reader()
        self._newest: Placement | None = None  # one that has not been compared with the table yet
        self._clock = clock
        self._logger = logger
        self._member = member
        self._reading = False
        self._retry_s = 0.0

    def poll(self) -> bool:
        """Read what is new in `plan`; return whether the placement, or a request for helpers, has changed.

        Raises:
            ConfigError: the log is of another system than this state directory.
            SensorsError: the first placement contradicts the sensors table.
            LogError: the log has lost records of the plan, or the client failed for good.
        """
        if not self._reading and not self._begin():
            return False
        before, asked = self.current, False
        for record in self._reader.read(1000, 0.0):
            self.caught_up = self.caught_up or record.offset + 1 >= self._end
            plan = None if record.value is None else read_message(Plan, record, self._logger)
            if plan is None or not self._words.take(plan, record.offset):
                continue
            kind = plan.WhichOneof("body")
            if kind == "placement":
                self._newest = plan.placement
            elif kind == "table":
                self._hear_table(plan.table, record.offset)
            elif kind == "helpers":
                asked |= self._hear(plan.helpers)
            elif kind == "query":
                self.queries.append(plan.query)
            elif kind == "system" and self._member is not None:
                self._member.hear(plan.system)
        if self._newest is not None and self.caught_up:  # before, the table that it was made from may be still to come
            self._consider(self._newest)
        if self.current is None:
            self.trouble = "no placement in the plan yet"
        return self.current is not before or asked

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _begin(self) -> bool:
        now_s = self._clock.monotonic()
        if now_s < self._retry_s:
            return False
        try:
            first, self._end = self._reader.range(PLAN, 0)
        except LogError as error:
            self.trouble = f"the plan cannot be read: {error}"
            self._retry_s = self._clock.monotonic() + _RETRY_S
            return False
        self._reader.assign([Position(PLAN, 0, first)])
        self._reading = True
        self.caught_up = first >= self._end
        return True

    def _hear(self, request: HelperRequest) -> bool:
        """Take note of a request for helpers; return whether it differs from the slot's last one."""
        if self.current is not None and request.slot >= self.current.slots:
            return False  # there is no such slot, and a record sent to it would end the edge
        wanted = frozenset(sensors(request.sensor).tolist())
        if wanted == self.helpers.get(request.slot, frozenset()):
            return False
        self.helpers[request.slot] = wanted
        return True

    def _hear_table(self, record: FleetTable, offset: int) -> None:
        table = unpack_or_none(record, self._logger)
        if table is None:
            return
        if self.current is not None and not _fits(self.current, table):
            self._logger.error("sensors table of another fleet", offset=offset, by=record.by)
            return
        self.table, self.from_us = table, record.from_us
        self.table_serial = self._words.in_force(KEY)[0]

    def _consider(self, found: Placement) -> None:
        rows = placed_rows(found)
        if rows > len(self.table) and self.from_us is not None:
            return  # the table that has these sensors is still to come
        self._newest = None
        if rows <= len(self.table) and not _fits(found, self.table):
            if self.current is None:
                raise SensorsError(
                    f"the sensors table contradicts the placement {found.serial} in the plan: its first {rows} rows "
                    f"have the digest {self.table.digest(rows)[:12]}, expected {found.table_sha256[:12]}"
                )
            self._logger.error("placement of another sensors table", serial=found.serial, kept=self.current.serial)
            return
        self.current = found
        self.helpers = {slot: wanted for slot, wanted in self.helpers.items() if slot < found.slots}
        self._logger.info("placement", serial=found.serial, slots=found.slots, sensors=rows)


def placed_rows(placement: Placement) -> int:
    """Return how many rows of the sensors table have a slot."""
    return len(placement.slot) // 4


def _fits(placement: Placement, table: SensorTable) -> bool:
    return not placement.table_sha256 or table.placed(placed_rows(placement), placement.table_sha256)


class _Route(NamedTuple):
    """Where the edge sends its sensors: the slot of each of them, int64[n], `_NOWHERE` = none; and these slots."""

    slot_of: npt.NDArray[np.int64]
    slots: list[int]

    @staticmethod
    def of(ids: npt.NDArray[np.int64], placed: Sensors) -> _Route:
        """Return the route of sensors with these ids.

        Args:
            placed: uint32[m], the slots of the fleet's first m sensors.
        """
        known = ids < len(placed)
        slot_of = np.full(len(ids), _NOWHERE, dtype=np.int64)
        slot_of[known] = placed[ids[known]]
        return _Route(slot_of, sorted(set(slot_of[known].tolist())))


class _Routes(NamedTuple):
    """The routes of steps that end at `from_us` at the latest, and of those that end later."""

    from_us: int
    before: _Route
    after: _Route

    @staticmethod
    def nowhere(count: int) -> _Routes:
        """Return the routes of sensors that have no places yet."""
        route = _Route(np.full(count, _NOWHERE, dtype=np.int64), [])
        return _Routes(0, route, route)

    def at(self, event_time_us: int) -> _Route:
        """Return the route of a step that ends then."""
        return self.after if event_time_us > self.from_us else self.before


class EdgePublisher:
    """Writes an edge's steps to `tuples`.

    Args:
        spool: the records that wait to be sent; those that an earlier incarnation left in it are sent first.

    Attributes:
        delivered: how many records the log has acknowledged.
        unplaced_values: how many values and events were not sent because the placement does not know their sensors yet.
        lent_values: how many values were sent to slots of other sensors, which had asked for helpers.
        last_step: the newest step handed over; None before the first.
        log_time: when the log appended the record that it acknowledged last, in microseconds by the log's clock, and
            when that acknowledgement was heard, in monotonic seconds; None before the first.
    """

    def __init__(
        self,
        log: Log,
        edge: str,
        own: tuple[Sensor, ...],
        spool: Spool,
        clock: Clock,
        logger: structlog.stdlib.BoundLogger,
    ) -> None:
        self.producer = log.producer()
        self.spool = spool
        self.delivered = 0
        self.unplaced_values = 0
        self.lent_values = 0
        self.last_step: int | None = None
        self.log_time: tuple[int, float] | None = None
        self._edge = edge
        self._own = own
        self._clock = clock
        self._logger = logger
        self._routes = _Routes.nowhere(len(own))
        self._lent: dict[int, npt.NDArray[np.bool_]] = {}
        self._sending = 0
        self._failure: LogError | None = None
        self._progress_s = clock.monotonic()
        self._logged_s = self._progress_s

    @property
    def depth(self) -> int:
        """How many records the log has not acknowledged."""
        return len(self.spool)

    @property
    def slots(self) -> list[int]:
        """The slots that this edge sends to, those before and behind the boundary of a move."""
        return sorted({*self._routes.before.slots, *self._routes.after.slots})

    def change(self, own: tuple[Sensor, ...]) -> None:
        """Go on with other sensors, from the next step on. They have no places before `place` is called."""
        self._own = own
        self._routes, self._lent = _Routes.nowhere(len(own)), {}

    def place(self, placement: Placement) -> None:
        """Send sensors where a placement says, from the next step on; behind a move's boundary that is elsewhere."""
        slots = SensorSlots.of(placement)
        ids = np.array([sensor.id for sensor in self._own], dtype=np.int64)
        before, after = (_Route.of(ids, where) for where in slots.sending)
        names = [sensor.name for sensor, place in zip(self._own, after.slot_of, strict=True) if place == _NOWHERE]
        if names:
            self._logger.warning("sensors without a place", count=len(names), first=names[0], serial=placement.serial)
        moved = int((before.slot_of != after.slot_of).sum())
        if moved:
            self._logger.info("sensors move to other slots", sensors=moved, phase=slots.phase, from_us=slots.from_us)
        self._routes = _Routes(slots.from_us, before, after)

    def help(self, requests: Mapping[int, frozenset[int]]) -> None:
        """Send this edge's sensors also to the slots that ask for them, from the next step on."""
        ids = [sensor.id for sensor in self._own]
        lent = {
            slot: np.array([sensor in wanted for sensor in ids], dtype=np.bool_) for slot, wanted in requests.items()
        }
        before = sorted(self._lent)
        self._lent = {slot: mine for slot, mine in lent.items() if mine.any()}
        if self._lent or before:
            told = {slot: int(mine.sum()) for slot, mine in self._lent.items()}
            self._logger.info("sensors sent to other slots as well", sensors_by_slot=told)

    def publish(
        self,
        closed: ClosedWindow,
        event_time_us: int,
        incarnation: int,
        *,
        everywhere: bool = True,
        columns: Sequence[TypedColumn] = (),
        events: Sequence[Events] = (),
    ) -> None:
        """Hand over a step: one record for each slot that holds sensors of this edge.

        Args:
            everywhere: whether a slot also gets a record in which no sensor has a value, because it waits for each
                step.
            columns: the columns of a tuple (CREATE STREAM), whose sensor is the only one.
            events: those of the step; they go to one slot of this edge.
        """
        route = self._routes.at(event_time_us)
        if not route.slots:
            self.unplaced_values += sum(item.rows for item in events)
        where = route.slots[zlib.crc32(self._edge.encode()) % len(route.slots)] if route.slots else _NOWHERE
        slot_of = route.slot_of[closed.places]
        self.unplaced_values += int((slot_of == _NOWHERE).sum())
        for slot in route.slots if not self._lent else sorted({*route.slots, *self._lent}):
            here = slot_of == slot
            lent = self._lent[slot][closed.places] & ~here if slot in self._lent else _NOBODY
            if not ((everywhere and slot in route.slots) or here.any() or lent.any()):
                continue
            batch = TupleBatch(
                edge=self._edge,
                incarnation=incarnation,
                step=closed.step,
                event_time_us=event_time_us,
                sensor=pack_sensors(closed.sensors[here]),
                value=pack_floats(closed.values[here]),
                count=pack_sensors(closed.counts[here]),
            )
            if columns:
                batch.column.extend(columns)
            if events and slot == where:
                batch.events.extend(events)
            if lent.any():
                batch.helper, batch.helper_value = pack_sensors(closed.sensors[lent]), pack_floats(closed.values[lent])
                self.lent_values += int(lent.sum())
            now_s = self._clock.monotonic()
            if self.depth == 0:
                self._progress_s = now_s
            self.spool.put(slot, LogRecord(version=VERSION, batch=batch).SerializeToString(), now_s)
        self.last_step = closed.step
        self._drain()

    def poll(self, timeout_s: float = 0.0) -> None:
        """Send waiting records and take in acknowledgements; log a warning when none come.

        Raises:
            LogError: a record can never be delivered; the process must stop.
            ReplacedError: a newer process of this edge has taken over.
        """
        self._drain()
        self.producer.poll(timeout_s)
        if self._failure is not None:
            raise self._failure
        now_s = self._clock.monotonic()
        self.spool.tidy(now_s)
        if self.depth and min(now_s - self._progress_s, now_s - self._logged_s) > _SILENCE_S:
            self._logged_s = now_s
            self._logger.warning("the broker does not answer", waiting=self.depth, seconds=now_s - self._progress_s)

    def close(self, timeout_s: float) -> int:
        """Give waiting records some time to be sent; return how many stay in the spool for the next start."""
        self._drain()
        with contextlib.suppress(LogError):  # the producer has ended; what it did not deliver is kept below
            self.producer.flush(timeout_s)
        self.producer.close()
        lost = self.spool.keep(self._clock.monotonic())
        if lost:
            self._logger.error("what waited could not be kept on disk and is given up", records=lost)
        self.spool.close()
        return self.depth - lost

    def _drain(self) -> None:
        while self._sending < _MOST_SENT:
            item = self.spool.take()
            if item is None:
                return
            try:
                self.producer.send(TUPLES, item.slot, self._edge.encode(), item.value, partial(self._heard, item))
            except BufferError:
                self.spool.untake()
                return  # the record stays in the spool until `poll` has made room
            self._sending += 1

    def _heard(self, item: SpooledRecord, error: LogError | None, offset: int) -> None:
        del offset
        if error is not None:
            self._failure = error
            return
        self.spool.delivered(item)
        self._sending -= 1
        self.delivered += 1
        self._progress_s = self._clock.monotonic()
        if self.producer.appended_us:
            self.log_time = self.producer.appended_us, self._progress_s
