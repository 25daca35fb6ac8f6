"""A slot with its owner: steps come in, and what the owner decides stands in the log at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from tests.unit.hashes import SHA
from tests.unit.slot import small_slot
from tests.unit.slot.small_slot import EDGES, FIRST, GENERATION, SENSORS, SLOT, owned, play
from tsunagi.owner.deciders import make_deciders
from tsunagi.recovery.filter import Recovery as Filter
from tsunagi.recovery.model import Model
from tsunagi.runtime.log import RECOVERED, Record
from tsunagi.runtime.messages import LogRecord, Recovered
from tsunagi.runtime.names import NO_NAME
from tsunagi.runtime.settings import RecoverySettings, Settings
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.deciding import Decider, OwnerView
from tsunagi.slot.operators import Chain
from tsunagi.slot.outputs import Output
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act
from tsunagi.standby.primary import Primary
from tsunagi.standby.queue import PendingQueue

D = TypeVar("D", bound=Decider)


def filter_of(slot: Slot) -> Filter:
    """Return the filter of a slot that recovers by a model."""
    assert slot.recover is not None
    assert slot.recover.recovery is not None
    return slot.recover.recovery


class Owner:
    """The owner of a slot that has a model.

    Attributes:
        step: the next one.
        now: the owner's clock, in seconds.
        made: the records of `recovered`.
        outputs: all that came of the log, in order.
        decided: what the owner has decided of the kinds in `READ_BACK`, read back or not.
        reads_back: what it decides stands in the log at once.
        announced: operations of the long work that it has announced.
    """

    READ_BACK: frozenset[str]
    """Kinds of control records that a test is about: no others come into the log."""

    def __init__(self, wish: Wish, recovery: RecoverySettings) -> None:
        self.wish = wish
        self.settings = Settings(recovery=recovery)
        self.writer = owned(wish.config)
        self.writer.model(SHA)
        self.slot = Slot(SLOT, self.load)
        play(self.slot, self.writer.records)
        self.step, self.now = FIRST, 0.0
        self.made: list[Record] = []
        self.outputs: list[Output] = []
        self.decided: list[LogRecord] = []
        self.reads_back = True
        self.announced: list[float] = []
        self.take_over()

    @property
    def config(self) -> SlotConfig:
        return self.wish.config

    @property
    def chain(self) -> Chain:
        assert self.slot.chain is not None
        return self.slot.chain

    def load(self, sha256: str) -> Model:
        return small_slot.load(sha256)

    def take_over(self, node: str = "n1") -> None:
        """Begin a term."""
        self.deciders = make_deciders(self.settings, self.now, self.announced.append)
        self.primary = Primary(SLOT, node, self.settings, PendingQueue(), NO_NAME, self.now, self.deciders)

    def decider(self, kind: type[D]) -> D:
        """Return the present term's decider of a kind; there must be one."""
        (found,) = (decider for decider in self.deciders if isinstance(decider, kind))
        return found

    def step_with(self, values: Sequence[float], dead: str = "") -> list[Recovered]:
        """Play a step in which the sensors read these values, and one edge may be dead."""
        told = dict(zip(self.config.sensors, values, strict=True))
        return self.play_step(
            self.writer.out(edge, self.step)
            if edge == dead
            else self.writer.batch(edge, self.step, {sensor: told[sensor] for sensor in SENSORS[edge]})
            for edge in EDGES
        )

    def play_step(self, records: Iterable[Record]) -> list[Recovered]:
        """Play the records of a step, and let the owner decide; return the values of `recovered`."""
        outputs = [output for record in records for output in self.process(record)]
        made = [output.encode(SLOT, GENERATION) for output in outputs if output.topic == RECOVERED]
        self.made += [Record(RECOVERED, SLOT, len(self.made) + i, 0, *pair) for i, pair in enumerate(made)]
        self.step += 1
        self.now += 0.2
        self.writer.now_us = self.step * self.config.slide_us
        for action in self.primary.decide(self.view()):
            self.carry_out(action)
        return [Recovered.FromString(value) for _, value in made]

    def process(self, record: Record) -> list[Output]:
        """Apply a record of the log, and write what follows from it."""
        found = list(self.slot.apply(record))
        self.outputs += found
        self.primary.emit(found)
        return found

    def view(self) -> OwnerView:
        return OwnerView(self.slot, self.wish, self.now)

    def carry_out(self, action: act.Action) -> None:
        if isinstance(action, act.Append) and action.record.WhichOneof("body") in self.READ_BACK:
            self.decided.append(action.record)
            if self.reads_back:
                self.slot.apply(self.writer.raw(action.record.SerializeToString()))
