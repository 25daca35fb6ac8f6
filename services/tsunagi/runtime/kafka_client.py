"""Makes clients of Kafka, with the options that all of them share."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from tsunagi.runtime.kafka_errors import said
from tsunagi.runtime.settings import ConfigError, KafkaSettings

# With these options a client soon finds a broker that has come back. By the library's own limit of 10 s it would be
# silent for longer, so that others could take a living node for dead.
_COMMON: dict[str, Any] = {
    # While the broker is away, every client tries to connect again and again. With 20 ms, the clients of a worker took
    # 10 to 15 % of a core.
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 500,
    "socket.keepalive.enable": True,
    # A request on a half-open connection is given up after this time, instead of a minute.
    "socket.timeout.ms": 10_000,
    "log.connection.close": False,
}
GAPLESS = "enable.gapless.guarantee"
"""The option by which a durable producer ends at a record that the log refuses, so that no later record is written
(architecture, "Names of outputs")."""
PROTOCOLS = {"plaintext": "plaintext", "tls": "ssl", "sasl_plaintext": "sasl_plaintext", "sasl_tls": "sasl_ssl"}
"""The security.protocol of librdkafka for each value of `[kafka] security`. Kafka's own clients take the same names in
capitals."""

WAIT_LINE_S = 5.0
"""Time between two lines of a process that waits for the log, in seconds."""

# For a moment these are the answers about a partition that is new, or whose leader has just changed.
ELECTING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - its public constant
    }
)

Client = TypeVar("Client")


class _Sparing(logging.Filter):
    """Lets a line of the clients through every `WAIT_LINE_S`: without a broker, a client writes a hundred a second."""

    def __init__(self) -> None:
        super().__init__()
        self._next_at = 0.0
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if GAPLESS in record.getMessage():
            return False  # it warns that the option is experimental, but without the option outputs could be missing
        now = time.monotonic()
        if now < self._next_at:
            self._dropped += 1
            return False
        self._next_at = now + WAIT_LINE_S
        if self._dropped:
            record.msg = f"{record.msg} (and {self._dropped} more lines of the clients before)"
            self._dropped = 0
        return True


client_logger = logging.getLogger("tsunagi.kafka")
client_logger.addFilter(_Sparing())


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the librdkafka options that all clients share.

    Raises:
        ConfigError: a file that the settings name cannot be read.
    """
    # Host names are resolved to IPv4 addresses, because most brokers listen only on those.
    family = "any" if "[" in settings.servers else "v4"
    options: dict[str, Any] = {"bootstrap.servers": settings.servers, "broker.address.family": family, **_COMMON}
    if settings.security != "plaintext":
        options["security.protocol"] = PROTOCOLS[settings.security]
    if settings.security.startswith("sasl"):
        options["sasl.mechanism"] = settings.mechanism
    if settings.ca_file:
        if not os.access(settings.ca_file, os.R_OK):
            raise ConfigError(f"{settings.ca_file} ([kafka] ca_file): no such file, or not readable")
        options["ssl.ca.location"] = settings.ca_file
    if settings.username:
        options |= {"sasl.username": settings.username, "sasl.password": settings.read_password()}
    return options


def make_client(kind: Callable[..., Client], options: dict[str, Any]) -> Client:
    """Make a client of the library.

    Raises:
        ConfigError: the library refuses the options.
    """
    try:
        return kind(options, logger=client_logger)
    except (KafkaException, ValueError, TypeError) as error:
        told = said(error) if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"[kafka]: {told}") from None
