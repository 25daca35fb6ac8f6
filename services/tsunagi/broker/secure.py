"""A broker that only its own clients can use: TLS, SCRAM, access control (docs/howto/security.md).

Clients authenticate by SASL/SCRAM over TLS. Brokers and controllers speak TLS to each other and show the certificate of
`deploy.secure.make`; its name is a super user, like `admin`. Nobody has a right that no access rule gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tsunagi.broker.checks import BrokerError

BROKER_NAME = "kafka"
"""Common name of the brokers' certificate; brokers are the principal `User:CN=kafka`."""
ADMIN = "admin"
"""User who makes topics, users and access rules."""
MECHANISM = "SCRAM-SHA-512"
"""SASL mechanism by which clients authenticate."""
BROKERS = "BROKERS"
"""Name of the listener through which brokers reach each other; `listeners` must have it beside those for clients."""


def properties(
    secrets: Path, clients: Sequence[str] = ("CLIENTS",), controllers: Sequence[str] = ("CONTROLLER",)
) -> dict[str, str]:
    """Return the properties that make a broker secure; the caller sets `listeners` and `advertised.listeners`.

    Args:
        secrets: directory of ca.pem and kafka.pem.
        clients: names of the listeners for clients.
        controllers: names of the listeners for controllers.

    Raises:
        BrokerError: a file is missing.
    """
    for name in ("ca.pem", "kafka.pem"):
        if not os.access(secrets / name, os.R_OK):
            raise BrokerError(f"{secrets / name}: missing or not readable; make it by `python -m deploy.secure.make`")
    inner = (BROKERS, *controllers)
    protocols = [*(f"{name}:SASL_SSL" for name in clients), *(f"{name}:SSL" for name in inner)]
    found = {
        "listener.security.protocol.map": ",".join(protocols),
        "inter.broker.listener.name": BROKERS,
        "controller.listener.names": ",".join(controllers),
        "sasl.enabled.mechanisms": MECHANISM,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(secrets / "kafka.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secrets / "ca.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": f"User:{ADMIN};User:CN={BROKER_NAME}",
    }
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    for name in clients:
        found[f"listener.name.{name.lower()}.{MECHANISM.lower()}.sasl.jaas.config"] = login
    for name in inner:
        found[f"listener.name.{name.lower()}.ssl.client.auth"] = "required"
    return found


@contextmanager
def format_arguments(
    directory: Path, arguments: Sequence[str], passwords: Mapping[str, str]
) -> Iterator[tuple[str, ...]]:
    """Yield the arguments with which `java` runs `kafka.tools.StorageTool`, so that the new log has these users.

    Their passwords are in a file that is removed afterwards: every process can read a command line.

    Args:
        directory: directory of that file, which only its owner can read.
        arguments: `format` and its options.
    """
    path = directory / "format.arguments"
    words = ["kafka.tools.StorageTool", *arguments]
    for user, password in passwords.items():
        words += ["--add-scram", f"{MECHANISM}=[name={user},password={password}]"]
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(f'"{word}"\n' for word in words))
    try:
        yield (f"@{path}",)
    finally:
        path.unlink()


def read_passwords(secrets: Path) -> dict[str, str]:
    """Return the password of each user, from the files password-USER in the directory.

    Raises:
        BrokerError: there is no such file, or one cannot be read.
    """
    try:
        found = {
            file.name.removeprefix("password-"): file.read_text(encoding="ascii").strip()
            for file in sorted(secrets.glob("password-*"))
            if file.suffix != ".new"
        }
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerError(f"{secrets}: {error}") from None
    if not found:
        raise BrokerError(f"{secrets}: no file password-USER; make them by `python -m deploy.secure.make`")
    return found


def admin_options(secrets: Path) -> dict[str, str]:
    """Return the librdkafka options of a client that authenticates as `admin`."""
    return {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(secrets / "ca.pem"),
        "sasl.mechanism": MECHANISM,
        "sasl.username": ADMIN,
        "sasl.password": read_passwords(secrets)[ADMIN],
    }
