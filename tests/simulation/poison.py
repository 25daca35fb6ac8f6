"""Operators with bugs in them: one dies of a value, one of writing its state down. And records that nobody can use."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import numpy as np
from google.protobuf.message import DecodeError, Message

from tests.fuzz.messages import KINDS, record_like
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import VERSION
from tsunagi.runtime.ranges_check import fault
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import Frame, Stateless

DEADLY = 1e6
"""A reading of this or more kills whoever processes it. Each such record has a reading of its own."""

UNWRITABLE = -1e6
"""A reading of this or less cannot be written into a context while it is among the last `KEPT` frames."""

KEPT = 10

_armed = False


class Killed(BaseException):
    """The process is gone, in the middle of whatever it did."""


class Poisoned(Killed):
    """It died of a reading, `value`."""

    def __init__(self, value: float) -> None:
        super().__init__(f"died of the reading {value:.0f}")
        self.value = value


@contextlib.contextmanager
def armed() -> Iterator[None]:
    """Let the operators' bugs strike: in workers, not in whoever computes afterwards what should have come out."""
    global _armed  # noqa: PLW0603 - operators are made by name, and know nothing of who runs them
    _armed = True
    try:
        yield
    finally:
        _armed = False


class KillOn(Stateless):
    """Passes every frame on; kills its process on a deadly reading."""

    def __init__(self, config: SlotConfig) -> None:
        del config

    def process(self, frame: Frame) -> Sequence[Frame]:
        if _armed and frame.mean.size and (most := float(np.fmax.reduce(frame.mean))) >= DEADLY:
            raise Poisoned(most)
        return (frame,)


class WedgeOn:
    """Passes every frame on; fails to write its state down while an unwritable reading is in it."""

    def __init__(self, config: SlotConfig) -> None:
        del config
        self._left = 0  # frames until the reading is out of the state

    def process(self, frame: Frame) -> Sequence[Frame]:
        met = frame.mean.size and float(np.fmin.reduce(frame.mean)) <= UNWRITABLE
        self._left = KEPT if met else max(0, self._left - 1)
        return (frame,)

    def context(self) -> bytes:
        if self._left and _armed:
            raise OverflowError("int too large to convert")  # as an operator's bug would say
        return bytes([self._left])

    def restore(self, context: bytes) -> None:
        (self._left,) = context


OPERATORS = tuple({"use": f"{__name__}:{kind.__name__}"} for kind in (KillOn, WedgeOn))


def unusable(draw: random.Random, topic: str, there: list[Record]) -> tuple[bytes | None, bytes | None]:
    """Return (key, value) of a record that no reader of a topic in which these stand can use.

    It is one of them with fields or bits changed, or one that no service writes. What a reader can use after such a
    change is a forgery, and is not drawn: without signatures nobody could tell it from what its author has written.
    """
    control = [record for record in there if (record.key or b"").startswith(b"!")]  # few, and of many kinds
    pool = control if control and draw.random() < 0.5 else there
    for _ in range(200):
        key, value = record_like(draw, topic, pool)
        if _refused(KINDS[topic], value):
            return key, value
    return None, b"\xff"


def _refused(kind: type[Message], value: bytes | None) -> bool:
    """Return whether the door must refuse these bytes; the door itself may be what a test has broken."""
    try:
        message = kind.FromString(value or b"")
    except DecodeError:
        return True
    return getattr(message, "version", VERSION) > VERSION or bool(fault(message))
