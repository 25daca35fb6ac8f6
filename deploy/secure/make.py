"""Makes the keys, certificates and passwords of a secure installation, one file each (docs/howto/security.md).

``python -m deploy.secure.make --out DIR --edges edge-1,edge-2`` makes the files that are missing and changes none that
is there, so it can be run again when an edge is added:

==================  ================================================================================================
``ca.pem``          certificate that signed the brokers'; for every client (not secret)
``ca.key``          its key: for this program only; keep it off the machines that run Tsunagi
``kafka.pem``       the brokers' certificate and key; for brokers only
``password-USER``   SCRAM password of admin, of each service's user and of each edge; no newline after it
``key-master``      master key of the keyed hashes; for gateways, scaler, Spark, console and tools
``key-EDGE``        an edge's own key, derived from the first master key; for that edge only
==================  ================================================================================================
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tsunagi.broker.secure import BROKER_NAME
from tsunagi.runtime.acls import ADMIN, roles
from tsunagi.runtime.keys import EDGE, KEY_BYTES, derive, read_keys
from tsunagi.runtime.settings import ConfigError

HOSTS = ("kafka", "kafka-1", "kafka-2", "kafka-3", "localhost", "127.0.0.1")
"""Names and addresses under which clients reach the brokers by default; the brokers' certificate names them."""
OWNER = 10001
"""User id that the containers run as. When root makes the files, they are given to this user."""
CA_DAYS, DAYS = 3650, 825
"""Validity of the CA's certificate and of the brokers', in days. Some TLS clients refuse a server's certificate that is
valid for longer than 825 days."""
PASSWORD_BYTES = 24
"""Random bytes of a password: 192 bits, too many to guess."""

_OPENSSL = "openssl"
"""The program that makes keys and certificates."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What the name of an edge must look like, since it becomes part of file names and of a SCRAM user."""
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
"""Options of openssl that make a new elliptic-curve key without a passphrase, since nobody could type one at a
start."""


def make(out: Path, edges: Sequence[str], hosts: Sequence[str] = HOSTS, *, owner: int | None = None) -> list[str]:
    """Make the files that are missing in `out`; return the names of those that were made.

    Args:
        hosts: names and addresses under which clients reach the brokers.
        owner: id of the user who gets the files, except for the CA's key; None leaves them to the caller.

    Raises:
        ConfigError: an edge's name cannot be used, the master key is damaged, or openssl is missing or fails.
    """
    for edge in edges:
        if not _NAME.fullmatch(edge):
            raise ConfigError(f"edge {edge!r}: expected 1 to 64 letters, digits, dots, dashes or underscores")
    users = (ADMIN, *roles(edges))
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = _certificates(out, hosts)
        for user in users:
            made += _write(out / f"password-{user}", secrets.token_urlsafe(PASSWORD_BYTES).encode())
        made += _write(out / "key-master", f"master {secrets.token_hex(KEY_BYTES)}\n".encode())
        master = read_keys(out / "key-master").masters[0]
        for edge in edges:
            made += _write(out / f"key-{edge}", f"edge {edge} {derive(master, EDGE + edge).hex()}\n".encode())
        if owner is not None:
            for name in made:
                if name != "ca.key":
                    os.chown(out / name, owner, owner)
    except OSError as error:
        raise ConfigError(f"{error.filename or out}: {error.strerror}") from None
    return made


def _certificates(out: Path, hosts: Sequence[str]) -> list[str]:
    made: list[str] = []
    if not (out / "ca.pem").exists() or not (out / "ca.key").exists():
        if (out / "kafka.pem").exists():
            raise ConfigError(
                f"{out}: ca.pem or ca.key is missing beside kafka.pem; restore it, or remove kafka.pem too"
            )
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            key, certificate = Path(scratch, "key"), Path(scratch, "certificate")
            uses = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
            subject = ("-subj", "/CN=Tsunagi CA", "-days", str(CA_DAYS))
            _openssl("req", "-x509", *_KEY, *subject, *uses, "-keyout", str(key), "-out", str(certificate))
            made += _write(out / "ca.key", key.read_bytes())
            made += _write(out / "ca.pem", certificate.read_bytes(), mode=0o644)
    if not (out / "kafka.pem").exists():
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            key, request, certificate, extra = (
                Path(scratch, name) for name in ("key", "request", "certificate", "uses")
            )
            names = ",".join(f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts)
            extra.write_text(
                f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=critical,digitalSignature\n",
                encoding="ascii",
            )
            _openssl("req", *_KEY, "-subj", f"/CN={BROKER_NAME}", "-keyout", str(key), "-out", str(request))
            signed_by = ("-CA", str(out / "ca.pem"), "-CAkey", str(out / "ca.key"), "-extfile", str(extra))
            serial = ("-set_serial", f"0x{secrets.token_hex(16)}", "-days", str(DAYS), "-sha256")
            _openssl("x509", "-req", "-in", str(request), *signed_by, *serial, "-out", str(certificate))
            chain = key.read_bytes() + certificate.read_bytes() + (out / "ca.pem").read_bytes()
            made += _write(out / "kafka.pem", chain)
    return made


def _is_address(host: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+|[0-9a-fA-F:]*:[0-9a-fA-F:.]*", host))


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run([_OPENSSL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise ConfigError("openssl is not installed, and makes the certificates") from None
    if done.returncode != 0:
        raise ConfigError(f"openssl {arguments[0]}: {done.stderr.strip()}")


def _write(path: Path, data: bytes, mode: int = 0o600) -> list[str]:
    """Write a file completely or not at all, readable by nobody else; leave it if it exists."""
    if path.exists():
        return []
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    draft.chmod(mode)
    draft.rename(path)
    return [path.name]


def main(arguments: list[str] | None = None) -> int:
    """Make the files and print their names."""
    parser = argparse.ArgumentParser(prog="python -m deploy.secure.make", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the files")
    parser.add_argument("--edges", default="", help="names of the edges, comma-separated")
    parser.add_argument("--hosts", default=",".join(HOSTS), help="of the brokers (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        edges, hosts = (
            [name.strip() for name in text.split(",") if name.strip()] for text in (given.edges, given.hosts)
        )
        made = make(given.out, edges, hosts, owner=OWNER if os.geteuid() == 0 else None)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{given.out}: made {', '.join(made) if made else 'nothing, everything was there'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
