"""Which system a log belongs to. A system's id stands in its log and in its state directory, and both must be equal.

The first `System` record of `plan` names the id. Workers that are started by hand or in containers, whose state
directory keeps no id, join the system whose log they find.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from tsunagi.runtime.auth import forgery
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import PLAN, Log, Record
from tsunagi.runtime.messages import VERSION, Plan, System
from tsunagi.runtime.settings import ConfigError, Settings
from tsunagi.system.plan import write_plan
from tsunagi.system.topics import read_partition, tool_log

_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What an id looks like: a UUID in lower case."""
_SHOWN = 200
"""Characters that a message shows of what the log says about its maker, since anybody may have written it."""


def kept_id(state: Path) -> str:
    """Return the id that a state directory keeps; "" if it keeps none.

    Raises:
        ConfigError: the file cannot be read, or does not hold an id.
    """
    file = _file(state)
    try:
        return str(uuid.UUID(file.read_text(encoding="utf-8").strip()))
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"{file}: the system's id cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{file}: found no id of a system; delete the file, then `tsunagi up --join`") from None


def keep(state: Path, identity: str) -> None:
    """Write the id of the system into its state directory, completely or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    file = _file(state)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(".new")
        scratch.write_text(f"{identity}\n", encoding="utf-8")
        scratch.replace(file)
    except OSError as error:
        raise ConfigError(f"{file}: the system's id cannot be written: {error.strerror}") from None


def owner(log: Log) -> System | None:
    """Return what the log says about the system that it belongs to; None if it says nothing yet.

    Raises:
        LogError: the log does not answer.
    """
    if log.partitions(PLAN) == 0:
        return None
    return first_of(read_partition(log, PLAN, 0))


def first_of(records: list[Record]) -> System | None:
    """Return the first valid record that says which system the log belongs to; None = there is none."""
    for record in records:
        try:
            plan = decode(Plan, record.value)
        except UnusableError:
            continue
        named = plan.WhichOneof("body") == "system" and _ID.fullmatch(plan.system.id)
        if named and not forgery(record, plan):
            return plan.system
    return None


def admit(settings: Settings, *, join: bool = False) -> None:
    """Check that the log belongs to this system, or to none yet.

    Args:
        join: whether this state directory becomes part of the log's system, whichever that is.

    Raises:
        ConfigError: the log belongs to another system.
        LogError: the log does not answer.
    """
    found = owner(tool_log(settings, "up"))
    if found is None:
        return
    if join:
        keep(settings.state, found.id)
    kept = kept_id(settings.state)
    if kept != found.id:
        raise ConfigError(_refusal(settings, found, kept))


def belong(settings: Settings, log: Log) -> None:
    """Check that a service whose state directory keeps an id runs on the log of that system; without an id it joins.

    Raises:
        ConfigError: the log belongs to another system.
        LogError: the log does not answer.
    """
    member = Membership(settings)
    found = owner(log) if member.kept else None
    if found is not None:
        member.hear(found)


class Membership:
    """The check of `belong`, for a service that reads `plan` anyway and may start before the log answers.

    Attributes:
        kept: the id that the state directory keeps; "" = it keeps none, so any system is accepted.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.kept = kept_id(settings.state)
        self._heard = False

    def hear(self, system: System) -> None:
        """Take in a record that says which system the log belongs to, in log order; only the first one counts.

        Raises:
            ConfigError: the log belongs to another system.
        """
        if self._heard or not _ID.fullmatch(system.id):
            return
        self._heard = True
        if self.kept and system.id != self.kept:
            raise ConfigError(_refusal(self._settings, system, self.kept))


def claim(settings: Settings) -> None:
    """Write that the log belongs to this system, if the log does not say whose it is. The log's first record counts.

    Raises:
        ConfigError: another system was first.
        LogError: the log does not take the record.
    """
    if owner(tool_log(settings, "up")) is None:
        identity = kept_id(settings.state) or str(uuid.uuid4())
        keep(settings.state, identity)
        _write(settings, identity)
    admit(settings)


def introduce(settings: Settings) -> None:
    """Write which system the log belongs to, if the log does not say it, for a command that only makes topics.

    It writes nothing where brokers authenticate: a user who may make topics there need not be allowed to write `plan`.

    Raises:
        LogError: the log does not take the record.
    """
    given = settings.kafka
    if given.security != "plaintext" or given.topics == "check" or owner(tool_log(settings, "topics")) is not None:
        return
    identity = kept_id(settings.state) or str(uuid.uuid4())
    with contextlib.suppress(ConfigError):  # a container's file system may be read-only, and nobody runs `up` there
        keep(settings.state, identity)
    _write(settings, identity)


def _write(settings: Settings, identity: str) -> None:
    system = System(
        id=identity,
        prefix=settings.kafka.prefix,
        made_us=time.time_ns() // 1000,
        by=f"{socket.gethostname()}:{settings.state.absolute()}",
    )
    write_plan(settings, {f"system/{identity}": Plan(version=VERSION, system=system)})


def _file(state: Path) -> Path:
    return state / "system"


def _refusal(settings: Settings, found: System, kept: str) -> str:
    made = datetime.fromtimestamp(found.made_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    own = f"of the system {kept}" if kept else "of no system yet"
    return (
        f"the log at {settings.kafka.servers} ([kafka] prefix = {settings.kafka.prefix!r}) is of another system: "
        f"{found.id}, made {made} by {found.by[:_SHOWN]!r}; {settings.state} is {own}. Nothing was started. Choose "
        "another [kafka] prefix for a system of its own; or, if this is that system and its state directory was lost, "
        "`tsunagi up --join`"
    )
