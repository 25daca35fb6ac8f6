"""What can keep a broker from running, in words that say what to do: before the start, and after its death."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
from pathlib import Path

from tsunagi.installation import SETUP
from tsunagi.jars.java import JavaError, find_java

HOST = "127.0.0.1"
NODE_ID = "1"
CLUSTER_FILE = "cluster-id"
"""File in the broker's directory that says which cluster its data must be of."""
MIN_FREE_BYTES = 200_000_000
"""A start with less free space would end in a broker that dies on its first segments."""

_NO_ROOM_BYTES = 2_000_000
_LOWEST = 20_000
_TRIES = 50

_RESTORE = "restore it, or remove the directory to begin with an empty log"
_PORT = (
    "stop what listens there, or choose another with `servers` under [kafka] in tsunagi.toml (TSUNAGI_KAFKA__SERVERS)"
)
# What a dying broker's log says -> what that means. The first match counts.
_NO_SPACE = "No space left on device"
_CAUSES = (
    (_NO_SPACE, "the disk of {directory} is full; free at least 200 MB there, then start again"),
    ("Disk quota exceeded", "the disk quota of {directory} is used up; free at least 200 MB there, then start again"),
    ("File too large", "{directory} has no room: a file may not grow further (ulimit -f, or the file system's limit)"),
    ("Read-only file system", "{directory} is on a read-only file system"),
    ("Input/output error", "the disk of {directory} reports input/output errors"),
    ("Address already in use", "port {port} (or the controller's, {controller_port}) is in use; " + _PORT),
    ("Failed to acquire lock", "another broker uses {directory}/data"),
    ("OutOfMemoryError", "it ran out of memory"),
    ("InconsistentClusterIdException", "{directory}/data is of another cluster; " + _RESTORE),
    ("CorruptRecordException", "{directory}/data is damaged; " + _RESTORE),
    ("Found invalid messages", "{directory}/data is damaged; " + _RESTORE),
    ("KafkaStorageException", "{directory}/data cannot be used"),
)


class BrokerError(RuntimeError):
    """The broker cannot be started or has died; the first line says why and what to do."""


def usable_java(jars: Path) -> str:
    """Return a Java to run the broker with.

    Raises:
        BrokerError: no usable Java, or no jars.
    """
    try:
        java = find_java()
    except JavaError as error:
        raise BrokerError(f"the broker cannot start: {error}") from None
    if not any(jars.glob("kafka_*.jar")):
        raise BrokerError(f"the broker cannot start: no Kafka jars in {jars}; run `{SETUP}`")
    return java


def check_disk(directory: Path, at_least_bytes: int = MIN_FREE_BYTES) -> None:
    """Refuse a directory whose disk is as good as full."""
    free = shutil.disk_usage(directory).free
    if free < at_least_bytes:
        raise BrokerError(
            f"the disk of {directory} is full: {free / 1e6:.0f} MB free, expected {at_least_bytes / 1e6:.0f} MB or more"
        )


def check_data(directory: Path) -> None:
    """Refuse a data directory that is damaged or of another cluster; one that is not there yet is fine."""
    data = directory / "data"
    if not data.exists():
        return
    meta = data / "meta.properties"
    lines = _read(meta).splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    for key in ("version", "node.id", "cluster.id"):
        if not found.get(key):
            raise BrokerError(f"the broker's data directory is damaged: {meta} has no {key}; {_RESTORE}")
    if found["node.id"] != NODE_ID:
        raise BrokerError(
            f"{data} is of another node: {meta} says node.id = {found['node.id']}, expected {NODE_ID}; {_RESTORE}"
        )
    expected = _read(directory / CLUSTER_FILE).strip()
    if found["cluster.id"] != expected:
        raise BrokerError(
            f"{data} is of another cluster: {meta} says {found['cluster.id']}, "
            f"{directory / CLUSTER_FILE} says {expected}; {_RESTORE}"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BrokerError(f"the broker's data directory is damaged: {path} is missing; {_RESTORE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerError(
            f"the broker's data directory is damaged: {path} cannot be read ({error}); {_RESTORE}"
        ) from None


def check_port(port: int) -> None:
    """Refuse a port that somebody listens on, or that may not be used."""
    try:
        bind(port).close()
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "expected 1 to 65535"
        raise BrokerError(f"port {port} on {HOST} cannot be used by the broker: {reason}; {_PORT}") from None


def free_port(prefer: int = 0, *, avoid: int = 0) -> int:
    """Return a port nobody listens on: `prefer` if it is free, never `avoid`.

    It is not one that the system gives to outgoing connections: clients that look for a dead broker again and again
    would be given its port in the end, and connect to themselves (a simultaneous open), so that it could not come back.
    """
    low = _first_outgoing()
    tried = (random.randrange(_LOWEST, low) for _ in range(_TRIES)) if low > _LOWEST else ()
    for port in (*((prefer,) if prefer else ()), *tried, 0, 0):
        try:
            with bind(port) as bound:
                number: int = bound.getsockname()[1]
        except OSError:
            continue
        if number != avoid:
            return number
    raise BrokerError(f"no free port on {HOST}")


def _first_outgoing() -> int:
    """Return the first of the ports that outgoing connections are given; 0 = the system does not say."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def bind(port: int) -> socket.socket:
    """Bind a port as a server would: refused only if somebody listens there or the port is reserved."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
        bound.listen(1)
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound


def cause(log: str, *, directory: Path, port: int, controller_port: int) -> str:
    """Say what a dead broker died of, in one line, from what it logged.

    On a full disk there may have been no room for the line that says so.
    """
    with contextlib.suppress(OSError):
        if shutil.disk_usage(directory).free < _NO_ROOM_BYTES:
            log = _NO_SPACE
    for sign, meaning in _CAUSES:
        if sign in log:
            return meaning.format(directory=directory, port=port, controller_port=controller_port)
    return "its log tells more"
