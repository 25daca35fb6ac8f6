"""What every client of Kafka has in common: the options that the design has measured, and how a client is made."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from tsunagi.runtime.kafka_errors import said
from tsunagi.runtime.settings import ConfigError, Kafka

# A broker that comes back is found within 0.2 s; the library's own limit of 10 s lets a detector see silence where
# there is none.
_COMMON: dict[str, Any] = {
    # While the broker is away every client tries again and again: at 20 ms those of a worker took 10 to 15 % of a core.
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 500,
    "socket.keepalive.enable": True,
    # A request on a connection that is half open is given up after this, instead of a minute.
    "socket.timeout.ms": 10_000,
    "log.connection.close": False,
}
GAPLESS = "enable.gapless.guarantee"
PROTOCOLS = {"plaintext": "plaintext", "tls": "ssl", "sasl_plaintext": "sasl_plaintext", "sasl_tls": "sasl_ssl"}
"""`[kafka] security` -> security.protocol of librdkafka and, in capitals, of Kafka's own clients."""

WAIT_LINE_S = 5.0
"""Whoever waits for the log says so each so many seconds."""

# A partition that was just made, or whose leader has just changed, answers so for a moment.
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
    """Lets a client's line through once in a while: one that cannot reach its broker writes a hundred a second."""

    def __init__(self) -> None:
        super().__init__()
        self._next_at = 0.0
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if GAPLESS in record.getMessage():
            return False  # "experimental": it has been for years, and without it an output might be missing
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


def client_options(settings: Kafka) -> dict[str, Any]:
    """Return the librdkafka options that every client shares.

    Raises:
        ConfigError: a file that they name cannot be read.
    """
    # A name that has an address of either family is asked for that of IPv4: most brokers listen there alone.
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
        ConfigError: the library does not take the options.
    """
    try:
        return kind(options, logger=client_logger)
    except (KafkaException, ValueError, TypeError) as error:
        told = said(error) if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"[kafka]: {told}") from None
