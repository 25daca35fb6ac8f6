"""Serves a service's state over HTTP: ``/metrics`` for Prometheus, ``/healthz`` (it lives), ``/readyz`` (it works).

``/alive`` says which process this is, and keeps the connection until one of the two ends. So whoever holds it is told
by the kernel when this process dies (`tsunagi.worker.lifelines`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

Ready = Callable[[], tuple[bool, str]]
Page = Callable[[], tuple[str, bytes]]
"""Returns the answer of a further path: (content type, body)."""

ALIVE = "/alive"
"""The path whose answer does not end while the process lives."""
MOST_HELD = 256
"""The most connections that are kept for `ALIVE`; further ones are refused."""
_TEXT = "text/plain; charset=utf-8"
"""The content type of answers that are plain text."""


def identity(node: str, incarnation: int) -> str:
    """Return what `ALIVE` says first: which process is there."""
    return f"{node} {incarnation}"


class HealthError(ValueError):
    """The server cannot listen on the address that [metrics] of the configuration gives."""


class HealthServer:
    """Serves until it is closed, in threads of its own.

    Args:
        host: the address to listen on.
        port: the port to listen on; 0 takes any free one, which the property `port` then names.
        ready: called at each ``/readyz``; it returns (whether the service is ready, the reason). A reason is shown even
            if the service is ready.
        registry: the metrics that ``/metrics`` shows.
        pages: further paths that this service answers. They are called in the threads of the server.
        alive: what `ALIVE` says (`identity`); "" = this service does not have that path.

    Raises:
        HealthError: the address is in use, or is not one of this machine.
    """

    def __init__(
        self,
        host: str,
        port: int,
        ready: Ready,
        *,
        registry: CollectorRegistry = REGISTRY,
        pages: Mapping[str, Page] | None = None,
        alive: str = "",
    ) -> None:
        try:
            self._server = _Server((host, port), ready, registry, pages or {}, alive)
        except OSError as error:
            raise HealthError(
                f"[metrics] host = {host!r}, port = {port}: cannot listen there: {error.strerror}; "
                "choose another port, or 0 for any free one"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a scraper that hangs does not hold up the service's end

    def __init__(
        self,
        address: tuple[str, int],
        ready: Ready,
        registry: CollectorRegistry,
        pages: Mapping[str, Page],
        alive: str,
    ) -> None:
        self.ready = ready
        self.registry = registry
        self.pages = pages
        self.alive = alive
        self.held = threading.Semaphore(MOST_HELD)
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the signature is socketserver's
        structlog.get_logger().debug("health request failed", client=str(client_address), exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0  # seconds that a client may take to send its request

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == ALIVE and self.server.alive and self.server.held.acquire(blocking=False):
            try:
                self._hold()
            finally:
                self.server.held.release()
            return
        status, kind, body = self._answer(path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hold(self) -> None:
        """Say which process this is, and wait until the other end leaves."""
        self.send_response(200)
        self.send_header("Content-Type", _TEXT)
        self.end_headers()
        self.wfile.write(f"{self.server.alive}\n".encode())
        self.connection.settimeout(None)
        while self.rfile.read(1):
            pass

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry)
        if path == "/healthz":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            try:
                ready, reason = self.server.ready()
            except Exception as error:  # noqa: BLE001 - a service that cannot tell whether it is ready is not ready
                ready, reason = False, f"{type(error).__name__}: {error}"
            word = reason or ("ready" if ready else "not ready")
            return 200 if ready else 503, _TEXT, f"{word}\n".encode()
        if path == ALIVE and self.server.alive:
            return 503, _TEXT, f"{MOST_HELD} connections are kept already\n".encode()
        page = self.server.pages.get(path)
        if page is not None:
            return 200, *page()
        others = "".join(f", {name}" for name in (*self.server.pages, *([ALIVE] if self.server.alive else [])))
        return 404, _TEXT, f"not found; there are /metrics{others}, /healthz and /readyz\n".encode()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        """Log nothing: a scrape comes every few seconds."""
