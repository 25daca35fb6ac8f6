"""Readings from an MQTT broker, over a persistent session that reconnects by itself.

With quality of service 1 or 2 the broker keeps what is published while the edge is away. When the inbox is full, the
client's thread waits: it reads nothing more from its socket and acknowledges nothing, so the broker keeps the rest.
With quality of service 0 the broker cannot be made to wait; a message that finds no room is dropped and counted.
"""

from __future__ import annotations

import itertools
import logging
import ssl

import paho.mqtt.client as paho
import structlog
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tsunagi.edge.decode import TOO_LONG
from tsunagi.edge.inbox import Inbox, Message
from tsunagi.edge.source import LiveProgress, SourceError
from tsunagi.edge.topic_pattern import TopicPattern
from tsunagi.edge.trouble import Trouble
from tsunagi.runtime.secret_file import read_secret
from tsunagi.runtime.settings import MqttSettings, SourceSettings

MAX_BYTES = 65536
"""A message keeps this many bytes of its payload: a longer one cannot be used, and its dead letter needs no more."""
_KEEPALIVE_S = 15
"""A connection that is silent for so many seconds is asked whether it lives."""
_CONNECT_S = 5.0
"""Longest time for one attempt to connect, in seconds."""
_FIRST_PAUSE_S = 0.2
"""Pause before the first attempt to connect again, in seconds. Later pauses grow up to `[source.mqtt] reconnect_s`."""


class MqttFeed:
    """A `tsunagi.edge.live.LiveFeed` that reads from an MQTT broker.

    Args:
        keeps_session: whether the broker keeps for later what is published while nobody listens.

    Raises:
        SourceError: the topic pattern is malformed, or a file that the settings name cannot be used.
    """

    def __init__(
        self, source: SourceSettings, edge: str, logger: structlog.stdlib.BoundLogger, *, keeps_session: bool = True
    ) -> None:
        settings = source.mqtt
        self.scheme = "mqtt"
        self.has_positions = False
        self.may_repeat = settings.qos > 0
        self.ended = False
        self._settings = settings
        self._max_bytes = source.max_bytes
        self._pattern = TopicPattern(settings.topic, edge)
        self._logger = logger
        self._trouble = Trouble(logger, f"MQTT broker {settings.host}:{settings.port}")
        self._numbers = itertools.count()
        self._inbox: Inbox | None = None
        self._subscribed = False
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=settings.client_id or f"tsunagi-{edge}",
            clean_session=not keeps_session,
            protocol=paho.MQTTv311,
        )
        self._client.connect_timeout = _CONNECT_S
        self._client.reconnect_delay_set(min_delay=_FIRST_PAUSE_S, max_delay=settings.reconnect_s)  # type: ignore[arg-type]  # takes fractions as well
        self._set_secrets(settings)
        self._client.enable_logger(logging.getLogger("tsunagi.mqtt"))
        self._client.suppress_exceptions = True  # they are logged; raised, they would end the thread unnoticed
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    @property
    def trouble(self) -> str:
        """Why no messages come; empty while the edge is subscribed."""
        return self._trouble.text

    def start(self, inbox: Inbox, resume: LiveProgress | None) -> None:
        self._inbox = inbox
        self._client.connect_async(self._settings.host, self._settings.port, keepalive=_KEEPALIVE_S)
        self._client.loop_start()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message once; if there is no connection, it is lost."""
        if self._client.is_connected():
            self._logger.info("published", topic=topic, bytes=len(payload))
            self._client.publish(topic, payload, qos=0)

    def close(self) -> None:
        # A clean end keeps the session: the broker keeps for the next incarnation what is published until then.
        self._client.disconnect()
        self._client.loop_stop()

    def _set_secrets(self, settings: MqttSettings) -> None:
        password = read_secret(settings.password_file, "[source.mqtt] password_file", SourceError)
        if settings.username:
            self._client.username_pw_set(settings.username, password or None)
        elif password:
            raise SourceError("[source.mqtt] username: empty, expected the user whose password password_file is")
        if not settings.ca_file:
            return
        try:
            self._client.tls_set_context(ssl.create_default_context(cafile=settings.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise SourceError(
                f"[source.mqtt] ca_file: {settings.ca_file}: {error.strerror or error}; expected certificates (PEM)"
            ) from None

    # ---- called in the client's thread

    def _on_connect(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            self._trouble.note(f"refused: {reason}")
            return
        if flags.session_present and self._subscribed:
            self._trouble.clear()
            return  # subscribing again would bring every retained reading again
        result, _ = client.subscribe(self._pattern.subscription, self._settings.qos)
        if result != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._trouble.note(f"cannot subscribe to {self._pattern.subscription!r}: {paho.error_string(result)}")

    def _on_subscribe(
        self,
        client: paho.Client,
        userdata: object,
        number: int,
        reasons: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        refused = [reason for reason in reasons if reason.is_failure]
        if refused:
            self._trouble.note(f"refused to subscribe to {self._pattern.subscription!r}: {refused[0]}")
            return
        self._subscribed = True
        self._trouble.clear()

    def _on_connect_fail(self, client: paho.Client, userdata: object) -> None:
        self._trouble.note("cannot connect")

    def _on_disconnect(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._trouble.note(f"disconnected: {reason}")

    def _on_message(self, client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        fault = None
        if len(message.payload) > self._max_bytes:
            fault = (TOO_LONG, f"found {len(message.payload)} bytes, expected {self._max_bytes} at most")
        topic, sensor = "(not UTF-8)", None
        try:
            topic = message.topic
            sensor = self._pattern.sensor(topic)
        except UnicodeDecodeError:
            pass  # the message names no sensor then
        item = Message(
            payload=bytes(message.payload[:MAX_BYTES]),
            place=f"topic {topic[:200]!r}",
            arrived_us=inbox.now_us(),
            sensor=sensor,
            offset=next(self._numbers),
            stored=message.retain,
            repeated=message.dup or message.retain,
            fault=fault,
            topic=topic,
        )
        if message.qos == 0:
            inbox.offer(item)
        else:
            inbox.put(item)
