"""Connections to the processes of owners: the kernel ends them at once when such a process dies.

A heartbeat needs several intervals to be missed. The end of a TCP connection is told within a millisecond. It proves
nothing, since a proxy or the network may end a connection as well. So it is only a *hint*: a secondary that speculates
begins at once (`tsunagi.standby.speculation`), and who owns a slot is decided by heartbeats and the log as before.

The other end is the path `ALIVE` of the owner's health server (`tsunagi.runtime.health`). What comes first over the
connection is who is there, since an address may belong to another process by now.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tsunagi.runtime.health import ALIVE, identity
from tsunagi.runtime.messages import Heartbeat
from tsunagi.standby.replica import Replica
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.worker.hearing import Hearing

LOOK_S = 0.25
"""Seconds between two looks at which owners are to be watched."""
CONNECT_S = 2.0
"""Longest wait for a connection, and for its first line, in seconds."""
RETRY_S = 5.0
"""Seconds until a connection that could not be made, or that ended, is tried again."""
MOST_HEAD = 1024
"""Longest answer that a health server sends before it waits, in bytes."""


class Peer(NamedTuple):
    """A process of a node, and where its health server listens."""

    node: str
    incarnation: int
    host: str
    port: int

    @classmethod
    def of(cls, beat: Heartbeat) -> Peer:
        """Return the process that sent a heartbeat."""
        return cls(beat.node, beat.incarnation, beat.metrics_host, beat.metrics_port)


class Lifelines:
    """Keeps a connection to each process that owns a slot for which this worker stands by.

    Each has a thread, which waits.
    """

    def __init__(self) -> None:
        self._lines: dict[Peer, _Line] = {}
        self._ended: deque[Peer] = deque()
        self._look_at = 0.0

    def watch(self, replicas: Iterable[Replica], hearing: Hearing, now: float) -> None:
        """Tell the detectors which connections have ended, and follow the plan: connect to owners, leave the others."""
        while self._ended:
            process = self._ended.popleft()
            hearing.hint(process.node, process.incarnation, now)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        beats = [hearing.beat(item.owner) for item in replicas if item.stage is ReplicaStage.WATCH and item.owner]
        wanted = {Peer.of(beat) for beat in beats if beat is not None and beat.metrics_port and not beat.leaving}
        for process in self._lines.keys() - wanted:
            self._lines.pop(process).drop()
        for process in wanted - self._lines.keys():
            self._lines[process] = _Line(process, self._ended)

    def close(self) -> None:
        """Leave all connections."""
        for line in self._lines.values():
            line.drop()
        self._lines.clear()


class _Line:
    """One connection, which is made again after it has ended."""

    def __init__(self, process: Peer, ended: deque[Peer]) -> None:
        self._process = process
        self._ended = ended
        self._dropped = threading.Event()
        self._socket: socket.socket | None = None
        threading.Thread(target=self._run, name=f"lifeline {process.node}", daemon=True).start()

    def drop(self) -> None:
        """Leave it; its end is no hint any more."""
        self._dropped.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread

    def _run(self) -> None:
        while not self._dropped.is_set():
            with contextlib.suppress(OSError):
                self._hold()
            self._dropped.wait(RETRY_S)

    def _hold(self) -> None:
        """Connect and wait until the connection ends. That it cannot be made says nothing, and is no hint."""
        process = self._process
        with socket.create_connection((process.host, process.port), timeout=CONNECT_S) as line:
            self._socket = line
            if self._dropped.is_set():
                return  # `drop` came before there was a socket to shut down
            line.sendall(f"GET {ALIVE} HTTP/1.0\r\n\r\n".encode())
            if not _is_there(line, identity(process.node, process.incarnation)):
                return
            line.settimeout(None)
            with contextlib.suppress(OSError):
                while line.recv(MOST_HEAD):
                    pass
            if not self._dropped.is_set():
                self._ended.append(process)


def _is_there(line: socket.socket, name: str) -> bool:
    """Return whether the first line of the server's answer names the process."""
    found = b""
    while b"\n" not in (body := found.partition(b"\r\n\r\n")[2]):
        more = line.recv(MOST_HEAD)
        if not more or len(found) > MOST_HEAD:
            return False
        found += more
    return body == f"{name}\n".encode()
