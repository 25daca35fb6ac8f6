"""`tsunagi standby`: changes the batch size, the policy or the limit of slots' secondaries while they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from tsunagi.runtime.messages import VERSION, Plan, StandbyTarget
from tsunagi.runtime.settings import Settings, Target
from tsunagi.system.plan import Write, write_plan
from tsunagi.system.topics import quiet_log


class TargetError(ValueError):
    """A value that is asked for is impossible."""


def ask(
    settings: Settings,
    slots: Sequence[int],
    fields: dict[str, Any],
    tell: Callable[[str], None],
    write: Write | None = None,
) -> None:
    """Write the targets of slots' secondaries to `plan`; a field that is not given is as the settings say.

    Args:
        slots: the slots to change; empty means all.
        fields: fields of `Target`; if empty, all are again as the settings say.
        write: writes the records; None = to the log.

    Raises:
        TargetError: a slot or a value is impossible.
        LogError: the broker does not take the record.
    """
    count = quiet_log(settings, "standby").with_slots(settings).slots.count
    for slot in slots:
        if not 0 <= slot < count:
            raise TargetError(f"--slot: found {slot}, expected 0 to {count - 1}")
    wanted = [(slot, _merged(settings.standby.target(slot), fields)) for slot in slots or range(count)]
    (write or write_plan)(
        settings, {f"target/{slot}": Plan(version=VERSION, target=_message(slot, fields)) for slot, _ in wanted}
    )
    for slot, target in wanted:
        tell(
            f"slot {slot}: batch size {target.batch_size}, policy {target.policy}, at most {target.max_bandwidth:g} "
            f"bytes/s and {target.max_recovery_s:g} s, priority {target.priority}"
        )


def _merged(target: Target, fields: dict[str, Any]) -> Target:
    try:
        return Target(**target.model_dump() | fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = "--" + str(first["loc"][0]).replace("_", "-").removesuffix("-s")
        raise TargetError(f"{where}: found {first['input']!r}: {first['msg']}") from None


def _message(slot: int, fields: dict[str, Any]) -> StandbyTarget:
    batch = fields.get("batch_size")
    if batch is not None:
        fields = fields | {"batch_size": 0 if batch == "inf" else batch}
    return StandbyTarget(slot=slot, as_configured=not fields, **fields)
