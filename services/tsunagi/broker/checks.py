"""Finds out what keeps a broker from running, before its start and after its death, and says what to do about it."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
from pathlib import Path

from tsunagi.installation import SETUP
from tsunagi.jars.java import JavaError, find_java

HOST = "127.0.0.1"
"""Address on which the broker of a machine listens: only this machine reaches it."""
NODE_ID = "1"
"""Node id of the one broker; it also stands in the data directory."""
CLUSTER_FILE = "cluster-id"
"""File in the broker's directory that names the cluster which its data must belong to."""
MIN_FREE_BYTES = 200_000_000
"""A start needs this many free bytes on the disk: with less, the broker would die when it makes its first segments."""

_NO_ROOM_BYTES = 2_000_000
"""A disk with fewer free bytes than this was full when the broker died: it may have had no room to log that."""
_LOWEST = 20_000
"""Lowest port that `free_port` tries: well-known services lie below it."""
_TRIES = 50
"""Random ports that `free_port` tries before it leaves the choice to the system."""

_RESTORE = "restore it, or remove the directory to begin with an empty log"
"""Advice for a damaged or foreign data directory."""
_PORT = (
    "stop what listens there, or choose another with `servers` under [kafka] in tsunagi.toml (TSUNAGI_KAFKA__SERVERS)"
)
"""Advice for a port that is in use."""
_NO_SPACE = "No space left on device"
"""What the log of a broker says whose disk is full."""
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
"""What a dying broker's log says, and what that means for the user. The first entry that is found in the log counts."""


class BrokerError(RuntimeError):
    """The broker cannot be started or has died. The first line of the message says why and what to do."""


def usable_java(jars: Path) -> str:
    """Return a Java that can run the broker.

    Raises:
        BrokerError: there is no usable Java, or there are no jars.
    """
    try:
        java = find_java()
    except JavaError as error:
        raise BrokerError(f"the broker cannot start: {error}") from None
    if not any(jars.glob("kafka_*.jar")):
        raise BrokerError(f"the broker cannot start: no Kafka jars in {jars}; run `{SETUP}`")
    return java


def check_disk(directory: Path, at_least_bytes: int = MIN_FREE_BYTES) -> None:
    """Raise a `BrokerError` if the disk of a directory has fewer free bytes than `at_least_bytes`."""
    free = shutil.disk_usage(directory).free
    if free < at_least_bytes:
        raise BrokerError(
            f"the disk of {directory} is full: {free / 1e6:.0f} MB free, expected {at_least_bytes / 1e6:.0f} MB or more"
        )


def check_data(directory: Path) -> None:
    """Raise a `BrokerError` if the data directory is damaged or of another cluster; it may be missing."""
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
    """Raise a `BrokerError` if somebody listens on a port, or if it may not be used."""
    try:
        bind(port).close()
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "expected 1 to 65535"
        raise BrokerError(f"port {port} on {HOST} cannot be used by the broker: {reason}; {_PORT}") from None


def free_port(prefer: int = 0, *, avoid: int = 0) -> int:
    """Return a port on which nobody listens: `prefer` if it is free, never `avoid`.

    It is not one of the ports that the system gives to outgoing connections. Clients that try a dead broker again and
    again would in the end be given its port and connect to themselves (a simultaneous open), so that the broker could
    not come back.
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
    """Return the lowest port that the system gives to outgoing connections; 0 if it does not say."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def bind(port: int) -> socket.socket:
    """Return a socket that listens on a port; this fails only if somebody listens there or the port is reserved."""
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
    """Return in one line what a dead broker died of, from its log.

    A full disk is recognised by its free space, since there may have been no room for a line in the log.
    """
    with contextlib.suppress(OSError):
        if shutil.disk_usage(directory).free < _NO_ROOM_BYTES:
            log = _NO_SPACE
    for sign, meaning in _CAUSES:
        if sign in log:
            return meaning.format(directory=directory, port=port, controller_port=controller_port)
    return "its log tells more"
