"""Makes topics, users and rights, for `tsunagi up` and `tsunagi topics`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tsunagi.broker.secure import read_passwords
from tsunagi.runtime.acls import apply_acls, roles, set_passwords
from tsunagi.runtime.log import TOPICS
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.placing import sized
from tsunagi.system.fleet_table import sensors_in_force
from tsunagi.system.topics import quiet_log, wait_for_range

_LEADER_S = 20.0
"""Longest wait, in seconds, until each partition of new topics has a leader; it is one wait for all of them."""


def make_topics(settings: Settings) -> None:
    """Make or check the topics, and wait until every partition answers: a new one has no leader for a moment.

    Raises:
        LogError: a topic is not as expected (see `KafkaLog.ensure_topics`), or a partition did not answer.
    """
    source = quiet_log(settings, "up")
    if settings.slots.grow and not source.slots_made():
        settings = sized(settings, read_sensors(settings.sensors))
    source.ensure_topics(settings)
    reader = source.reader()
    deadline = time.monotonic() + _LEADER_S
    try:
        for topic in TOPICS:
            partition = 0
            while partition < source.partitions(topic):
                wait_for_range(reader, topic, partition, deadline)
                partition += 1
    finally:
        reader.close()
        source.close()


def make_rights(settings: Settings, tell: Callable[[str], None], *, acls: bool, users: Path | None) -> None:
    """Make the users of the broker and their rights; the edges are those of the file and of the table in force.

    Args:
        users: directory with a file password-USER for each user that is to be made or changed; None makes none.

    Raises:
        BrokerError: a password cannot be read.
        ConfigError: an edge has another user's name.
        LogError: the broker refuses the change.
    """
    if not acls and users is None:
        return
    wanted = read_sensors(settings.sensors).edges
    source = quiet_log(settings, "rights")
    try:
        known = roles(sorted({*wanted, *sensors_in_force(source, settings).edges}))
        if users is not None:
            passwords = read_passwords(users)
            set_passwords(source.admin(), passwords)
            tell(f"users: {', '.join(passwords)}")
        if acls:
            apply_acls(source.admin(), settings.kafka, known, tell)
    finally:
        source.close()
