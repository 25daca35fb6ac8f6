"""Readings from a source of one's own (`tsunagi.edge.own_source.SourceReader`)."""

from __future__ import annotations

import itertools
import threading

import structlog

from tsunagi.edge.decode import TOO_LONG
from tsunagi.edge.inbox import Begun, CaughtUp, Inbox, Message
from tsunagi.edge.own_source import SourceMessage, SourceReader, make_reader, message_fault
from tsunagi.edge.source import LiveProgress, SourceError
from tsunagi.edge.trouble import Trouble
from tsunagi.runtime.settings import SourceSettings

MAX_BYTES = 65536
"""A message keeps this many bytes of its payload: a longer one cannot be used, and its dead letter needs no more."""
_READ_S = 0.2
"""Longest time for which one call waits for messages, in seconds: the thread looks for its stop after each call."""
_IDLE_S = 0.02
"""Pause after a call that returned no message, in seconds, so that a reader which does not wait costs little."""
_PAUSE_S = 0.5
"""Pause before the source is opened again after an error, in seconds."""


class OwnFeed:
    """A `tsunagi.edge.live.LiveFeed` that calls a reader of the user's.

    Args:
        source: names the reader and its options.

    Raises:
        SourceError: the reader cannot be imported or made from its options.
    """

    def __init__(self, source: SourceSettings, logger: structlog.stdlib.BoundLogger) -> None:
        self._use = source.use
        self._reader: SourceReader = make_reader(source.use, source.options)
        self.scheme = f"own/{source.use}"
        self.has_positions = self._reader.resumable
        self.may_repeat = False
        self.ended = False
        self._max_bytes = source.max_bytes
        self._trouble = Trouble(logger, f"source {source.use}")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._numbers = itertools.count()
        self._at: int | None = None  # the least position to read next
        self._new_from = 0  # position of the first message that no incarnation has read
        self._behind = False

    @property
    def trouble(self) -> str:
        """Why no messages come; empty while the source is open."""
        return self._trouble.text

    def start(self, inbox: Inbox, resume: LiveProgress | None) -> None:
        if resume is not None and 0 in resume.partitions:
            self._at, self._new_from = resume.partitions[0].oldest, resume.partitions[0].next
            self._behind = True
        self._thread = threading.Thread(target=inbox.guard, args=(self._run,), name="own-source", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    # ---- in the thread

    def _run(self, inbox: Inbox) -> None:
        if self._at is not None:
            inbox.put(Begun({0: max(self._at, self._new_from)}, frozenset({0})))
        while not self._stop.is_set() and not self.ended:
            try:
                self._reader.open(self._at)
                self._trouble.clear()
                self._follow(inbox)
            except OSError as error:
                self._trouble.note(f"{type(error).__name__}: {error}")
            except SourceError:
                raise
            except Exception as error:
                raise SourceError(f"[source] use = {self._use!r}: {type(error).__name__}: {error}") from error
            finally:
                self._reader.close()
            if not self.ended:
                self._stop.wait(_PAUSE_S)

    def _follow(self, inbox: Inbox) -> None:
        """Read until the source ends or the edge stops."""
        while not self._stop.is_set():
            found = self._reader.read(_READ_S)
            for item in found or ():
                inbox.put(self._message(item, inbox))
            if not found and self._behind:
                self._behind = False
                inbox.put(CaughtUp(0))
            if found is None:
                self.ended = True
                return
            if not found:
                self._stop.wait(_IDLE_S)

    def _message(self, item: SourceMessage, inbox: Inbox) -> Message:
        where = f"[source] use = {self._use!r}: read"
        if told := message_fault(item):
            raise SourceError(f"{where}: {told}")
        number = next(self._numbers)
        if self.has_positions:
            number = item.position
            if self._at is not None and number < self._at:
                raise SourceError(f"{where}: found position {number}, expected {self._at} or more: positions ascend")
            self._at = number + 1
        fault = None
        if len(item.payload) > self._max_bytes:
            fault = (TOO_LONG, f"found {len(item.payload)} bytes, expected {self._max_bytes} at most")
        return Message(
            item.payload[:MAX_BYTES],
            f"{self._use}, {'position' if self.has_positions else 'message'} {number}",
            inbox.now_us(),
            offset=number,
            again=number < self._new_from,
            fault=fault,
            topic=item.topic,
        )
