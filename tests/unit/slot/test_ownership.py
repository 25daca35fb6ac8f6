"""Who owns a slot: the rule of epochs, in log order."""

from __future__ import annotations

import pytest

from tsunagi.runtime.messages import Founding, LogRecord, Ownership
from tsunagi.slot.ownership import CONTROL, Register


def claim(epoch: int, node: str, generation: int = 1, first_step: int = 5) -> LogRecord:
    return LogRecord(ownership=Ownership(epoch=epoch, node=node, generation=generation, first_step=first_step))


def test_a_claim_counts_only_if_it_is_the_next_epoch() -> None:
    register = Register()
    assert not register.read(0, claim(2, "early"))
    assert register.read(1, claim(1, "a"))
    assert not register.read(2, claim(1, "second"))
    assert not register.read(3, claim(3, "ahead"))
    assert register.read(4, claim(2, "b"))
    assert (register.epoch, register.owner, register.at) == (2, "b", 4)
    assert register.void == 3


def test_the_first_owner_alone_chooses_generation_and_first_step() -> None:
    register = Register()
    register.read(0, claim(1, "a", generation=7, first_step=100))
    register.read(1, claim(2, "b", generation=8, first_step=200))
    assert (register.generation, register.first_step) == (7, 100)


@pytest.mark.parametrize("kind", sorted(CONTROL))
def test_a_control_record_counts_in_its_own_epoch_alone(kind: str) -> None:
    register = Register()
    message = LogRecord()
    getattr(message, kind).SetInParent()
    assert register.read(0, message)  # epoch 0, like the register's
    register.read(1, claim(1, "a"))
    assert not register.read(2, message)
    getattr(message, kind).epoch = 1
    assert register.read(3, message)
    getattr(message, kind).epoch = 2
    assert not register.read(4, message)
    assert register.void == 2


def test_a_slot_whose_generation_is_not_known_has_that_of_the_next_claim() -> None:
    register = Register(epoch=3, generation=0)
    register.read(0, claim(4, "a", generation=1, first_step=100))
    register.read(1, claim(5, "b", generation=2, first_step=200))
    assert (register.generation, register.first_step) == (1, 100)


def test_a_control_record_that_is_appended_again_or_comes_late_is_void() -> None:
    def leave(serial: int) -> LogRecord:
        return LogRecord(serial=serial, edge_out={"epoch": 1, "edge": "e"})

    register = Register()
    signed = claim(1, "a")
    signed.serial = 4
    assert register.read(0, signed)
    counted = [register.read(offset, leave(serial)) for offset, serial in enumerate((4, 5, 5, 3, 9, 6), 1)]
    assert counted == [False, True, False, False, True, False]
    assert register.void == 4
    assert register.read(9, claim(2, "b"))  # its epoch begins with its own serials
    assert register.serial == 0


def test_what_is_lost_is_said_in_words() -> None:
    register = Register(generation=10)
    assert register.declared == ""
    register.founding = Founding(begin=3, lost_from=3, lost_to=9, reason="power")
    assert register.declared == "generation a begins at offset 3: power; records 3..8 are lost"
    register.founding = Founding(begin=3, lost_from=3, lost_to=3, reason="power")
    assert register.declared.endswith("what is lost is not known")


def test_batches_always_count_and_quarantines_are_remembered() -> None:
    register = Register()
    register.read(0, claim(1, "a"))
    assert register.read(1, LogRecord(batch={"edge": "e"}))
    register.read(2, LogRecord(quarantine={"epoch": 1, "offset": 40}))
    register.read(3, LogRecord(quarantine={"epoch": 0, "offset": 41}))
    copy = register.copy()
    copy.quarantined.add(42)
    assert register.quarantined == {40}
