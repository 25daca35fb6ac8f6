"""Keyed hashes: they prove who wrote a record (docs/howto/security.md).

The broker's access control decides who may append to a topic. But edges must append to `tuples`, which also has the
owners' control records and the batches of other edges. So each record of `tuples`, `heartbeats`, `plan`, `acks` and
`contexts` ends with an HMAC-SHA256, cut to 16 bytes, over its topic, partition, key and all bytes before the hash. The
hash is the last field of the message and is appended to its bytes, so that a check serialises nothing again.

There are two kinds of keys. Gateways, scaler, Spark and tools derive the key `control` from the master key. Each edge
has a key of its own, and holds no other. A key is derived as HMAC-SHA256(master, name).

Services do not notice this: `authenticated` wraps the log, its producers sign, and its readers set `Record.signer`.
Whoever parses a record asks `forgery` whether that signer may write it.
"""

from __future__ import annotations

import hmac
import itertools
import struct
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.keys import CONTROL, EDGE, Keys, derive, held_keys
from tsunagi.runtime.log import (
    ACKS,
    CONTEXTS,
    HEARTBEATS,
    PLAN,
    TUPLES,
    Delivered,
    Log,
    Position,
    Producer,
    Reader,
    Record,
    Traffic,
)
from tsunagi.runtime.messages import Ack, Context, Heartbeat, LogRecord, Plan
from tsunagi.runtime.settings import Settings

SIGNED = frozenset({TUPLES, HEARTBEATS, PLAN, ACKS, CONTEXTS})
"""Topics whose records carry a hash. For the others access control is enough: edges write only to `dead-letters`."""

MAC_BYTES = 16
"""Length of a hash, in bytes. Half of an HMAC-SHA256 cannot be guessed, and adds less to each record."""
MAX_NAME_BYTES = 256
"""Longest key of a record that is taken for the name of an edge, in bytes. No edge has so long a name."""

_MAC_TAG = b"\xa2\x06\x10"  # field 100, 16 bytes long (proto/tsunagi.proto)
_SUFFIX_BYTES = len(_MAC_TAG) + MAC_BYTES
"""Length of what signing appends to a record, in bytes."""
_SERIAL = struct.Struct("<BQ")
"""The serial number of a record, as a field of protobuf: its tag, then the number."""
_SERIAL_TAG = 0x71  # field 14, fixed64, of LogRecord and Plan
_NUMBER = struct.Struct("<I")
"""The form of numbers (a partition, the length of a key) among the bytes that a hash covers."""
_NO_KEY = 0xFFFFFFFF
"""Stands for the length of a key if the record has no key. No key is so long."""
_CONTROL_KEY = b"!"
"""The keys of control records in `tuples` begin with this, and those of batches do not."""


def authenticated(log: Log, settings: Settings, *, edge: str | None = None) -> Log:
    """Return the log as `[security]` demands: unchanged, or with producers that sign and readers that verify.

    Args:
        log: the log.
        settings: the settings of the process.
        edge: the name of the edge that asks. It holds only its own key, so its readers verify nothing. None for every
            other service.

    Raises:
        ConfigError: the key file cannot be used, or has the keys of another service.
    """
    if settings.security.auth == "none":
        return log
    return SignedLog(log, held_keys(settings, edge), settings.kafka.prefix)


@lru_cache(maxsize=1024)
def _place(prefix: str, topic: str, partition: int) -> bytes:
    return f"tsunagi-1\0{prefix}{topic}\0".encode() + _NUMBER.pack(partition)


def _covered(prefix: str, topic: str, partition: int, key: bytes | None) -> bytes:
    """Return the bytes that a hash covers besides the body. Each part has a length or an end, so none is ambiguous."""
    place = _place(prefix, topic, partition)
    return place + _NUMBER.pack(_NO_KEY) if key is None else place + _NUMBER.pack(len(key)) + key


class SignedLog:
    """A `tsunagi.runtime.log.Log` whose producers sign and whose readers verify.

    Args:
        log: the log that is wrapped.
        keys: the keys of the process.
        prefix: the prefix of the topics' names. The hashes cover it, so that another installation on the same cluster
            does not accept the records.
    """

    def __init__(self, log: Log, keys: Keys, prefix: str = "") -> None:
        self._log = log
        self._keys = keys
        self._prefix = prefix
        # A later process has greater serial numbers. They are compared within an epoch, and an epoch belongs to one
        # process, so the clock need not be right.
        self._serials = itertools.count(time.time_ns())

    def producer(self, *, durable: bool = True) -> Producer:
        producer = self._log.producer(durable=durable)
        return _SigningProducer(producer, self._keys.signing(), self._prefix, self._serials)

    def reader(self, *, wait_s: float = 0.1, least_bytes: int = 1, measured: bool = False) -> Reader:
        reader = self._log.reader(wait_s=wait_s, least_bytes=least_bytes, measured=measured)
        return _VerifyingReader(reader, Verifier(self._keys, self._prefix)) if self._keys.masters else reader

    def partitions(self, topic: str) -> int:
        return self._log.partitions(topic)

    def topic_id(self, topic: str) -> str:
        return self._log.topic_id(topic)


class _SigningProducer:
    def __init__(self, producer: Producer, key: bytes, prefix: str, serials: itertools.count[int]) -> None:
        self._producer = producer
        self._key = key
        self._prefix = prefix
        self._serials = serials

    @property
    def appended_us(self) -> int:
        return self._producer.appended_us

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, delivered: Delivered | None = None
    ) -> None:
        if topic in SIGNED and value is not None:
            value = self._signed(topic, partition, key, value)
        self._producer.send(topic, partition, key, value, delivered)

    def send_run(
        self, topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]], delivered: Delivered | None = None
    ) -> int:
        if topic in SIGNED:
            pairs = [(key, self._signed(topic, partition, key, value)) for key, value in pairs]
        return self._producer.send_run(topic, partition, pairs, delivered)

    def _signed(self, topic: str, partition: int, key: bytes | None, value: bytes) -> bytes:
        control = topic == TUPLES and key is not None and key.startswith(_CONTROL_KEY)
        if (control or topic == PLAN) and _unnumbered(LogRecord if control else Plan, value):
            value += _SERIAL.pack(_SERIAL_TAG, next(self._serials))
        return sign(self._key, self._prefix, topic, partition, key, value)

    def poll(self, timeout_s: float = 0.0) -> int:
        return self._producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        return self._producer.flush(timeout_s)

    def close(self) -> None:
        self._producer.close()


def _unnumbered(kind: type[LogRecord | Plan], value: bytes) -> bool:
    """Return whether a record lacks a serial number, by which readers recognise a repeat of it."""
    try:
        return not decode(kind, value).serial
    except UnusableError:
        return False  # every reader refuses the record anyway


def sign(secret: bytes, prefix: str, topic: str, partition: int, key: bytes | None, body: bytes) -> bytes:
    """Return the body with its hash."""
    covered = _covered(prefix, topic, partition, key)
    return body + _MAC_TAG + hmac.digest(secret, covered + body, "sha256")[:MAC_BYTES]


class Verifier:
    """Tells who signed a record."""

    def __init__(self, keys: Keys, prefix: str = "") -> None:
        self._prefix = prefix
        self._masters = keys.masters
        self._control = tuple(derive(master, CONTROL) for master in keys.masters)
        self._edge = lru_cache(maxsize=4096)(self._derived)  # bounded: strangers choose the keys

    def signer(self, record: Record) -> str:
        """Return who signed a record: `CONTROL`, `EDGE` + name, or "" if its hash is not valid.

        The key of the record says whose hash it should be.
        """
        value, key = record.value, record.key
        if value is None or value[-_SUFFIX_BYTES:-MAC_BYTES] != _MAC_TAG:
            return ""
        covered = _covered(self._prefix, record.topic, record.partition, key) + value[:-_SUFFIX_BYTES]
        mac = value[-MAC_BYTES:]
        of_edge = record.topic == TUPLES and not (key or b"").startswith(_CONTROL_KEY)
        if not of_edge and _matches(self._control, covered, mac):
            return CONTROL
        if key and len(key) <= MAX_NAME_BYTES and (of_edge or record.topic == HEARTBEATS):
            name, secrets = self._edge(key)
            if _matches(secrets, covered, mac):
                return name
        return ""

    def _derived(self, key: bytes) -> tuple[str, tuple[bytes, ...]]:
        try:
            name = EDGE + key.decode()
        except UnicodeDecodeError:
            return "", ()
        return name, tuple(derive(master, name) for master in self._masters)


def _matches(secrets: tuple[bytes, ...], covered: bytes, mac: bytes) -> bool:
    for secret in secrets:  # noqa: SIM110 - this runs for each record, and a generator costs as much as half the hash
        if hmac.compare_digest(hmac.digest(secret, covered, "sha256")[:MAC_BYTES], mac):
            return True
    return False


class _VerifyingReader:
    def __init__(self, reader: Reader, verifier: Verifier) -> None:
        self._reader = reader
        self._signer = verifier.signer

    def assign(self, positions: Iterable[Position]) -> None:
        self._reader.assign(positions)

    def add(self, position: Position) -> None:
        self._reader.add(position)

    def remove(self, topic: str, partition: int) -> None:
        self._reader.remove(topic, partition)

    def read(self, max_records: int, timeout_s: float, *, gather_s: float | None = None) -> list[Record]:
        return [
            Record(
                record.topic,
                record.partition,
                record.offset,
                record.appended_us,
                record.key,
                record.value,
                self._signer(record),
            )
            if record.topic in SIGNED
            else record
            for record in self._reader.read(max_records, timeout_s, gather_s=gather_s)
        ]

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        return self._reader.range(topic, partition)

    def traffic(self) -> Traffic:
        return self._reader.traffic()

    def close(self) -> None:
        self._reader.close()


def forgery(record: Record, message: LogRecord | Heartbeat | Plan | Ack | Context) -> str:
    """Return "" if the signer of a record may write this message, else what is wrong. Unchecked records pass.

    A batch must be signed by its edge, a heartbeat by its node or `CONTROL`, and everything else by `CONTROL`. The
    answer depends on the record alone, so all replicas of a slot agree.
    """
    signer = record.signer
    if signer is None:
        return ""
    expected = CONTROL
    if isinstance(message, LogRecord) and message.WhichOneof("body") == "batch":
        expected = EDGE + message.batch.edge
    elif isinstance(message, Heartbeat) and signer.startswith(EDGE):
        if message.slots:
            return f"signed by {signer}, and speaks of slots, which an edge has none of"
        if message.role != "edge":
            return f"signed by {signer}, and claims the role {message.role[:80]!r}"
        expected = EDGE + message.node
    if signer == expected:
        return ""
    return f"signed by {signer[:80] or 'nobody known'}, expected {expected[:80]}"
