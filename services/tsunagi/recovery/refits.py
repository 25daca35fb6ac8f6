"""Which refits of the store may go: those that nobody has used for long, by a time that no wall clock can make jump.

A ledger beside the refits says when each was used last (made, loaded, or in force: `renew`), in the store's own time.
That time passes with the monotonic clocks of the machines that use the store: each machine adds what has passed on its
own since its last entry. A clock that was set wrong, a restored backup and a machine that was off delete nothing.
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
_MACHINES = 64
"""The ledger remembers so many machines; one that it has forgotten adds nothing to the store's time at its next use."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Ledger:
    """The ledger of one store, held by one process at a time.

    Attributes:
        now_s: seconds of the store's time.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LEDGER
        self._used: dict[str, float] = {}
        self._machines: dict[str, tuple[float, float]] = {}  # boot id -> (its monotonic seconds, the store's time then)
        self.now_s = 0.0
        # A ledger that is gone or damaged begins anew: every refit then counts as used just now.
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
        """A refit is used now."""
        if sha256 in self._used:
            self._used[sha256] = self.now_s

    def unused(self, for_s: float) -> list[str]:
        """Return the SHA-256 of refits that were not used for longer than `for_s`."""
        return [sha256 for sha256, at_s in self._used.items() if self.now_s - at_s > for_s]

    def save(self) -> None:
        """Replace the file."""
        machines = dict(list(self._machines.items())[-_MACHINES:])
        draft = self._path.with_suffix(f".{os.getpid()}.part")
        draft.write_text(json.dumps({"now_s": self.now_s, "machines": machines, "used": self._used}), encoding="utf-8")
        draft.replace(self._path)


@contextlib.contextmanager
def ledger(folder: Path) -> Iterator[Ledger]:
    """Read the ledger, and replace it at the end.

    Raises:
        OSError: it cannot be read or written, or another process holds it now: that one may hang, so nobody waits.
    """
    with (folder / f".{LEDGER}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = Ledger(folder)
        yield held
        held.save()


def renew(folder: Path, used: Iterable[str]) -> None:
    """Say that refits are in force. Where the store can only be read, or is busy, others say so, or the next call."""
    with contextlib.suppress(OSError), ledger(folder) as held:
        for sha256 in used:
            held.use(sha256)


def tidy(folder: Path, made: str, kept_s: float) -> None:
    """Take a new refit in, and remove those that were not used for `kept_s`; a busy ledger leaves that to the next."""
    with contextlib.suppress(OSError), ledger(folder) as held:
        held.use(made)
        for sha256 in held.unused(kept_s):
            if sha256 != made:
                (folder / f"{sha256}.model").unlink(missing_ok=True)
