"""Follows `plan`: the limits of standbys, the helpers that slots ask for, and what operators have done."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from structlog.stdlib import BoundLogger

from tsunagi.console.history import number
from tsunagi.runtime.columns import sensors
from tsunagi.runtime.log import PLAN, Log, Position, Record
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import HelperRequest, Plan
from tsunagi.runtime.plan import Words
from tsunagi.runtime.settings import Settings, Target
from tsunagi.standby.target import read_target

READ_S = 0.5
"""Longest wait of a read, in seconds."""
READ_RECORDS = 500
"""Most records that one read returns."""
KEPT_ACTS = 50
"""Number of acts that are shown, the newest."""


class Wishes:
    """What stands in `plan`, for the pages; may be used by several threads."""

    def __init__(self, settings: Settings, logger: BoundLogger) -> None:
        self._settings = settings
        self._logger = logger
        self._lock = threading.Lock()
        self._targets: dict[int, Target | None] = {}
        self._requests: dict[int, HelperRequest] = {}
        self._acts: deque[dict[str, Any]] = deque(maxlen=KEPT_ACTS)
        self._slot_of: NDArray[np.uint32] = np.empty(0, dtype=np.uint32)

    def take(self, plan: Plan) -> None:
        """Take in a record that is in force."""
        with self._lock:
            match plan.WhichOneof("body"):
                case "target":
                    self._targets[plan.target.slot] = read_target(plan.target, self._settings.standby, self._logger)
                case "helpers":
                    self._requests[plan.helpers.slot] = plan.helpers
                case "placement":
                    self._slot_of = sensors(plan.placement.slot)
                case "act":
                    act = plan.act
                    self._acts.appendleft({"by": act.by, "what": act.what, "at_us": act.at_us})

    def limits(self, slot: int) -> Mapping[str, float | None]:
        """Return what the standby of a slot may cost: bytes/s, and seconds of recovery; None = there is no limit."""
        with self._lock:
            target = self._targets.get(slot) or self._settings.standby.target(slot)
        return {"max_bandwidth": number(target.max_bandwidth), "max_recovery_s": number(target.max_recovery_s)}

    def helpers(self, sensor: int) -> list[int]:
        """Return the sensors of other slots that the slot of a sensor asks for at present."""
        with self._lock:
            if sensor >= len(self._slot_of):
                return []
            asked = self._requests.get(int(self._slot_of[sensor]))
        return [] if asked is None else [int(item) for item in sensors(asked.sensor)]

    def acts(self) -> list[dict[str, Any]]:
        """Return what operators have done, the newest first."""
        with self._lock:
            return list(self._acts)


class WishesFollower:
    """A follower (`tsunagi.console.following`) of `plan`, from its beginning on."""

    def __init__(self, log: Log, wishes: Wishes, logger: BoundLogger) -> None:
        self._wishes = wishes
        self._logger = logger
        self._words = Words()
        self._reader = log.reader()
        first, _ = self._reader.range(PLAN, 0)
        self._reader.assign([Position(PLAN, 0, first)])

    def turn(self) -> None:
        for record in self._reader.read(READ_RECORDS, READ_S):
            self._take(record)

    def _take(self, record: Record) -> None:
        plan = read_message(Plan, record, self._logger) if record.value is not None else None
        if plan is not None and self._words.take(plan, record.offset):
            self._wishes.take(plan)

    def close(self) -> None:
        self._reader.close()
