"""Sends heartbeats from a thread of their own, so that a process lives for others while it works on a long record.

Each heartbeat says what the loop is doing: `fill` is called for each one, and writes what it sees at that moment. So
heartbeats show a stalled loop (`SlotBeat.busy_us`), and their absence shows a dead process. To which partitions they go
says `tsunagi.runtime.beat_routes`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from tsunagi.runtime.beat_routes import SUMMARY_ALONE, Routes
from tsunagi.runtime.log import HEARTBEATS, Log, Producer
from tsunagi.runtime.messages import VERSION, Heartbeat

Fill = Callable[[Heartbeat], None]

KEPT = 16
"""How many processes of one name are remembered, the last ones, so that a repeat of a former one's heartbeat is
recognised. The limit bounds the memory."""


class HeartbeatFilter:
    """Tells new heartbeats from repeats, by the numbers that each process gives to its own.

    Without this, somebody who appends the last heartbeat of a dead process again could speak for the living process of
    the same name.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[int, int]] = {}  # node -> incarnation -> sequence; the one heard last comes last

    def news(self, beat: Heartbeat) -> bool:
        """Take in a heartbeat, in log order; return whether it is newer than all before of its process."""
        known = self._last.setdefault(beat.node, {})
        last = known.pop(beat.incarnation, 0)
        known[beat.incarnation] = max(beat.sequence, last)
        if len(known) > KEPT:
            del known[next(iter(known))]
        return not 0 < beat.sequence <= last  # heartbeats of early releases have no number, which is 0


class ReplacedError(ValueError):
    """A newer process of the same name has taken over, so this one must end. The message names the newer process."""


class Namesake:
    """Finds out from heartbeats whether a newer process of the same name lives. If so, this process has to end.

    Args:
        node, role: the name and the role of this process.
        incarnation: the incarnation of this process.
        live: whether the heartbeats that come were sent just now. Otherwise they count only from the time on when this
            process hears its own heartbeats.
    """

    def __init__(self, node: str, role: str, incarnation: int, *, live: bool = False) -> None:
        self._name = (node, role)
        self._incarnation = incarnation
        self._live = live
        self._heard = HeartbeatFilter()
        self._newest = 0  # incarnation of the newest process heard

    def hear(self, beat: Heartbeat) -> str:
        """Take in a heartbeat of any node; return in words who the newer process is, or "" if there is none."""
        if (beat.node, beat.role) != self._name or not self._heard.news(beat):
            return ""
        self._live |= beat.incarnation == self._incarnation
        if not self._live or beat.leaving or beat.incarnation <= self._incarnation:
            return ""
        before, self._newest = self._newest, max(self._newest, beat.incarnation)
        if beat.incarnation != before:
            return ""  # the first heartbeat of that process may have been sent long ago, so the second one decides
        where = f"host {beat.metrics_host}, " if beat.metrics_host else ""
        return f"{where}pid {beat.pid}, incarnation {beat.incarnation}; this one has {self._incarnation}"


class Heartbeats:
    """Sends a heartbeat every `interval_s` seconds until it is closed.

    Args:
        routes: says which partitions get a heartbeat, and what of it.

    Attributes:
        node, role: the name and the role of this process.
        incarnation: when this process started, in nanoseconds since 1970. Every heartbeat carries it.
        leaving: whether this process leaves in good order. Set it before `close`, and the last heartbeat will say so.
        metrics_host, metrics_port: where Prometheus reaches the metrics of this process; the port is 0 before they are
            served.
    """

    def __init__(
        self,
        log: Log,
        node: str,
        role: str,
        interval_s: float,
        fill: Fill,
        *,
        incarnation: int | None = None,
        routes: Routes = SUMMARY_ALONE,
    ) -> None:
        self.node = node
        self.role = role
        self.incarnation = time.time_ns() if incarnation is None else incarnation
        self.leaving = False
        self.metrics_port = 0
        self.metrics_host = ""
        self._fill = fill
        self._interval_s = interval_s
        self._routes = routes
        self._producer: Producer = log.producer(durable=False)
        self._sequence = 0
        self._namesake = Namesake(node, role, self.incarnation)
        self._replaced = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._thread.start()

    def send(self, *, wait_s: float = 0.0) -> bool:
        """Send a heartbeat now.

        Args:
            wait_s: how long to wait until the broker has it, in seconds; 0 does not wait.

        Returns:
            Whether the broker has it after the wait; False if there was no wait.
        """
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
            # If the queue is full, the broker is away, and one more heartbeat would say nothing new.
            with contextlib.suppress(BufferError):
                for partition, value in self._routes.split(beat):
                    self._producer.send(HEARTBEATS, partition, self.node.encode(), value)
                queued = True
            self._producer.poll(0)
            return self._producer.flush(wait_s) == 0 and queued if wait_s > 0 else False

    def heard(self, beat: Heartbeat) -> None:
        """Take in a heartbeat of any node, in log order.

        Raises:
            ReplacedError: a newer process of this name lives.
        """
        if newer := self._namesake.hear(beat):
            self._replaced = True
            raise ReplacedError(
                f"{self.node}: another {self.role} of this name began later, and this one ends: {newer}"
            )

    def close(self, *, last_word: bool = True) -> None:
        """Stop. A last heartbeat is sent, which carries `leaving`, unless a newer process of this name lives.

        Args:
            last_word: whether a last heartbeat is sent. It is not if the process ends by an error.
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
