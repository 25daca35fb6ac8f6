"""The data of one slot on a node that all stages of its replica share.

A *Level-0-Ack* says that `recovered` has the outputs of all inputs below an offset. The *generation* is the number of
the slot's log: a new one begins when the log has lost records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tsunagi.runtime.messages import Level0Ack
from tsunagi.runtime.names import Name
from tsunagi.runtime.settings import Settings
from tsunagi.slot.deciding import MakeDeciders
from tsunagi.slot.models import LoadModel
from tsunagi.slot.ownership import Register
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act
from tsunagi.standby.batching import Batching
from tsunagi.standby.detector import Detector
from tsunagi.standby.intake import Intake
from tsunagi.standby.processor import Processor
from tsunagi.standby.queue import PendingQueue, SilentQueue
from tsunagi.standby.requests import Requests
from tsunagi.standby.speculation import Speculated
from tsunagi.standby.succession import Succession
from tsunagi.standby.trust import Trust

HELD_S = 3.0
"""A node counts as holding a slot if its last heartbeat says so and came within this time, seconds."""


class Shared:
    """The slot's state on this node, what was read of its log, and what is known of the other nodes.

    Args:
        slot_id: the slot.
        node: this node's name.
        wish: what the plan wishes for the slot.
        detector: tells which nodes live; all replicas of a node share it.
        load_model: returns the model that has this SHA-256.
        new_generation: draws the number of a new generation.
        make_deciders: makes the objects that decide for the slot while this node owns it.
        topic_id: the id of the topic `tuples`, as the cluster tells it; "" = not known.
        preparing: set once the slot's model in the plan is ready; None = nobody prepares it.
        record_s: seconds that processing a record takes, until it is measured.

    Attributes:
        coming: set once the model that the plan names now is ready; None = it is, or nobody prepares it.
        level0: the newest Level-0-Ack known; None = none.
        spare: whether the node has time to process records of this slot now, unless a promotion needs them.
        wall_us: the node's wall clock at its last turn, microseconds.
    """

    def __init__(
        self,
        slot_id: int,
        node: str,
        wish: Wish,
        settings: Settings,
        detector: Detector,
        load_model: LoadModel,
        new_generation: Callable[[], int],
        now: float,
        make_deciders: MakeDeciders = lambda _now, _announce: (),
        *,
        topic_id: str = "",
        preparing: threading.Event | None = None,
        record_s: float = 0.0,
    ) -> None:
        self.slot_id = slot_id
        self.node = node
        self.wish = wish
        self.settings = settings
        self.detector = detector
        self.new_generation = new_generation
        self.make_deciders = make_deciders
        self.preparing = preparing
        self.coming = preparing
        self.intake = Intake(wish.tuples_per_batch)
        self.processor = Processor(slot_id, load_model, self.intake, record_s, now)
        self.succession = Succession(node, self.intake, now)
        self.silent = SilentQueue()
        self.pending = PendingQueue()
        self.trust = Trust(now, topic_id)
        self.batching = Batching(settings.standby, slot_id, stepwise=settings.paper.batch_steps)
        self.requests = Requests()
        self.speculated = Speculated()
        self.level0: Level0Ack | None = None
        self.spare = True
        self.wall_us = 0

    @property
    def slot(self) -> Slot:
        """The slot's state."""
        return self.processor.slot

    @property
    def scan(self) -> Register:
        """The slot's ownership, as of the last record that was read."""
        return self.intake.scan

    @property
    def lag(self) -> int:
        """How many records of the log are not processed yet, as far as the log's end is known."""
        return max(0, max(self.intake.end, self.intake.scanned) - self.slot.position)

    @property
    def differs(self) -> bool:
        """Whether this node's settings differ from those in the slot's log, so that its outputs would differ, too."""
        return bool(self.slot.settings.hash) and self.slot.settings.hash != self.wish.config.hash

    @property
    def doubted(self) -> bool:
        """Whether the log is not the one that was read, or has lost its beginning and there is no context."""
        return bool(self.trust.contradiction) or self.trust.blank

    def moving(self) -> bool:
        """Return whether the plan wishes that this node takes over from an owner that lives."""
        wish = self.wish
        return wish.move and wish.owner == self.node and self.succession.owner not in ("", self.node)

    def held(self, now: float) -> bool:
        """Return whether another node says that it is ready, as the slot's owner or as a standby with its state."""
        return any(
            part.slot == self.slot_id and part.ready and not beat.leaving
            for node, beat in self.detector.beats().items()
            if self.detector.age(node, now) < HELD_S
            for part in beat.slots
        )

    def read_tail(self) -> act.ReadTail:
        """Return the request for the last output in `recovered`.

        It also asks whether the last output that the newest Level-0-Ack names is still there.
        """
        level0, generation = self.level0, self.scan.generation
        if level0 is None or level0.generation != generation or not level0.recovered_end:
            return act.ReadTail(generation)
        acknowledged = Name(level0.last_offset, level0.last_index)
        return act.ReadTail(generation, acknowledged=acknowledged, end=level0.recovered_end)

    def trim(self) -> None:
        """Forget the unwritten outputs that the newest Level-0-Ack covers.

        An ack of an earlier generation does not count: its offsets mean other records than those in the queue.
        """
        level0 = self.level0
        if level0 is not None and (level0.generation == self.scan.generation or level0.epoch > self.scan.epoch):
            self.silent.trim(level0.offset)

    def forget(self, begin: int) -> None:
        """Forget the state and what was read, and begin at the record at this offset."""
        self.processor.forget(begin)
        self.intake.begin_at(begin)
        self.silent.clear(begin)
        self.pending.lost = None
