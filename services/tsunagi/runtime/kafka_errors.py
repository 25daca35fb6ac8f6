"""Adds to errors of Kafka's client library what the user can do about them. All clients share one table."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

FRESH_S = 30.0
"""An error of a client's connections explains a later failure only within this time, in seconds."""

_TOPICS = "`tsunagi topics` makes the topics of [kafka] prefix, `tsunagi up` does so by itself"
"""Advice if a topic does not exist."""
_RIGHTS = "`tsunagi topics --acls` gives every user its rights (docs/howto/security.md); is [kafka] username right?"
"""Advice if access control refuses a request."""
_WHO = "look at [kafka] username, password_file and mechanism"
"""Advice if the broker does not accept the user."""
_TLS = "look at [kafka] security and ca_file, and whether [kafka] servers names the broker's TLS port"
"""Advice if a TLS connection fails."""
_SILENT = (
    "does the broker listen there, in the form of [kafka] security (a TLS port says nothing to a plain client), and is "
    "the address that it advertises (advertised.listeners) reached from here?"
)
"""Advice if no broker answers."""

# librdkafka's own codes have an underscore; they are its public constants.
ADVICE: Mapping[int, str] = {
    KafkaError._TRANSPORT: _SILENT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN: _SILENT,  # noqa: SLF001
    KafkaError._TIMED_OUT: _SILENT,  # noqa: SLF001
    KafkaError.REQUEST_TIMED_OUT: "is the broker overloaded, or short of in-sync replicas?",
    KafkaError._RESOLVE: "is the host in [kafka] servers spelt right, and known to this machine's name service?",  # noqa: SLF001
    KafkaError._BAD_MSG: "what listens there is no Kafka broker, or it speaks TLS ([kafka] servers, security)",  # noqa: SLF001
    KafkaError._SSL: _TLS,  # noqa: SLF001
    KafkaError._AUTHENTICATION: _WHO,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED: _WHO,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _WHO,
    KafkaError.ILLEGAL_SASL_STATE: _WHO,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _TOPICS,
    KafkaError._UNKNOWN_TOPIC: _TOPICS,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION: _TOPICS,  # noqa: SLF001
    KafkaError.INVALID_REPLICATION_FACTOR: "[kafka] replication is more than the cluster has brokers",
    KafkaError.NOT_ENOUGH_REPLICAS: "brokers of the cluster are down; records are taken again when they are back",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "brokers of the cluster are down",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise [kafka] max_message_bytes, and max.message.bytes of the topic",
    KafkaError.POLICY_VIOLATION: "the cluster forbids topics of this form; ask who runs it",
    KafkaError.UNSUPPORTED_VERSION: "the broker is older than this client can use",
    KafkaError._UNSUPPORTED_FEATURE: "the broker is older than this client can use",  # noqa: SLF001
    KafkaError._INVALID_ARG: "look at [kafka] options: they are librdkafka's",  # noqa: SLF001
    KafkaError._CRIT_SYS_RESOURCE: "raise the limits of open files and processes (ulimit -n, ulimit -u)",  # noqa: SLF001
}

# Parts of an error's text that say more than its code, each with the advice.
_TELLING: tuple[tuple[str, str], ...] = (
    ("Too many open files", "raise the limit of open files (ulimit -n)"),
    (
        "Address family",
        'the broker has no IPv4 address: [kafka] options = { "broker.address.family" = "any" } lets clients use IPv6',
    ),
    ("certificate verify failed", "[kafka] ca_file does not have the authority that signed the broker's certificate"),
    ("SSL", _TLS),
    ("Connection refused", "nothing listens there: does the broker run, and is [kafka] servers its address?"),
)
_BROKER = re.compile(r"^\S+/(\d+): ")
"""Matches the beginning of an error of a connection to a broker whose number is known: the cluster itself has named its
address."""
_ADVERTISED = (
    "that is the address the broker advertises (advertised.listeners); it must be one that this machine reaches"
)
"""Advice if such a connection fails."""
_STATE = re.compile(r" \(after \d+ms in state [^)]*\)")
"""Matches the part of an error about the state of the connection, which tells users nothing."""


def said(error: KafkaError | KafkaException) -> str:
    """Return the error of the library, and what to do about it."""
    found = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(found, KafkaError):
        return str(error)
    text = _STATE.sub("", found.str())
    advice = next((told for part, told in _TELLING if part in text), ADVICE.get(found.code(), ""))
    if found.code() in {KafkaError._TRANSPORT, KafkaError._RESOLVE} and _BROKER.match(text):  # noqa: SLF001
        advice = _ADVERTISED
    return f"{text} ({found.name()})" + (f"; {advice}" if advice else "")


class ConnectionErrors:
    """Keeps the last error of a client's connections (``error_cb``): a failed request does not say why it failed."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._at = -FRESH_S

    def __call__(self, error: KafkaError) -> None:
        # The cause of _ALL_BROKERS_DOWN is the error before it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - its public constant
            self._error, self._at = error, time.monotonic()

    def said(self, error: KafkaException) -> str:
        """Return why a request failed, and what to do about it."""
        code = error.args[0].code() if error.args and isinstance(error.args[0], KafkaError) else 0
        unexplained = code in {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}  # noqa: SLF001
        if self._error is None or not unexplained or time.monotonic() - self._at > FRESH_S:
            return said(error)
        return said(self._error)
