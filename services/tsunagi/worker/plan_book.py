"""What a worker needs of the topic `plan`: the slots of sensors, the workers of slots, and the targets in force."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from structlog.stdlib import BoundLogger

from tsunagi.recovery.store import has_model
from tsunagi.runtime import columns
from tsunagi.runtime.fleet_table import unpack_or_none
from tsunagi.runtime.messages import (
    Assignment,
    HelperRequest,
    ModelTarget,
    Placement,
    Plan,
    QueryChange,
    RecoveryTarget,
    StandbyTarget,
)
from tsunagi.runtime.moving import SensorSlots
from tsunagi.runtime.plan import MOVE, Words
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings, Target
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import build_chain
from tsunagi.slot.wish import Wish
from tsunagi.standby.target import read_target
from tsunagi.worker.recovery_target import with_target

if TYPE_CHECKING:
    from tsunagi.slot.stream import Statements


class PlanBook:
    """Keeps the newest record of each kind.

    Args:
        auth: names the keys that verify the slots' logs; "" = they are not verified.
        model_sha256: SHA-256 of the recovery model that the settings name; "" = none.

    Attributes:
        placement: the slot of each sensor; None = `plan` does not say it yet.
        words: which records of `plan` are in force.
        table: the sensors table in force; until `plan` has one, that of the file.
        table_serial: the serial number of its record; 0 = it is that of the file.
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
        self.table = table
        self.table_serial = 0
        self._logger = logger
        self._auth = auth
        self._model_sha256 = model_sha256
        self._sound: set[str] = set()  # hashes of configurations whose operators can be made
        self._assignments: dict[int, Assignment] = {}  # of the slots that were ever this node's, by slot
        self._targets: dict[int, StandbyTarget] = {}
        self._requests: dict[int, HelperRequest] = {}
        self._recovery: RecoveryTarget | None = None
        self._model: ModelTarget | None = None
        self._queries: dict[str, QueryChange] = {}  # what users have added to the running system, by name
        self._statements = _read_statements(settings) if settings.query.files else None
        self._texts: tuple[str, ...] = () if self._statements is None else self._statements.texts({})[0]
        self._fills: tuple[tuple[str, int], ...] = ()

    def on_plan(self, plan: Plan, offset: int) -> bool:
        """Take in the record at this offset of `plan`; return whether it changes anything.

        Raises:
            SensorsError: the placement was made for another fleet.
        """
        if not self.words.take(plan, offset):
            return False
        kind = plan.WhichOneof("body")
        if kind == "placement":
            self.table.check_placed(len(columns.sensors(plan.placement.slot)), plan.placement.table_sha256)
            self.placement = plan.placement
        elif kind == "table":
            table = unpack_or_none(plan.table, self._logger)
            if table is not None:
                self.table, self.table_serial = table, plan.serial
        elif kind == "assignment":
            self._on_assignment(plan.assignment)
        elif kind == "target":
            self._targets[plan.target.slot] = plan.target
        elif kind == "recovery":
            self._recovery = plan.recovery
        elif kind == "model":
            self._model = plan.model
        elif kind == "helpers":
            self._requests[plan.helpers.slot] = plan.helpers
        elif kind == "query":
            self._on_query(plan.query)
        return True

    def _on_assignment(self, assignment: Assignment) -> None:
        """Keep an assignment if it concerns this node: a large fleet has many thousands of others."""
        if assignment.slot in self._assignments or self._node in (assignment.owner, assignment.secondary):
            self._assignments[assignment.slot] = assignment

    def _on_query(self, change: QueryChange) -> None:
        """Take in a statement that was added or dropped; one that cannot run is logged and left out."""
        if self._settings.query.mode != "tuples":
            return  # the Spark job runs it
        self._queries.pop(change.name, None)
        if change.text:
            self._queries[change.name] = change
        if self._statements is None:
            self._statements = _read_statements(self._settings)
        refused: dict[str, str] = {}
        if self._statements is not None:
            added = {name: item.text for name, item in self._queries.items()}
            self._texts, refused = self._statements.texts(added)
        # Operators have states, which the past would have to go through as well.
        filled = {} if self._settings.query.chain else self._queries
        self._fills = tuple((name, item.from_us) for name, item in sorted(filled.items()) if item.from_us)
        if change.name in refused:
            self._logger.warning("a query does not run", query=change.name, reason=refused[change.name])

    def wishes(self, slot: int | None = None) -> Iterator[tuple[Assignment, Wish]]:
        """Yield each assignment that names this node, with what the node would compute for the slot.

        Args:
            slot: the only slot whose assignment is looked at; None = all are.

        Raises:
            OperatorError: an operator cannot be made. Such settings must not get into a slot's log.
        """
        mine = [
            assignment
            for of_slot, assignment in self._assignments.items()
            if slot in (None, of_slot) and self._node in (assignment.owner, assignment.secondary)
        ]
        if self.placement is None or not mine:
            return
        slots, model_sha256 = SensorSlots.of(self.placement), self._model_in_force()
        settings = with_target(self._settings, self._recovery, self._logger)
        for assignment in mine:
            config = SlotConfig.make(
                settings,
                self.table,
                slots,
                assignment.slot,
                auth=self._auth,
                statements=self._texts,
                fills=self._fills,
                changeable=self.table_serial > 0,
            )
            requested = self._requests.get(assignment.slot)
            if config.hash not in self._sound:
                build_chain(config, None)
                self._sound.add(config.hash)  # once: making operators may take long, and `plan` changes often
            yield (
                assignment,
                Wish(
                    config=config,
                    model_sha256=model_sha256,
                    owner=assignment.owner,
                    groups=tuple(self.table.sensors[sensor].group for sensor in config.sensors),
                    move=assignment.reason == MOVE,
                    table=self.table,
                    helpers=settings.recovery.helpers,
                    requested=() if requested is None else tuple(columns.sensors(requested.sensor).tolist()),
                ),
            )

    def _model_in_force(self) -> str:
        """Return the SHA-256 of the model that `plan` names, or else of the one that the settings name.

        A model that the store lacks must not get into a slot's log, since no replica could go on behind it.
        """
        asked = self._model
        if asked is None or asked.as_configured or not asked.sha256:
            return self._model_sha256
        if has_model(self._settings.recovery.store, asked.sha256):
            return asked.sha256
        self._logger.warning(
            "a model is not in the store", sha256=asked.sha256, store=str(self._settings.recovery.store)
        )
        return self._model_sha256

    def target(self, slot: int) -> Target | None:
        """Return the policy and limits that a user asked for the slot's secondary; None = those of the settings."""
        asked = self._targets.get(slot)
        return None if asked is None else read_target(asked, self._settings.standby, self._logger)

    def given_away(self, slot: int) -> Assignment | None:
        """Return the assignment of a slot that was this node's and is another's now; None = this node may be needed."""
        assignment = self._assignments.get(slot)
        if assignment is None or not assignment.owner or self._node in (assignment.owner, assignment.secondary):
            return None
        return assignment


def _read_statements(settings: Settings) -> Statements | None:
    """Return what slots are asked; None = nothing, since the Spark job is."""
    if settings.query.mode != "tuples":
        return None
    from tsunagi.slot.stream import Statements  # CQL's parser: most workers do not need it

    return Statements(settings)
