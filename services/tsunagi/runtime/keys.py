"""The keys of the keyed hashes, and the files they come in (docs/howto/security.md).

`control` is for whoever holds the master key: gateways, scaler, Spark and tools. An edge has a key of its own and no
other. Both are derived as HMAC-SHA256(master, name).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from tsunagi.runtime.settings import ConfigError, Settings

CONTROL = "control"
EDGE = "edge/"
"""`Record.signer` is one of: `CONTROL`, `EDGE` + name, "" = no valid hash, None = not checked."""

KEY_BYTES = 32

_PRIVATE = 0o027
"""Mode bits that a key file must not have: written by its group, anything by others."""


@dataclass(frozen=True)
class Keys:
    """What a process holds: master keys (the first signs, all verify: docs/howto/security.md) or one edge's key."""

    masters: tuple[bytes, ...] = ()
    edge: str = ""
    edge_key: bytes = b""

    def signing(self) -> bytes:
        """Return the key that this process signs with."""
        return self.edge_key or derive(self.masters[0], CONTROL)

    def __repr__(self) -> str:
        return f"Keys({'edge ' + self.edge if self.edge else 'master'})"


def derive(master: bytes, name: str) -> bytes:
    """Return the key of `CONTROL`, or of an edge (`EDGE` + its name)."""
    return hmac.digest(master, name.encode(), "sha256")


def read_keys(path: Path) -> Keys:
    """Read a key file: lines ``master HEX`` (one or more), or one line ``edge NAME HEX``; HEX is 64 hex digits.

    Raises:
        ConfigError: it is missing, open to others, or not of that form; the message never quotes a key.
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
    """Return what tells one set of master keys from another without telling a key; "" = authentication is off.

    It stands in the slots' settings: a standby that verifies with other keys, or not at all, is not ready.
    """
    if settings.security.auth == "none":
        return ""
    masters = held_keys(settings, None).masters
    marks = sorted(hmac.digest(derive(master, CONTROL), b"fingerprint", "sha256") for master in masters)
    return hashlib.sha256(b"".join(marks)).hexdigest()[:16]


def held_keys(settings: Settings, edge: str | None) -> Keys:
    """Return this process's keys, as `[security] key_file` has them.

    Args:
        edge: the edge that asks; None = anybody else, who holds master keys.

    Raises:
        ConfigError: the file cannot be used, or is somebody else's.
    """
    path = Path(settings.security.key_file)
    keys = read_keys(path)
    found = f"the key of edge {keys.edge!r}" if keys.edge else "master keys"
    expected = "master keys" if edge is None else f"the key of edge {edge!r}"
    if found != expected:
        raise ConfigError(f"{path} ([security] key_file): found {found}, expected {expected}")
    return keys
