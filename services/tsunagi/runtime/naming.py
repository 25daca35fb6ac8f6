"""Decides which names edges, workers, sensors and groups may have.

A name from a table or a command line becomes the name of files and directories, a key of records, a user of the broker
and a label of metrics. A name that cannot be all of these is refused before anything starts.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST_NODE = 100
"""Longest name of an edge or worker, in characters. With a suffix it still fits into the 255 bytes of a file's name."""
LONGEST_TEXT = 200
"""Longest name of a sensor, group or unit, in characters. It is well below `tsunagi.runtime.ranges.MAX_NAME`."""
TIME_COLUMNS = frozenset({"time", "timestamp"})
"""Names of the column of times in a file of readings, in small or capital letters. No sensor can have such a name."""

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Matches names that can be those of files and of users of the broker."""
_SERVICES = frozenset(
    {"admin", "broker", "gateway", "kafka", "learner", "scaler", "secondary", "sink", "spark", "tools"}
)
"""Names that services and users of the broker have already."""
_WORKER = re.compile(r"(gw|sec|worker)-[0-9]+")
"""Matches the names that `tsunagi up` and the scaler give to workers."""


def node_fault(name: str) -> str:
    """Return why no edge and no worker can have this name (found and expected); "" if one can."""
    if len(name) > LONGEST_NODE:
        return f"found a name of {len(name)} characters, expected at most {LONGEST_NODE}"
    if not _NODE.fullmatch(name):
        return f"found {name!r}, expected letters (a-z), digits, '_', '-' and '.', not beginning with '-' or '.'"
    if name.lower() in _SERVICES:
        return f"found {name!r}, expected a name that no service and no user of the broker has"
    return ""


def edge_fault(name: str) -> str:
    """Return why no edge can have this name; "" if one can."""
    if _WORKER.fullmatch(name.lower()):
        return f"found {name!r}, expected a name other than gw-N, sec-N and worker-N, which are workers'"
    return node_fault(name)


def text_fault(name: str) -> str:
    """Return why no sensor, group or unit can have this name; "" if one can."""
    if len(name) > LONGEST_TEXT:
        return f"found a name of {len(name)} characters, expected at most {LONGEST_TEXT}"
    for letter in name:
        if unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"}:
            return f"found {name!r}, expected a name without line breaks and control characters"
    return ""


def sensor_fault(name: str) -> str:
    """Return why no sensor can have this name; "" if one can."""
    if is_time(name):
        return f"found {name!r}, which a file of readings has for its column of times; call the sensor otherwise"
    return text_fault(name)


def is_time(name: str) -> bool:
    """Return whether a name in a header is that of the column of times."""
    return name.strip().lower() in TIME_COLUMNS
