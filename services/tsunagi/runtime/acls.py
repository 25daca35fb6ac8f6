"""The table of rights on the broker, and its form as Kafka's access control lists.

A role has only the rights that its code uses. The rights Write and Read include Describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from tsunagi.runtime.kafka_errors import said
from tsunagi.runtime.log import (
    ACKS,
    CONTEXTS,
    DEAD_LETTERS,
    HEARTBEATS,
    LATE,
    PLAN,
    RECOVERED,
    RESULTS,
    TOPICS,
    TUPLES,
    LogError,
)
from tsunagi.runtime.settings import ConfigError, KafkaSettings

ADMIN = "admin"
"""The user that makes topics, users and access control lists. It is a super user of the broker
(`tsunagi.broker.secure`)."""

WRITES: Mapping[str, tuple[str, ...]] = {
    "edge": (TUPLES, HEARTBEATS, DEAD_LETTERS),
    "gateway": (TUPLES, RECOVERED, ACKS, CONTEXTS, HEARTBEATS, PLAN, LATE, DEAD_LETTERS),
    "scaler": (PLAN, HEARTBEATS),
    "learner": (PLAN, HEARTBEATS),
    "spark": (RESULTS, ACKS, HEARTBEATS, LATE, DEAD_LETTERS),
    "console": (PLAN,),
    "sink": (HEARTBEATS, DEAD_LETTERS),
    "tools": (),
}
"""The topics to which each role writes."""
READS: Mapping[str, tuple[str, ...]] = {
    "edge": (PLAN,),
    "gateway": (TUPLES, RECOVERED, ACKS, CONTEXTS, HEARTBEATS, PLAN),
    "scaler": (PLAN, HEARTBEATS, ACKS),
    "learner": (TUPLES, PLAN),
    "spark": (RECOVERED, PLAN),
    "console": (RECOVERED, RESULTS, ACKS, HEARTBEATS, PLAN, LATE, DEAD_LETTERS),
    "sink": (RECOVERED, RESULTS, PLAN, LATE),
    "tools": TOPICS,
}
"""The topics that each role reads. Every worker (primary, secondary or idle) is the user `gateway`. The role `tools` is
for status, results, replay and chaos. Every edge is a user of its own name."""

SEES: Mapping[str, tuple[str, ...]] = {"scaler": (RECOVERED,), "console": (TUPLES,)}
"""The topics that a role neither reads nor writes. It counts their partitions, to know how many slots there are."""

SHARED = ("gateway", "scaler", "learner", "spark", "console", "sink", "tools")
"""Users that all services of a role share. Each edge is a user of its own."""
ITERATIONS = 8192
"""Number of rounds in which SCRAM hashes a password. Kafka's own default is 4096; more make guessing slower."""
_TIMEOUT_S = 30.0
"""Longest wait for an answer of the broker, in seconds."""


def needed(role: str) -> tuple[str, ...]:
    """Return the topics that a role may see, in the order of `TOPICS`."""
    return tuple(topic for topic in TOPICS if topic in (*WRITES[role], *READS[role], *SEES.get(role, ())))


def roles(edges: Iterable[str]) -> dict[str, str]:
    """Return the role of each user.

    Raises:
        ConfigError: an edge has the name of another user.
    """
    found = {name: name for name in SHARED}
    for edge in edges:
        if edge in (*SHARED, ADMIN):
            raise ConfigError(f"edge {edge!r}: that is the name of another user of the broker; call the edge otherwise")
        found[edge] = "edge"
    return found


def bindings(settings: KafkaSettings, users: Mapping[str, str]) -> list[AclBinding]:
    """Return the access control lists of users, for topics and groups with the prefixes of the settings.

    Args:
        settings: the section [kafka].
        users: the role of each user.
    """
    found = []
    for user, role in users.items():
        rights = [(topic, AclOperation.WRITE) for topic in WRITES[role]]
        rights += [(topic, AclOperation.READ) for topic in READS[role]]
        rights += [(topic, AclOperation.DESCRIBE) for topic in SEES.get(role, ())]
        for topic, operation in rights:
            place = ResourceType.TOPIC, settings.prefix + topic, ResourcePatternType.LITERAL
            found.append(_binding(user, *place, operation))
        # Only sinks are members of groups, but the client library of the others asks who coordinates theirs.
        place = ResourceType.GROUP, settings.group_prefix, ResourcePatternType.PREFIXED
        found.append(_binding(user, *place, AclOperation.READ if role == "sink" else AclOperation.DESCRIBE))
    return found


def _binding(
    user: str, kind: ResourceType, name: str, pattern: ResourcePatternType, operation: AclOperation
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def apply_acls(
    admin: AdminClient, settings: KafkaSettings, users: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    """Make the missing access control lists. Other lists stay, and are named.

    Raises:
        LogError: the broker refuses to make a list, or has no access control.
    """
    wanted = set(bindings(settings, users))
    all_names: Any = None  # the library's types do not know that a filter may leave them open
    anything = AclBindingFilter(
        ResourceType.ANY,
        all_names,
        ResourcePatternType.ANY,
        all_names,
        all_names,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    try:
        found = set(admin.describe_acls(anything).result(timeout=_TIMEOUT_S))
        missing = sorted(wanted - found, key=_text)
        for binding, future in (admin.create_acls(missing) if missing else {}).items():
            try:
                future.result(timeout=_TIMEOUT_S)
            except KafkaException as error:
                raise LogError(f"access control: {_text(binding)}: {said(error)}") from None
    except KafkaException as error:
        if error.args[0].code() == KafkaError.SECURITY_DISABLED:
            raise LogError("the broker has no access control (authorizer.class.name)") from None
        raise LogError(f"access control: {said(error)}") from None
    tell(f"access control: {len(missing)} lists made, {len(wanted) - len(missing)} there")
    for binding in sorted(found - wanted, key=_text):
        tell(f"access control: not of the table, and left as it is: {_text(binding)}")


def set_passwords(admin: AdminClient, passwords: Mapping[str, str]) -> None:
    """Make SCRAM users with these passwords. Users that exist get the new passwords.

    Raises:
        LogError: the broker refuses to make or change a user.
    """
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, password.encode()) for user, password in passwords.items()
    ]
    for user, future in (admin.alter_user_scram_credentials(wanted) if wanted else {}).items():
        try:
            future.result(timeout=_TIMEOUT_S)
        except KafkaException as error:
            raise LogError(f"user {user}: {said(error)}") from None


def _text(binding: AclBinding) -> str:
    words = (binding.permission_type, binding.operation, binding.restype, binding.resource_pattern_type)
    allow, operation, kind, pattern = (getattr(word, "name", str(word)) for word in words)
    return f"{binding.principal} {allow} {operation} {kind} {binding.name} ({pattern})"
