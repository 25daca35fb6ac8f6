"""Tells which process has a pid now, by the boot id of the machine and the ticks at which the kernel started it.

No clock can change these two. The start as a time of day is computed from the wall clock, so it moves when somebody
sets that clock.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""The file in which the kernel has the id of the machine's present run."""
_STATE, _TICKS = 0, 19  # fields 3 and 22 of /proc/PID/stat, after the pid and the name have been cut off
_GONE = frozenset("ZX")
"""The states of processes that have ended: zombie and dead."""


@cache
def boot_id() -> str:
    """Return the id of the machine's present run."""
    return _BOOT.read_text(encoding="ascii").strip()


def born(pid: int) -> str:
    """Return "BOOT-ID/TICKS" of the process that has this pid; "" if no process has it, or only one that has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat[stat.rindex(b")") + 2 :].decode("ascii").split()
    return "" if fields[_STATE] in _GONE else f"{boot_id()}/{fields[_TICKS]}"
