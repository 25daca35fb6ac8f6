"""Writing to `plan` by hand: what commands ask of a running system."""

from __future__ import annotations

from collections.abc import Mapping

from services.local.topics import tool_log
from services.runtime.log import PLAN, LogError
from services.runtime.messages import Plan
from services.runtime.settings import Settings

_SEND_S = 10.0


def write_plan(settings: Settings, records: Mapping[str, Plan]) -> None:
    """Append records, by key.

    Raises:
        LogError: the broker does not take one.
    """
    producer = tool_log(settings, "plan").producer()
    failed: list[LogError] = []

    def delivered(error: LogError | None, _offset: int) -> None:
        if error is not None:
            failed.append(error)

    try:
        for key, plan in records.items():
            producer.send(PLAN, 0, key.encode(), plan.SerializeToString(), delivered)
        left = producer.flush(_SEND_S)
    except LogError:
        if failed:  # what the broker said of the record tells more than that the producer has ended
            raise failed[0] from None
        raise
    finally:
        producer.close()
    if failed:
        raise failed[0]
    if left:
        raise LogError(f"plan: the broker did not take {left} of {len(records)} records within {_SEND_S:g} s")
