"""Which names edges, workers, sensors and groups may have.

A name from a table or a command line becomes the name of files and directories, a key of topics, a user of the broker
and a label of metrics; what cannot be all of these is refused before anything starts.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST_NODE = 100
LONGEST_TEXT = 200
TIME_COLUMNS = frozenset({"time", "timestamp"})
"""What a file of readings may call its column of times, in any case; no sensor can have such a name."""

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SERVICES = frozenset({"admin", "broker", "gateway", "kafka", "scaler", "secondary", "spark", "tools"})
_WORKER = re.compile(r"(gw|sec|worker)-[0-9]+")


def node_fault(name: str) -> str:
    """Say why no edge and no worker can have this name: found and expected; "" = one can."""
    if len(name) > LONGEST_NODE:
        return f"found a name of {len(name)} characters, expected at most {LONGEST_NODE}"
    if not _NODE.fullmatch(name):
        return f"found {name!r}, expected letters (a-z), digits, '_', '-' and '.', not beginning with '-' or '.'"
    if name.lower() in _SERVICES:
        return f"found {name!r}, expected a name that no service and no user of the broker has"
    return ""


def edge_fault(name: str) -> str:
    """Say why no edge can have this name; "" = one can."""
    if _WORKER.fullmatch(name.lower()):
        return f"found {name!r}, expected a name other than gw-N, sec-N and worker-N, which are workers'"
    return node_fault(name)


def text_fault(name: str) -> str:
    """Say why no sensor, group or unit can have this name; "" = one can."""
    if len(name) > LONGEST_TEXT:
        return f"found a name of {len(name)} characters, expected at most {LONGEST_TEXT}"
    for letter in name:
        if unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"}:
            return f"found {name!r}, expected a name without line breaks and control characters"
    return ""


def sensor_fault(name: str) -> str:
    """Say why no sensor can have this name; "" = one can."""
    if is_time(name):
        return f"found {name!r}, which a file of readings has for its column of times; call the sensor otherwise"
    return text_fault(name)


def is_time(name: str) -> bool:
    """Return whether a header's name is that of the column of times."""
    return name.strip().lower() in TIME_COLUMNS
