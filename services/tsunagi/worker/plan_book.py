"""What `plan` says, as far as a worker goes by it: where sensors belong, who should have which slot, and how."""

from __future__ import annotations

from collections.abc import Iterator

from structlog.stdlib import BoundLogger

from tsunagi.runtime import columns
from tsunagi.runtime.messages import Assignment, HelperRequest, Placement, Plan, RecoveryTarget, StandbyTarget
from tsunagi.runtime.plan import MOVE, Words
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings, Target
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import build_chain
from tsunagi.slot.wish import Wish
from tsunagi.standby.target import read_target
from tsunagi.worker.recovery_target import with_target


class PlanBook:
    """The newest of each kind.

    Args:
        auth: which keys the slots' logs are verified with.
        model_sha256: the recovery model that this worker would put in force.

    Attributes:
        placement: where sensors belong; None = nobody has said yet.
        words: which records are in force.
    """

    def __init__(
        self,
        settings: Settings,
        node: str,
        table: SensorTable,
        logger: BoundLogger,
        *,
        auth: str = "",
        model_sha256: str = "",
    ) -> None:
        self.placement: Placement | None = None
        self.words = Words()
        self._settings = settings
        self._node = node
        self._table = table
        self._logger = logger
        self._auth = auth
        self._model_sha256 = model_sha256
        self._sound: set[str] = set()  # hashes of configurations whose operators can be made
        self._assignments: dict[int, Assignment] = {}
        self._targets: dict[int, StandbyTarget] = {}
        self._requests: dict[int, HelperRequest] = {}
        self._recovery: RecoveryTarget | None = None

    def take_in(self, plan: Plan, offset: int) -> bool:
        """Take in a record that stands at this offset; return whether it says anything new.

        Raises:
            SensorsError: the placement is of another sensors table.
        """
        if not self.words.take(plan, offset):
            return False
        kind = plan.WhichOneof("body")
        if kind == "placement":
            self._table.check_placed(len(columns.sensors(plan.placement.slot)), plan.placement.table_sha256)
            self.placement = plan.placement
        elif kind == "assignment":
            self._assignments[plan.assignment.slot] = plan.assignment
        elif kind == "target":
            self._targets[plan.target.slot] = plan.target
        elif kind == "recovery":
            self._recovery = plan.recovery
        elif kind == "helpers":
            self._requests[plan.helpers.slot] = plan.helpers
        return True

    def wishes(self) -> Iterator[tuple[Assignment, Wish]]:
        """Yield the assignments that name this node, with what it would compute.

        Raises:
            OperatorError: an operator that cannot be made must not get into a slot's log.
        """
        if self.placement is None:
            return
        placed = columns.sensors(self.placement.slot)
        settings = with_target(self._settings, self._recovery, self._logger)
        for assignment in self._assignments.values():
            if self._node not in (assignment.owner, assignment.secondary):
                continue
            config = SlotConfig.make(settings, self._table, placed, assignment.slot, auth=self._auth)
            requested = self._requests.get(assignment.slot)
            if config.hash not in self._sound:
                build_chain(config, None)
                self._sound.add(config.hash)  # to make operators may take long, and the plan changes at every takeover
            yield (
                assignment,
                Wish(
                    config=config,
                    model_sha256=self._model_sha256,
                    owner=assignment.owner,
                    groups=tuple(self._table.sensors[sensor].group for sensor in config.sensors),
                    move=assignment.reason == MOVE,
                    table=self._table,
                    helpers=settings.recovery.helpers,
                    requested=() if requested is None else tuple(columns.sensors(requested.sensor).tolist()),
                ),
            )

    def target(self, slot: int) -> Target | None:
        """Return what somebody asks of the slot's secondary; None = what the settings say."""
        asked = self._targets.get(slot)
        return None if asked is None else read_target(asked, self._settings.standby, self._logger)

    def given_away(self, slot: int) -> Assignment | None:
        """Return the slot's assignment if it names others only; None = this node may still be needed."""
        assignment = self._assignments.get(slot)
        if assignment is None or not assignment.owner or self._node in (assignment.owner, assignment.secondary):
            return None
        return assignment
