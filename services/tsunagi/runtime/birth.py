"""Which process has a pid now, told by what no clock can change: the machine's boot id and the kernel's start ticks.

The start as a time of day is computed from the wall clock at boot, so it moves when somebody sets the clock.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATE, _TICKS = 0, 19  # fields 3 and 22 of /proc/PID/stat; what is cut off before them is the pid and the name
_GONE = frozenset("ZX")


@cache
def boot_id() -> str:
    """Return the id of the machine's present run."""
    return _BOOT.read_text(encoding="ascii").strip()


def born(pid: int) -> str:
    """Return "BOOT-ID/TICKS" of the process that has this pid; "" = nobody has it, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat[stat.rindex(b")") + 2 :].decode("ascii").split()
    return "" if fields[_STATE] in _GONE else f"{boot_id()}/{fields[_TICKS]}"
