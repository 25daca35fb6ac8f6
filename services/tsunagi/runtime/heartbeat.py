"""Heartbeats, sent by a thread of their own so that a long record does not silence a live process.

What the loop is doing stands in the heartbeat itself: `fill` is called for each one and writes what it sees at that
moment. A stalled loop is therefore visible in the heartbeats (`SlotBeat.busy_us`), a dead process by their absence.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from tsunagi.runtime.log import HEARTBEATS, Log, Producer
from tsunagi.runtime.messages import VERSION, Heartbeat

Fill = Callable[[Heartbeat], None]

KEPT = 16
"""Processes of one name that are remembered, so that nothing of a former one is heard twice."""


class Heard:
    """Tells a heartbeat from a repeat of one: each process numbers its own.

    Without it whoever appends a dead process's last word again could speak for the living one of the same name.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[int, int]] = {}  # node -> incarnation -> sequence; heard last stands last

    def news(self, beat: Heartbeat) -> bool:
        """Take in a heartbeat in log order; return whether its process has said nothing newer before."""
        known = self._last.setdefault(beat.node, {})
        last = known.pop(beat.incarnation, 0)
        known[beat.incarnation] = max(beat.sequence, last)
        if len(known) > KEPT:
            del known[next(iter(known))]
        return not 0 < beat.sequence <= last  # without a number: of a release before there were any


class ReplacedError(ValueError):
    """A newer process of the same name has taken over: it goes on, and this one must end. The message names it."""


class Namesake:
    """Tells from heartbeats that a newer process of the same name lives: that one goes on, this one is to end.

    Args:
        live: whether what is heard was said just now; else it counts only once this process's own heartbeats come back.
    """

    def __init__(self, node: str, role: str, incarnation: int, *, live: bool = False) -> None:
        self._name = (node, role)
        self._incarnation = incarnation
        self._live = live
        self._heard = Heard()
        self._newest = 0  # incarnation of the newest process heard

    def hear(self, beat: Heartbeat) -> str:
        """Take in any heartbeat; return who the newer process is, "" = there is none."""
        if (beat.node, beat.role) != self._name or not self._heard.news(beat):
            return ""
        self._live |= beat.incarnation == self._incarnation
        if not self._live or beat.leaving or beat.incarnation <= self._incarnation:
            return ""
        before, self._newest = self._newest, max(self._newest, beat.incarnation)
        if beat.incarnation != before:
            return ""  # the first word of it, which may have been said long ago
        where = f"host {beat.metrics_host}, " if beat.metrics_host else ""
        return f"{where}pid {beat.pid}, incarnation {beat.incarnation}; this one has {self._incarnation}"


class Heartbeats:
    """Sends a heartbeat every `interval_s` until closed.

    Attributes:
        incarnation: nanoseconds of this process's start; stands in every heartbeat.
        leaving: set it before closing in good order; the last heartbeat then says so.
        metrics_host, metrics_port: where the process's metrics can be scraped, once it serves them.
    """

    def __init__(
        self, log: Log, node: str, role: str, interval_s: float, fill: Fill, *, incarnation: int | None = None
    ) -> None:
        self.node = node
        self.role = role
        self.incarnation = time.time_ns() if incarnation is None else incarnation
        self.leaving = False
        self.metrics_port = 0
        self.metrics_host = ""
        self._fill = fill
        self._interval_s = interval_s
        self._producer: Producer = log.producer(durable=False)
        self._sequence = 0
        self._namesake = Namesake(node, role, self.incarnation)
        self._replaced = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def send(self, *, wait_s: float = 0.0) -> bool:
        """Send one now, and wait for the broker to have it for `wait_s` at most; return whether it does by then."""
        with self._lock:
            self._sequence += 1
            beat = Heartbeat(
                version=VERSION,
                node=self.node,
                role=self.role,
                incarnation=self.incarnation,
                sequence=self._sequence,
                sent_us=time.time_ns() // 1000,
                leaving=self.leaving,
                metrics_port=self.metrics_port,
                metrics_host=self.metrics_host,
                pid=os.getpid(),
            )
            self._fill(beat)
            queued = False
            # A full queue: the broker is away, and one more heartbeat would say nothing new.
            with contextlib.suppress(BufferError):
                self._producer.send(HEARTBEATS, 0, self.node.encode(), beat.SerializeToString())
                queued = True
            self._producer.poll(0)
            return self._producer.flush(wait_s) == 0 and queued if wait_s > 0 else False

    def heard(self, beat: Heartbeat) -> None:
        """Take in what anybody said, in log order.

        Raises:
            ReplacedError: a newer process of this name lives.
        """
        if newer := self._namesake.hear(beat):
            self._replaced = True
            raise ReplacedError(
                f"{self.node}: another {self.role} of this name began later, and this one ends: {newer}"
            )

    def close(self, *, last_word: bool = True) -> None:
        """Stop; the last heartbeat carries `leaving`. Where another speaks under this name, nothing more is said.

        Args:
            last_word: False: nothing more is said either, as when the process is killed.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        if last_word and not self._replaced:
            self.send(wait_s=1.0)
        self._producer.close()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.send()
