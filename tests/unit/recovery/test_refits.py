"""Which refits go: those that nobody used for long, by a time that wall clocks do not move."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tsunagi.recovery import refits

KEPT_S = 1000.0
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


class Machine:
    """A clock and a boot; `make` puts a refit into the store."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now_s = 5.0
        self._boot = folder.parent / "boot_id"
        self.boot("first")
        monkeypatch.setattr(refits, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(refits, "_BOOT_ID", self._boot)

    def boot(self, name: str) -> None:
        self._boot.write_text(f"{name}\n")

    def make(self, sha256: str) -> None:
        (self.folder / f"{sha256}.model").write_bytes(b"")
        refits.tidy(self.folder, sha256, KEPT_S)

    def there(self) -> set[str]:
        return {path.stem for path in self.folder.glob("*.model")}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    folder = tmp_path / "refits"
    folder.mkdir()
    return Machine(folder, monkeypatch)


def test_what_was_not_used_for_long_goes_and_what_is_in_force_stays_however_old(machine: Machine) -> None:
    machine.make(A)
    machine.make(B)
    for _ in range(10):
        machine.now_s += KEPT_S / 2
        refits.renew(machine.folder, [A, "0" * 64])
    machine.make(C)
    assert machine.there() == {A, C}


def jump_forward(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    real_s = time.time()
    monkeypatch.setattr("time.time", lambda: real_s + 15 * 86400)


def files_of_a_wrong_clock(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    for path in machine.folder.glob("*.model"):
        os.utime(path, (1.0, 1.0))


def another_boot(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    machine.boot("second")
    machine.now_s = 1e9


def a_clock_that_runs_back(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    machine.now_s = 0.0


def a_damaged_ledger(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (machine.folder / refits.LEDGER).write_text('{"now_s": 1e12, "machines": {}, "used": []}')


def a_ledger_that_is_gone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (machine.folder / refits.LEDGER).unlink()


@pytest.mark.parametrize(
    "trouble",
    [
        jump_forward,
        files_of_a_wrong_clock,
        another_boot,
        a_clock_that_runs_back,
        a_damaged_ledger,
        a_ledger_that_is_gone,
    ],
)
def test_no_jump_and_no_damage_deletes_and_time_goes_on_after_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Machine, pytest.MonkeyPatch], None]
) -> None:
    machine.make(A)
    machine.now_s += KEPT_S / 10
    machine.make(B)
    trouble(machine, monkeypatch)
    machine.make(C)
    assert machine.there() == {A, B, C}
    for _ in range(4):
        machine.now_s += KEPT_S / 2
        machine.make(C)
    assert machine.there() == {C}


def test_machines_add_their_time_once(machine: Machine) -> None:
    machine.make(A)
    start_s = machine.now_s
    for turn in range(18):  # two machines by turns, whose clocks show what they like
        machine.boot(f"machine {turn % 2}")
        machine.now_s = start_s + turn % 2 * 1e8 + turn * KEPT_S / 20
        machine.make(B)
    assert machine.there() == {A, B}


def test_a_process_that_hangs_with_the_ledger_holds_up_nobody(machine: Machine) -> None:
    machine.make(A)
    with (machine.folder / f".{refits.LEDGER}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        machine.now_s += 2 * KEPT_S
        refits.renew(machine.folder, [A])
        machine.make(B)
    assert machine.there() == {A, B}
    machine.make(C)
    assert machine.there() == {B, C}
