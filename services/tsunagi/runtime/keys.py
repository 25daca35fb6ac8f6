"""Reads the files that have the keys of the keyed hashes, and derives keys (docs/howto/security.md).

Processes that hold the master key use the key `control`: gateways, scaler, Spark and tools. An edge has a key of its
own and no other. Both kinds are derived as HMAC-SHA256(master, name).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from tsunagi.runtime.settings import ConfigError, Settings

CONTROL = "control"
"""The name of the key of processes that hold the master key, and the `Record.signer` of what they sign."""
EDGE = "edge/"
"""This and the name of an edge are the name of the edge's key, and the `Record.signer` of what it signs."""

KEY_BYTES = 32
"""Length of a key, in bytes: that of a SHA-256."""

_PRIVATE = 0o027
"""Mode bits that a key file must not have: its group may not write it, and others may do nothing with it."""


@dataclass(frozen=True)
class Keys:
    """The keys that a process holds: master keys, or the key of one edge.

    Attributes:
        masters: the master keys. The first one signs, and all of them verify (docs/howto/security.md, rotation).
        edge: the name of the edge; "" if the process holds master keys.
        edge_key: the key of that edge.
    """

    masters: tuple[bytes, ...] = ()
    edge: str = ""
    edge_key: bytes = b""

    def signing(self) -> bytes:
        """Return the key with which this process signs."""
        return self.edge_key or derive(self.masters[0], CONTROL)

    def __repr__(self) -> str:
        return f"Keys({'edge ' + self.edge if self.edge else 'master'})"


def derive(master: bytes, name: str) -> bytes:
    """Return the key of `CONTROL`, or of an edge (`EDGE` + its name)."""
    return hmac.digest(master, name.encode(), "sha256")


def read_keys(path: Path) -> Keys:
    """Read a key file: lines ``master HEX`` (one or more), or one line ``edge NAME HEX``; HEX is 64 hex digits.

    Raises:
        ConfigError: the file is missing, or open to others, or not of that form. The message never quotes a key.
    """
    place = f"{path} ([security] key_file)"
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{place}: found other than ASCII, expected `master HEX` or `edge NAME HEX`") from None
    if mode & _PRIVATE:
        raise ConfigError(f"{place}: found mode {mode & 0o777:04o}, expected 0600, or 0640 at most")
    masters: list[bytes] = []
    edges: list[tuple[str, bytes]] = []
    for number, line in enumerate(text.splitlines(), 1):
        match line.split():
            case []:
                continue
            case ["master", digits]:
                masters.append(_key(place, number, digits))
            case ["edge", name, digits]:
                edges.append((name, _key(place, number, digits)))
            case _:
                raise ConfigError(f"{place}, line {number}: expected `master HEX` or `edge NAME HEX`")
    if masters and not edges:
        return Keys(masters=tuple(masters))
    if len(edges) == 1 and not masters:
        return Keys(edge=edges[0][0], edge_key=edges[0][1])
    raise ConfigError(
        f"{place}: found {len(masters)} master and {len(edges)} edge keys, expected master keys alone, or one edge key"
    )


def _key(place: str, line: int, digits: str) -> bytes:
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        raise ConfigError(f"{place}, line {line}: the key is not hexadecimal") from None
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{place}, line {line}: found a key of {len(key)} bytes, expected {KEY_BYTES}")
    return key


def fingerprint(settings: Settings) -> str:
    """Return a fingerprint of the master keys, which reveals no key; "" if authentication is off.

    The settings of slots contain it. So a standby that verifies with other keys, or not at all, is not ready.
    """
    if settings.security.auth == "none":
        return ""
    masters = held_keys(settings, None).masters
    marks = sorted(hmac.digest(derive(master, CONTROL), b"fingerprint", "sha256") for master in masters)
    return hashlib.sha256(b"".join(marks)).hexdigest()[:16]


def held_keys(settings: Settings, edge: str | None) -> Keys:
    """Return the keys of this process from `[security] key_file`.

    Args:
        settings: the settings of the process.
        edge: the name of the edge that asks; None for every other service, which holds master keys.

    Raises:
        ConfigError: the file cannot be used, or has the keys of another service.
    """
    path = Path(settings.security.key_file)
    keys = read_keys(path)
    found = f"the key of edge {keys.edge!r}" if keys.edge else "master keys"
    expected = "master keys" if edge is None else f"the key of edge {edge!r}"
    if found != expected:
        raise ConfigError(f"{path} ([security] key_file): found {found}, expected {expected}")
    return keys
