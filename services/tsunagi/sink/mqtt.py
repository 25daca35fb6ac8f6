"""A message for each row, until the MQTT broker has taken it."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Mapping, Sequence

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import Refusal, Sink, SinkAwayError, SinkError, sink_secret
from tsunagi.sink.messages import as_message, plain
from tsunagi.sink.rows import SinkBatch

CONNECT_S = 5.0
"""Longest wait for a connection, in seconds."""
TAKEN_S = 10.0
"""Longest wait until the broker has taken the next message, in seconds."""
_LOOK_S = 0.1
"""Seconds between two looks whether the connection that a message waits for is lost."""
_WILDCARDS = frozenset("+#")
"""Characters that no topic of a message may have."""
_SHOWN = 200
"""Most characters of a topic that are shown."""
_KEEPALIVE_S = 15
"""A connection that is silent for so many seconds is asked whether it lives."""


class MqttSink(Sink):
    """Publishes a JSON object for each row.

    Raises:
        SinkError: the settings cannot be used.
    """

    most_rows = 100

    def __init__(self, wanted: SinkSettings) -> None:
        self._wanted = wanted.mqtt
        self._name = wanted.name
        self._setting = f"[[sinks]] {wanted.name}: [sinks.mqtt]"
        self._where = f"MQTT broker {self._wanted.host}:{self._wanted.port}"
        self._taken: set[str] = set()  # names of rows of the present batch
        self._client: paho.Client | None = None
        self._answered = threading.Event()
        self._words = ""  # why there is no connection; "" = there is one
        self._secret()
        if not self._wanted.topic or not _WILDCARDS.isdisjoint(self._wanted.topic):
            raise SinkError(f"{self._setting} topic = {self._wanted.topic!r}: expected a topic without '+' and '#'")

    def open(self) -> None:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"tsunagi-sink-{self._name}-{time.time_ns():x}",
            protocol=paho.MQTTv311,
        )
        try:
            password = self._secret()
            if self._wanted.username:
                client.username_pw_set(self._wanted.username, password or None)
            if self._wanted.ca_file:
                client.tls_set_context(ssl.create_default_context(cafile=self._wanted.ca_file))
        except SinkError as error:  # the file may be about to be written anew
            raise SinkAwayError(str(error)) from None
        except OSError as error:
            raise SinkError(
                f"{self._setting} ca_file: {self._wanted.ca_file}: {error.strerror or error}; "
                "expected certificates (PEM)"
            ) from None
        client.enable_logger(logging.getLogger("tsunagi.mqtt"))
        client.connect_timeout = CONNECT_S
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        self._answered.clear()
        self._words = "does not answer"
        try:
            client.connect(self._wanted.host, self._wanted.port, keepalive=_KEEPALIVE_S)
        except OSError as error:
            raise SinkAwayError(f"{self._where}: {error.strerror or error}") from None
        client.loop_start()
        self._client = client
        self._answered.wait(CONNECT_S)
        if self._words:
            raise SinkAwayError(f"{self._where}: {self._words}")

    def close(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None

    def write(self, batch: SinkBatch) -> Sequence[Refusal]:
        client = self._client
        if client is None or self._words:
            raise SinkAwayError(f"{self._where}: {self._words or 'not open'}")
        refused = list[Refusal]()
        sent: list[tuple[str, paho.MQTTMessageInfo]] = []
        for number, part in enumerate(batch.parts):
            for place, row in enumerate(part.rows):
                name = part.schema.name_of(row)
                if name in self._taken:  # before the target was away
                    continue
                topic = self._topic({"query": part.schema.query} | part.schema.as_mapping(row))
                message = as_message(part.schema, row)
                try:
                    sent.append((name, client.publish(topic, message, self._wanted.qos, self._wanted.retain)))
                except ValueError as error:  # such as a topic that is too long
                    refused.append(Refusal(number, place, f"topic {topic[:_SHOWN]!r}: {error}"))
        try:
            for _, info in sent:
                self._await(info)
        except SinkAwayError:
            self._taken.update(name for name, info in sent if _is_taken(info))
            raise
        self._taken.clear()
        return refused

    def _await(self, info: paho.MQTTMessageInfo) -> None:
        deadline = time.monotonic() + TAKEN_S
        while not _is_taken(info):
            if self._words or time.monotonic() >= deadline:
                raise SinkAwayError(f"{self._where}: {self._words or f'took no message within {TAKEN_S:g} s'}")
            try:
                info.wait_for_publish(_LOOK_S)
            except (RuntimeError, ValueError) as error:  # it is not connected, or its queue is full
                raise SinkAwayError(f"{self._where}: {error}") from None

    def _topic(self, values: Mapping[str, object]) -> str:
        """Return the topic of a row. What separates levels, or is a wildcard, is not taken over from values."""
        words = {name: _level(plain(value)) for name, value in values.items()}
        try:
            return self._wanted.topic.format_map(words)
        except (LookupError, ValueError, AttributeError, TypeError) as error:
            raise SinkError(
                f"{self._setting} topic = {self._wanted.topic!r}: found {error}, expected {{query}} or one of the "
                f"columns {', '.join(values)}"
            ) from None

    def _secret(self) -> str:
        return sink_secret(self._wanted.password_file, f"{self._setting} password_file")

    # ---- called in the client's thread

    def _on_connect(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._words = f"refused: {reason}" if reason.is_failure else ""
        self._answered.set()

    def _on_disconnect(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._words = self._words or f"disconnected: {reason}"


def _is_taken(info: paho.MQTTMessageInfo) -> bool:
    try:
        return info.is_published()
    except (RuntimeError, ValueError):
        return False


def _level(value: object) -> str:
    """Return a value as a level of a topic: neither empty, nor with what means something in topics or ends a line."""
    text = "" if value is None else str(value)
    return "".join(letter if letter.isprintable() and letter not in "/+#$" else "_" for letter in text) or "_"
