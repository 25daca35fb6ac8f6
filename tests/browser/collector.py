"""A collector of traces, for tests: takes what OpenTelemetry sends over HTTP, and keeps it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Keeps the spans that come.

    Attributes:
        address: where it takes them.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._spans: list[Span] = []

    def take(self, body: bytes) -> None:
        """Take in the body of a request."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self._spans += [span for one in request.resource_spans for part in one.scope_spans for span in part.spans]

    def traces(self) -> dict[bytes, list[Span]]:
        """Return the spans that have come, by trace."""
        found: defaultdict[bytes, list[Span]] = defaultdict(list)
        with self._lock:
            for span in self._spans:
                found[span.trace_id].append(span)
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port of this machine."""
    taken: list[Collector] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known = self.path == "/v1/traces"
            if known:
                taken[0].take(body)
            self.send_response(200 if known else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    taken.append(Collector(f"http://127.0.0.1:{server.server_port}"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield taken[0]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
