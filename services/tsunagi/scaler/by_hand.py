"""`tsunagi scaler scale`: asks for a number of workers by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tsunagi.runtime.messages import VERSION, Plan, Workers
from tsunagi.runtime.settings import LOCAL, Settings
from tsunagi.system.plan import Write, write_plan

OPERATOR = "operator"
"""Name under which `plan` keeps a number of workers that somebody asked for by hand."""


class ScaleError(ValueError):
    """What is asked for is impossible or says nothing."""


def ask(
    settings: Settings,
    workers: int | None,
    kinds: Sequence[str],
    tell: Callable[[str], None],
    *,
    auto: bool = False,
    write: Write | None = None,
) -> None:
    """Write to `plan` how many workers of each type are wanted.

    Args:
        kinds: a text TYPE=N for each type.
        write: writes the record; None = to the log.

    Raises:
        ScaleError: nothing is asked for, or something impossible.
        LogError: the broker does not take the record.
    """
    wanted = _read(settings, workers, kinds)
    if auto == bool(wanted):
        raise ScaleError(f"found {'both' if auto else 'none'}, expected --workers or --type, or --auto alone")
    asked = Workers(as_configured=auto, count=wanted, by=OPERATOR)
    (write or write_plan)(settings, {"workers": Plan(version=VERSION, workers=asked)})
    if auto:
        tell("workers: as [scaler] says")
        return
    tell("workers: " + ", ".join(f"{count} {kind}" for kind, count in sorted(wanted.items())))
    if LOCAL in wanted and sum(wanted.values()) < 2:
        tell("one worker alone: no slot has a secondary")


def _read(settings: Settings, workers: int | None, kinds: Sequence[str]) -> dict[str, int]:
    known = {LOCAL, *settings.scaler.sizes}
    wanted = {} if workers is None else {LOCAL: workers}
    for item in kinds:
        kind, _, number = item.partition("=")
        if not re.fullmatch("[0-9]{1,5}", number):
            raise ScaleError(f"--type: found {item!r}, expected TYPE=N")
        if kind not in known:
            raise ScaleError(f"--type: found {kind!r}, expected one of {', '.join(sorted(known))} ([scaler.sizes])")
        if kind in wanted:
            raise ScaleError(f"--type: found {kind!r} twice, or with --workers, expected it once")
        wanted[kind] = int(number)
    if LOCAL in wanted and not sum(wanted.values()):
        raise ScaleError("--workers, --type: found no worker at all, expected one at least")
    return wanted
