"""Readings as JSON lines: from standard input, or from TCP clients that connect to the edge.

While the inbox is full, the one thread that reads takes nothing more from any pipe or socket, so the senders wait.
"""

from __future__ import annotations

import itertools
import os
import selectors
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

import structlog

from tsunagi.edge.decode import TOO_LONG
from tsunagi.edge.inbox import Inbox, Message
from tsunagi.edge.source import LiveProgress, SourceError
from tsunagi.edge.trouble import Trouble
from tsunagi.runtime.settings import SourceSettings

MAX_BYTES = 65536
"""A line keeps this many bytes: a longer one cannot be used, and its dead letter needs no more."""
_READ_BYTES = 65536
"""Most bytes that are read from a pipe or a socket at once."""
_POLL_S = 0.2
"""Longest wait for input, in seconds: the thread looks for its stop after each wait."""
_KEEPALIVE_S = 60
"""After this many silent seconds the kernel asks whether a client still exists."""


class LineBuffer:
    """Cuts a stream of bytes into lines; of a line that is too long it keeps only the beginning."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._skipped = 0  # bytes of the present line that are not kept

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield (line, length in bytes) for each line that `data` ends; blank lines are left out."""
        *ended, last = data.split(b"\n")
        for part in ended:
            self._add(part)
            yield from self.end()
        self._add(last)

    def end(self) -> Iterator[tuple[bytes, int]]:
        """Yield the line that has been begun, as if it were ended; the stream is over."""
        line, length = self._rest.rstrip(b"\r"), len(self._rest) + self._skipped
        self._rest, self._skipped = b"", 0
        if line.strip():
            yield line, length

    def _add(self, part: bytes) -> None:
        room = max(0, min(self._max_bytes + 1, MAX_BYTES) - len(self._rest))
        self._rest += part[:room]
        self._skipped += max(0, len(part) - room)


class _Lines(ABC):
    """What both kinds of line sources share: a thread that makes messages of lines, and its end."""

    def __init__(self, source: SourceSettings, trouble: Trouble) -> None:
        self.scheme = "lines"
        self.has_positions = False
        self.may_repeat = False
        self.ended = False
        self._max_bytes = source.max_bytes
        self._trouble = trouble
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def trouble(self) -> str:
        """Why no lines come; empty while the source can bring some."""
        return self._trouble.text

    def start(self, inbox: Inbox, resume: LiveProgress | None) -> None:
        self._thread = threading.Thread(target=inbox.guard, args=(self._run,), name="lines", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    @abstractmethod
    def _run(self, inbox: Inbox) -> None:
        """Put lines into the inbox until the source ends or the edge stops."""

    def _put(self, inbox: Inbox, lines: Iterator[tuple[bytes, int]], place: str) -> None:
        for line, length in lines:
            fault = None
            if length > self._max_bytes:
                fault = (TOO_LONG, f"found a line of {length} bytes, expected {self._max_bytes} at most")
            inbox.put(Message(line, place, inbox.now_us(), offset=next(self._numbers), fault=fault))


class StandardInput(_Lines):
    """A `tsunagi.edge.live.LiveFeed` on standard input, or on another file descriptor; it ends with the file."""

    def __init__(
        self, source: SourceSettings, logger: structlog.stdlib.BoundLogger, descriptor: int | None = None
    ) -> None:
        super().__init__(source, Trouble(logger, "standard input"))
        self._trouble.clear()
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor

    def _run(self, inbox: Inbox) -> None:
        buffer = LineBuffer(self._max_bytes)
        poll = selectors.PollSelector()  # epoll does not accept regular files; poll does
        poll.register(self._descriptor, selectors.EVENT_READ)
        try:
            while not self._stop.is_set():
                if not poll.select(_POLL_S):
                    continue
                data = os.read(self._descriptor, _READ_BYTES)
                if not data:
                    self._put(inbox, buffer.end(), "standard input")
                    break
                self._put(inbox, buffer.feed(data), "standard input")
        except OSError as error:
            self._trouble.note(f"cannot be read: {error.strerror}")
        finally:
            poll.close()
            self.ended = True


class Listener(_Lines):
    """A `tsunagi.edge.live.LiveFeed` on a TCP port that many clients may connect to.

    Raises:
        SourceError: the address is malformed, or the edge cannot listen on it.
    """

    def __init__(self, source: SourceSettings, logger: structlog.stdlib.BoundLogger) -> None:
        super().__init__(source, Trouble(logger, f"TCP {source.lines.listen}"))
        self._logger = logger
        self._max_clients = source.lines.max_clients
        self._server = _listen(source.lines.listen)
        self.port = int(self._server.getsockname()[1])
        self._clients: dict[socket.socket, LineBuffer] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._accepting = True
        self._trouble.clear()
        logger.info("listening for lines", address=source.lines.listen, port=self.port)

    def close(self) -> None:
        super().close()
        self._selector.close()
        for client in (*self._clients, self._server):
            client.close()

    def _run(self, inbox: Inbox) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(_POLL_S):
                if key.fileobj is self._server:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(inbox, key.fileobj)

    def _accept(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:
            return  # the client has gone again
        client.settimeout(0.0)
        # A machine that vanished without closing its connection must not count as a client for ever.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        self._clients[client] = LineBuffer(self._max_bytes)
        self._selector.register(client, selectors.EVENT_READ)
        if len(self._clients) >= self._max_clients:
            self._selector.unregister(self._server)
            self._accepting = False
            self._logger.warning("no more clients are accepted", clients=len(self._clients))

    def _read(self, inbox: Inbox, client: socket.socket) -> None:
        buffer = self._clients[client]
        try:
            data = client.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""  # the client reset the connection, which counts as its end
        place = _name(client)
        if data:
            self._put(inbox, buffer.feed(data), place)
            return
        self._put(inbox, buffer.end(), place)
        self._selector.unregister(client)
        del self._clients[client]
        client.close()
        if not self._accepting:
            self._selector.register(self._server, selectors.EVENT_READ)
            self._accepting = True


def _listen(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    where = "[source.lines] listen"
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SourceError(f"{where}: found {address!r}, expected host:port such as 127.0.0.1:7000")
    host = host.removeprefix("[").removesuffix("]")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise SourceError(f"{where}: {address}: cannot listen there: {error.strerror or error}") from None


def _name(client: socket.socket) -> str:
    try:
        host, port, *_ = client.getpeername()
    except OSError:
        return "a client that has gone"
    return f"client {host}:{port}"
