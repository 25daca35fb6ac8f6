"""Who takes what sinks send: a server that takes messages over HTTP, a registry of schemas, a subscriber of MQTT."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.integration.sinks import wait_until


class Taken(NamedTuple):
    """A message that a receiver has taken: the headers that matter, and its object."""

    key: str | None
    authorization: str | None
    message: dict[str, Any]


class Receiver:
    """Takes messages with answer 200, but for those whose column `what` is `bad`, which it refuses with 400.

    Attributes:
        taken: what it has answered with 200, in its order.
        asked: number of requests.
        busy: so many of the next requests are answered with 503.
        pause_after: after so many messages more, it answers 503 once; 0 = it does not.
    """

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.asked = self.busy = self.pause_after = 0
        self._port = 0
        self._server: _Server | None = None
        self.start()

    @property
    def url(self) -> str:
        """Where messages are posted to."""
        return f"http://127.0.0.1:{self._port}/rows"

    def start(self) -> None:
        """Listen, at the same port as before."""
        self._server = _Server(self._port, self)
        self._port = self._server.server_port

    def stop(self) -> None:
        """Listen no more: connections are refused."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        self.asked += 1
        if (method, path) != ("POST", "/rows") or headers["Content-Type"] != "application/json":
            return 404, {"error": "expected POST /rows with JSON"}
        if self.busy:
            self.busy -= 1
            return 503, {"error": "busy"}
        message = json.loads(body)
        if message["row"]["what"] == "bad":
            return 400, {"error": "no such alarm"}
        self.taken.append(Taken(headers["Idempotency-Key"], headers["Authorization"], message))
        if self.pause_after:
            self.pause_after -= 1
            self.busy = 0 if self.pause_after else 1
        return 200, {}


class Registry:
    """Knows the schemas that were registered with it; it answers 503 as long as `away` says.

    Attributes:
        subjects: the ids of the schemas of each subject.
        asked: number of requests.
    """

    def __init__(self) -> None:
        self.away = False
        self.asked = 0
        self.subjects: dict[str, list[int]] = {}
        self._schemas: list[str] = []
        self._server: _Server | None = _Server(0, self)
        self._port = self._server.server_port
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen again, at the same port."""
        self._server = _Server(self._port, self)

    def stop(self) -> None:
        """Listen no more: connections are refused."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        self.asked += 1
        if self.away:
            return 503, {"error_code": 50301, "message": "away"}
        kind, name, *_ = path.partition("?")[0].strip("/").split("/", 1)
        if method == "POST" and kind == "subjects":
            subject = name.partition("/")[0]
            schema = json.loads(body)["schema"]
            if schema not in self._schemas:
                self._schemas.append(schema)
            number = self._schemas.index(schema) + 1
            known = self.subjects.setdefault(subject, [])
            if number not in known:
                known.append(number)
            return 200, {"subject": subject, "id": number, "version": known.index(number) + 1, "schema": schema}
        number = int(name.rpartition("/")[2]) if name.startswith("ids/") else 0
        if 0 < number <= len(self._schemas):
            return 200, {"schema": self._schemas[number - 1]}
        return 404, {"error_code": 40403, "message": "Schema not found"}


class _Server(ThreadingHTTPServer):
    def __init__(self, port: int, owner: Receiver | Registry) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        assert isinstance(self.server, _Server)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, found = self.server.owner.answer(method, self.path, self.headers, body)
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: object) -> None:
        pass


class Subscriber:
    """Has all messages of a topic, in the order in which they came, whatever becomes of the broker.

    Args:
        user: (name, password), where the broker asks for them.
    """

    def __init__(self, port: int, topic: str, user: tuple[str, str] | None = None) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="subscriber", clean_session=False)
        self._client.on_message = lambda _client, _data, message: self.messages.append(
            (message.topic, json.loads(message.payload))
        )
        subscribed: list[object] = []
        self._client.on_subscribe = lambda *arguments: subscribed.append(arguments)
        self._client.reconnect_delay_set(1, 1)
        if user is not None:
            self._client.username_pw_set(*user)
        self._client.connect("127.0.0.1", port)
        self._client.subscribe(topic, 1)
        self._client.loop_start()
        wait_until(lambda: bool(subscribed), "the broker does not take the subscription")

    def names(self) -> set[str]:
        return {message["name"] for _, message in list(self.messages)}

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
