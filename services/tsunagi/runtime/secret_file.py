"""Reads files that hold a secret: a password, a token, a header."""

from __future__ import annotations

from pathlib import Path


def read_secret(path: str, setting: str, error: type[ValueError], what: str = "a password") -> str:
    """Return what a file holds, without the end of its line; "" if the settings name no file.

    Args:
        path: the file; empty = the settings name none.
        setting: the setting that names it, for messages.
        error: what is raised.
        what: what the file should hold, for messages.

    Raises:
        ValueError: of the kind of `error`: the file cannot be read, is not UTF-8, or is empty.
    """
    if not path:
        return ""
    try:
        secret = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as found:
        reason = found.strerror if isinstance(found, OSError) else "not UTF-8"
        raise error(f"{setting}: {path}: cannot be read: {reason}") from None
    if not secret:
        raise error(f"{setting}: {path}: found an empty file, expected {what}")
    return secret
