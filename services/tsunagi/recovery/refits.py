"""Which refits may be removed from the store: those long unused, by a time that no wall clock can make jump.

A ledger beside the refits says when each of them was last used (made, loaded, or in force: `renew`), in the store's own
time. That time passes with the monotonic clocks of the machines that use the store: each machine adds what has passed
on its own clock since its last entry. So a clock that was set wrong, a restored backup or a machine that was off
removes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

LEDGER = "ledger.json"
"""Name of the ledger's file."""
_MACHINES = 64
"""Most machines that the ledger remembers. A machine that it has forgotten adds nothing to the store's time at its next
use."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File of the kernel that identifies a machine and its present boot, with which the monotonic clock began."""


class RefitLedger:
    """The ledger of one store; one process at a time holds it.

    Attributes:
        now_s: the store's time, in seconds.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LEDGER
        self._used: dict[str, float] = {}
        self._machines: dict[str, tuple[float, float]] = {}  # boot id -> (its monotonic seconds, the store's time then)
        self.now_s = 0.0
        # A ledger that is missing or damaged begins anew: every refit then counts as used just now.
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
            table = json.loads(self._path.read_text(encoding="utf-8"))
            used = {str(sha256): float(at_s) for sha256, at_s in table["used"].items()}
            machines = {str(boot): (float(here), float(at_s)) for boot, (here, at_s) in table["machines"].items()}
            self._used, self._machines, self.now_s = used, machines, float(table["now_s"])
        boot, here_s = _BOOT_ID.read_text(encoding="ascii").strip(), time.monotonic()
        known = self._machines.pop(boot, None)
        if known is not None:
            self.now_s = max(self.now_s, known[1] + here_s - known[0])
        self._machines[boot] = here_s, self.now_s
        present = {path.stem for path in folder.glob("*.model")}
        self._used = {sha256: self._used.get(sha256, self.now_s) for sha256 in present}

    def use(self, sha256: str) -> None:
        """Take note that a refit is used now."""
        if sha256 in self._used:
            self._used[sha256] = self.now_s

    def unused(self, for_s: float) -> list[str]:
        """Return the SHA-256 of each refit that has not been used for longer than `for_s` seconds."""
        return [sha256 for sha256, at_s in self._used.items() if self.now_s - at_s > for_s]

    def save(self) -> None:
        """Replace the file."""
        machines = dict(list(self._machines.items())[-_MACHINES:])
        draft = self._path.with_suffix(f".{os.getpid()}.part")
        draft.write_text(json.dumps({"now_s": self.now_s, "machines": machines, "used": self._used}), encoding="utf-8")
        draft.replace(self._path)


@contextlib.contextmanager
def ledger(folder: Path) -> Iterator[RefitLedger]:
    """Read the ledger, and replace its file at the end.

    Raises:
        OSError: it cannot be read or written, or another process holds it. That process may hang, so nobody waits for
            it.
    """
    with (folder / f".{LEDGER}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = RefitLedger(folder)
        yield held
        held.save()


def renew(folder: Path, used: Iterable[str]) -> None:
    """Note that refits are in force. If the store is read-only or busy, another worker or the next call will do it."""
    with contextlib.suppress(OSError), ledger(folder) as held:
        for sha256 in used:
            held.use(sha256)


def tidy(folder: Path, made: str, kept_s: float) -> None:
    """Add a new refit, and remove those not used for `kept_s` seconds; if the ledger is busy, the next call does it."""
    with contextlib.suppress(OSError), ledger(folder) as held:
        held.use(made)
        for sha256 in held.unused(kept_s):
            if sha256 != made:
                (folder / f"{sha256}.model").unlink(missing_ok=True)
