"""Who may do what: the file of users, their passwords (argon2), and their roles."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

Role = Literal["viewer", "operator"]
"""A viewer sees everything. An operator may also act."""
ROLES: tuple[Role, ...] = get_args(Role)
"""The roles, the weaker one first."""
SIGNER = "console-signer"
"""The file, in the state directory, whose bytes sign the cookies of sessions."""
LEAST_PASSWORD = 8
"""Least number of characters of a password."""
MOST_PASSWORD = 1024
"""Greatest number of characters of a password; a longer one would only cost time."""
_HASHER = PasswordHasher()
"""Hashes with argon2id at the parameters that its authors recommend (RFC 9106, low memory)."""


class UsersError(ValueError):
    """The file of users cannot be used; the message names file, line, found and expected."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may log in.

    Attributes:
        hash: of the password, as argon2 writes it.
    """

    name: str
    role: Role
    hash: str


def read_users(path: Path) -> dict[str, User]:
    """Read the file of users: a line NAME:ROLE:HASH for each.

    Raises:
        UsersError: the file cannot be read, or a line is not of this form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsersError(f"{path}: cannot be read: {error}") from None
    found: dict[str, User] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, _, rest = line.partition(":")
        role, _, hashed = rest.partition(":")
        if not name or role not in ROLES or not hashed.startswith("$argon2"):
            raise UsersError(
                f"{path}, line {number}: found {line[:40]!r}, expected NAME:ROLE:HASH, with the role "
                f"{' or '.join(ROLES)}; "
                "`tsunagi console user` writes such lines"
            )
        found[name] = User(name, role, hashed)
    return found


def write_user(path: Path, name: str, role: Role, password: str) -> None:
    """Add a user to the file, or change one.

    Raises:
        UsersError: the name or the password cannot be used, or the file is damaged.
    """
    if not name or not name.isprintable() or ":" in name or name != name.strip():
        raise UsersError(f"user {name!r}: expected a name without colons, and without spaces at its ends")
    if not LEAST_PASSWORD <= len(password) <= MOST_PASSWORD:
        raise UsersError(f"password: found {len(password)} characters, expected {LEAST_PASSWORD} to {MOST_PASSWORD}")
    users = read_users(path) if path.exists() else {}
    _write(path, users | {name: User(name, role, _HASHER.hash(password))})


def remove_user(path: Path, name: str) -> None:
    """Remove a user from the file.

    Raises:
        UsersError: there is none of this name, or the file is damaged.
    """
    users = read_users(path) if path.exists() else {}
    if name not in users:
        raise UsersError(f"{path}: found no user {name}, expected one of {', '.join(users) or 'nobody'}")
    _write(path, {other: user for other, user in users.items() if other != name})


def _write(path: Path, users: Mapping[str, User]) -> None:
    text = "".join(f"{user.name}:{user.role}:{user.hash}\n" for user in users.values())
    _write_private(path, text.encode())


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, in one piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)  # its mode is 0600
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(name).replace(path)


@cache
def _nobody() -> str:
    """Return the hash that is checked for an unknown name, so that it takes as long as for a known one."""
    return _HASHER.hash(secrets.token_hex(16))


def check(users: Mapping[str, User], name: str, password: str) -> User | None:
    """Return the user if the password is right; None if not."""
    user = users.get(name)
    try:
        _HASHER.verify(_nobody() if user is None else user.hash, password[: MOST_PASSWORD + 1])
    except (VerificationError, InvalidHashError):
        return None
    return user


def session_secret(state: Path) -> str:
    """Return what signs sessions. It is kept in a file, so that a console that was restarted knows its users."""
    path = state / SIGNER
    try:
        found = path.read_text(encoding="ascii").strip()
    except OSError:
        found = ""
    if len(found) < 64:
        found = secrets.token_hex(32)
        _write_private(path, found.encode())
    return found
