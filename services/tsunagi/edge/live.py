"""A live source: readings as they arrive from outside, each with a time of its own, in almost any order.

A step closes once the edge's clock has passed the step's end by `disorder_s`, whether or not readings came. A reading
that comes after its step has closed cannot be used, and goes to the dead letters. While readings are known to wait, the
clock alone does not close a step. They wait in a queue that is not empty, in a thread that finds no room in it, or in a
Kafka topic that has not been read to its end after a restart. Steps wait for them for `max_behind_s` at most.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tsunagi.edge.decode import FOREIGN, ONLY_COUNTED, Decoder, Reading, ReadingFault
from tsunagi.edge.fields import FieldsDecoder
from tsunagi.edge.inbox import Begun, Inbox, Message
from tsunagi.edge.source import LiveProgress, Offsets, Origin, SourceRow, Unusable
from tsunagi.edge.window import LATE, Places
from tsunagi.runtime.marks import LogMark
from tsunagi.runtime.sensors import Sensor
from tsunagi.runtime.settings import MICROSECONDS, SourceSettings, StepsSettings

AHEAD = "ahead"
"""Reason of a dead letter: the reading's time lies too far ahead of the edge's clock."""
OVERFLOW = "overflow"
"""Reason of a count: messages were dropped because the queue was full."""
REPEATED = "repeated"
"""Reason of a count: the broker has delivered the same reading before."""

PAUSE_US = 5_000_000
"""Longest time, in microseconds, for which the edge's loop may be held up without having been away. What should have
been sent during a longer one is skipped, if `when_behind = "skip"`."""
SETTLE_US = 200_000
"""After the loop was held up, no step closes for this many microseconds, so that the source's thread can bring the
readings that had arrived meanwhile."""

_NEVER_US = -(1 << 62)
"""An event time earlier than any other, in microseconds. Sums with durations do not overflow an int64."""


Identity = tuple[Any, ...]
"""(stream, sensor, time, value, columns of a tuple): what a repeated delivery has in common with the first one."""


class LiveFeed(Protocol):
    """The thread that brings messages, and its connection.

    Attributes:
        scheme: "mqtt", "lines", "kafka/<topic>" or "own/<use>"; the names of its readings begin with it.
        has_positions: whether it can be read again from an offset of a partition.
        may_repeat: whether it may deliver a message again.
        trouble: why no messages come; empty while it is connected.
        ended: whether it will never bring a message again.
    """

    scheme: str
    has_positions: bool
    may_repeat: bool
    ended: bool

    @property
    def trouble(self) -> str: ...

    def start(self, inbox: Inbox, resume: LiveProgress | None) -> None:
        """Begin to put messages into the inbox, from where `resume` says."""

    def close(self) -> None:
        """Stop and release everything; the inbox has been closed before."""


@dataclass(frozen=True, slots=True)
class LiveRules:
    """The settings that decide which readings are taken and when a step closes; times in microseconds."""

    disorder_us: int
    max_ahead_us: int
    max_behind_us: int
    skip: bool
    keep_foreign: bool

    @classmethod
    def of(cls, source: SourceSettings) -> LiveRules:
        """Take the rules from the settings `[source]`."""
        return cls(
            disorder_us=round(source.disorder_s * MICROSECONDS),
            max_ahead_us=round(source.max_ahead_s * MICROSECONDS),
            max_behind_us=round(source.max_behind_s * MICROSECONDS),
            skip=source.when_behind == "skip",
            keep_foreign=source.foreign == "keep",
        )


class LiveSource:
    """A `tsunagi.edge.source.Source` that reads a feed.

    Args:
        now_us: what the edge's clock says at the start, in microseconds.
        resume: how far an earlier incarnation had read; None if there was none.
        until_us: end of the last step that an earlier incarnation published, in microseconds.
        run: number of this run, which becomes part of the names of readings whose source gives them none.

    Attributes: as in the protocol.
    """

    def __init__(
        self,
        feed: LiveFeed,
        inbox: Inbox,
        decoder: Decoder | FieldsDecoder,
        rules: LiveRules,
        steps: StepsSettings,
        own: tuple[Sensor, ...],
        now_us: int,
        *,
        resume: LiveProgress | None = None,
        until_us: int = _NEVER_US,
        run: int = 0,
    ) -> None:
        self.origin_us = 0
        self.refill: list[SourceRow] = []
        self.delay_us = rules.disorder_us
        self.skipped_rows = 0
        self.fault = ""
        self._feed, self._inbox, self._decoder, self._rules = feed, inbox, decoder, rules
        self._slide_us, self._window_us = steps.slide_us, steps.window_us
        self._know(own)
        self._run = run
        # Only a feed with positions can be read again from where the last incarnation was.
        self._going_on = resume is not None and bool(resume.partitions)
        self.observed_us = resume.observed_us if resume is not None and self._going_on else now_us
        self._known_from_us = now_us if resume is None else resume.observed_us
        self.send_after_us = now_us - rules.disorder_us
        if self._going_on and not rules.skip:
            self.send_after_us = min(until_us, self.send_after_us)
        self._complete_us = self.send_after_us
        self._moved_us = self._looked_us = now_us
        self._settling_until_us = now_us
        self._everything = False
        # Partitions that are not read to their end yet, each with its latest event time so far; None: not known yet.
        self._behind: dict[int, int] | None = None if self._going_on else {}
        # partition -> (offset, time) of readings that open windows may contain
        self._recent: dict[int, deque[tuple[int, int]]] = {}
        partitions = {} if resume is None else resume.partitions
        self._next: dict[int, int] = {key: at.next for key, at in partitions.items()}
        # of the record before each offset in `_next`
        self._digests = {key: at.mark.digest for key, at in partitions.items()}
        self._topic_id = next((at.mark.topic_id for at in partitions.values()), "")
        self._seen: set[Identity] = set()  # readings of open windows, to know repeated deliveries
        self._seen_in_order: deque[Identity] = deque()
        self._last_us = _NEVER_US
        self._dropped = 0
        self._unusable: list[Unusable] = []
        feed.start(inbox, resume)

    def _know(self, own: tuple[Sensor, ...]) -> None:
        self._own = own
        self._held_us = [0 if np.isnan(sensor.max_age_s) else round(sensor.max_age_s * MICROSECONDS) for sensor in own]
        self._places: list[Places] = [np.array([place]) for place in range(len(own))]

    def change(self, decoder: Decoder | FieldsDecoder, own: tuple[Sensor, ...]) -> None:
        """Go on with other sensors; the connection, the queue and the offsets stay as they are."""
        self._decoder = decoder
        self._know(own)

    @property
    def finished(self) -> bool:
        """Whether the feed has ended and each step that contains its last reading may be closed."""
        if not self._feed.ended or not self._everything or len(self._inbox):
            return False
        return self._complete_us >= -(-self._last_us // self._slide_us) * self._slide_us

    @property
    def trouble(self) -> str:
        return self._feed.trouble

    @property
    def waiting(self) -> int:
        return len(self._inbox)

    def due(self, now_us: int, max_rows: int) -> list[SourceRow]:
        self._note_pause(now_us)
        items, self._everything = self._inbox.take(max_rows)
        rows: list[SourceRow] = []
        for item in items:
            if isinstance(item, Message):
                self._consider(item, now_us, rows)
            elif isinstance(item, Begun):
                self._topic_id, self.fault = item.topic_id, item.fault or self.fault
                for partition, start in item.starts.items():
                    if start != self._next.get(partition):
                        self._digests.pop(partition, None)
                    if start < self._next.get(partition, 0):  # the topic was made anew
                        self._recent.pop(partition, None)
                    self._next[partition] = start
                if self._behind is None:
                    self._behind = dict.fromkeys(item.behind, _NEVER_US)
            elif self._behind is not None:
                self._behind.pop(item.partition, None)
        if self._inbox.dropped > self._dropped:
            count, self._dropped = self._inbox.dropped - self._dropped, self._inbox.dropped
            detail = "the queue was full, and MQTT of quality of service 0 cannot be told to wait"
            self._unusable.append(Unusable(OVERFLOW, "", 0, detail, b"", count=count, letter=False))
        self._move_on(now_us)
        return rows

    def complete_until_us(self, now_us: int) -> int:
        return self._complete_us

    def next_us(self) -> int | None:
        return None

    def unusable(self) -> list[Unusable]:
        found, self._unusable = self._unusable, []
        return found

    def progress(self, after_us: int) -> LiveProgress:
        partitions = {}
        for partition, following in self._next.items():
            recent = self._recent.get(partition, deque())
            while recent and recent[0][1] <= after_us:
                recent.popleft()
            mark = LogMark(self._topic_id, self._digests.get(partition, 0))
            partitions[partition] = Offsets(following, recent[0][0] if recent else following, mark)
        while self._seen_in_order and self._seen_in_order[0][2] <= after_us:
            self._seen.discard(self._seen_in_order.popleft())
        return LiveProgress(partitions, self.observed_us)

    def close(self) -> None:
        self._inbox.close()
        self._feed.close()

    # ---- time

    def _note_pause(self, now_us: int) -> None:
        pause_us, self._looked_us = now_us - self._looked_us, now_us
        if pause_us > max(self._rules.disorder_us, SETTLE_US):
            self._settling_until_us = now_us + SETTLE_US
        if pause_us > PAUSE_US and self._rules.skip:
            self.send_after_us = max(self.send_after_us, now_us - self._rules.disorder_us)

    def _move_on(self, now_us: int) -> None:
        """Decide up to which event time every reading has been handed out."""
        by_clock_us = now_us - self._rules.disorder_us
        if self._behind:
            known_us = min(by_clock_us, min(self._behind.values()) - self._rules.disorder_us)
        elif self._behind is None or not self._everything or now_us < self._settling_until_us:
            known_us = self._complete_us
        else:
            known_us = by_clock_us
        if known_us <= self._complete_us and now_us - self._moved_us > self._rules.max_behind_us:
            known_us = by_clock_us
            if self._behind is None:
                self._behind = {}
        if known_us > self._complete_us:
            self._complete_us, self._moved_us = known_us, now_us

    # ---- readings

    def _consider(self, message: Message, now_us: int, rows: list[SourceRow]) -> None:
        if self._feed.has_positions and message.offset + 1 >= self._next.get(message.partition, 0):
            self._next[message.partition] = message.offset + 1
            self._digests[message.partition] = message.digest
        for number, found in enumerate(self._decoder.readings(message)):
            self._take(message, number, found, now_us, rows)

    def _take(
        self, message: Message, number: int, found: Reading | ReadingFault, now_us: int, rows: list[SourceRow]
    ) -> None:
        """Take a reading of a message.

        Args:
            number: its number in the message, from 0.
        """
        if isinstance(found, ReadingFault):
            if not message.again:
                foreign = found.reason in FOREIGN and not self._rules.keep_foreign
                letter = not foreign and found.reason not in ONLY_COUNTED
                self._unusable.append(self._reject(message, number, found, letter=letter))
            return
        if self._behind is not None and message.partition in self._behind:
            self._behind[message.partition] = max(self._behind[message.partition], found.time_us)
        fault = self._untimely(found, message, now_us)
        if fault is not None:
            if fault.reason and not message.again:
                self._unusable.append(self._reject(message, number, fault, letter=fault.reason != REPEATED))
            return
        if self._feed.may_repeat and not found.arrival:
            key = self._identity(found)
            if key not in self._seen:
                self._seen.add(key)
                self._seen_in_order.append(key)
        if self._feed.has_positions:
            self._recent.setdefault(message.partition, deque()).append((message.offset, found.time_us))
        self._last_us = max(self._last_us, found.time_us)
        rows.append(
            SourceRow(
                message.offset,
                found.time_us,
                self._places[found.place],
                np.array([found.value]),
                self._origin(message, number),
                message.again,
                found.cells,
                found.stream,
            )
        )

    def _untimely(self, reading: Reading, message: Message, now_us: int) -> ReadingFault | None:
        """Return why a reading's time does not fit; an empty reason means that it is skipped as too old."""
        name = reading.stream or self._own[reading.place].name
        ahead_us = reading.time_us - now_us
        if ahead_us > self._rules.max_ahead_us:
            return ReadingFault(AHEAD, name, f"its time is {_seconds(ahead_us)} s ahead of the edge's clock")
        if message.repeated and self._identity(reading) in self._seen:
            return ReadingFault(REPEATED, name, "delivered again by the broker")
        held_us = 0 if reading.stream else self._held_us[reading.place]
        if reading.time_us > self._begin_us() or now_us - reading.time_us < held_us:
            return None
        if reading.time_us > self._known_from_us:
            self.skipped_rows += not message.again
            return ReadingFault("", name, "")
        detail = f"its time is {_seconds(-ahead_us)} s behind the edge's clock, before the first window"
        return ReadingFault(LATE, name, detail)

    def _begin_us(self) -> int:
        """Return the event time at which the window of the first step that is to be sent begins."""
        first = self.send_after_us // self._slide_us + 1
        return min(first * self._slide_us - self._window_us, self.send_after_us)

    def _reject(self, message: Message, number: int, fault: ReadingFault, *, letter: bool) -> Unusable:
        return Unusable(
            fault.reason,
            fault.sensor,
            message.offset,
            fault.detail,
            message.payload,
            self._origin(message, number),
            letter=letter,
        )

    def _origin(self, message: Message, number: int) -> Origin:
        scheme = self._feed.scheme
        middle = message.partition if self._feed.has_positions else self._run
        name = f"{scheme}/{middle}/{message.offset}" + (f"/{number}" if number else "")
        return Origin(name, message.place, message.partition, message.offset, message.payload)

    def _identity(self, reading: Reading) -> Identity:
        cells = () if reading.cells is None else tuple(reading.cells.values())
        sensor = None if reading.stream else self._own[reading.place].id  # the columns of an event name its sensor
        return reading.stream, sensor, reading.time_us, reading.value, *cells


def _seconds(us: int) -> str:
    return f"{us / MICROSECONDS:.3f}"
