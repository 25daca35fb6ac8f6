"""What an operator can do in the console: the same as by the commands, shown before it is done, and written down.

Each act is a function that gets what was given as JSON, and writes records of `plan` with a `Write`. To show what it
would do, it is called with one that writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tsunagi.local import queries, recovery, slot_move, standby
from tsunagi.runtime.messages import VERSION, Act, Plan
from tsunagi.runtime.plan import act_key
from tsunagi.runtime.settings import Settings
from tsunagi.scaler import by_hand
from tsunagi.system.plan import Write, write_plan

Tell = Callable[[str], None]


class ActError(ValueError):
    """What was given is not what an act takes; the message names field, found and expected."""


class ActKind(NamedTuple):
    """A kind of act.

    Attributes:
        fields: what it takes: the types of each field, None among them if it may be left out.
        do: does it.
    """

    fields: Mapping[str, tuple[type, ...]]
    do: Callable[[Settings, Mapping[str, Any], Tell, Write], None]


def _given(fields: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and name not in left_out}


def _standby(settings: Settings, given: Mapping[str, Any], tell: Tell, write: Write) -> None:
    slots = [] if given.get("slot") is None else [given["slot"]]
    standby.ask(settings, slots, _given(given, "slot"), tell, write)


def _recovery(settings: Settings, given: Mapping[str, Any], tell: Tell, write: Write) -> None:
    recovery.ask(settings, _given(given), tell, write)


def _scale(settings: Settings, given: Mapping[str, Any], tell: Tell, write: Write) -> None:
    workers = given.get("workers")
    by_hand.ask(settings, workers, (), tell, auto=workers is None, write=write)


def _move(settings: Settings, given: Mapping[str, Any], tell: Tell, write: Write) -> None:
    slot_move.ask(settings, int(given["slot"]), str(given["worker"]), tell, write)


def _add(settings: Settings, given: Mapping[str, Any], tell: Tell, write: Write) -> None:
    text = str(given["text"]).strip()
    if " " not in text:  # it would be taken for the name of a file of the console's machine
        raise ActError(f"text: found {text[:40]!r}, expected a statement in CQL")
    queries.add_statements(settings, text, tell, write)


def _drop(settings: Settings, given: Mapping[str, Any], tell: Tell, write: Write) -> None:
    queries.drop_query(settings, str(given["name"]), tell, write)


_NUMBER: tuple[type, ...] = (int, float, type(None))
"""The types of a field that is a number, or left out."""
_WHOLE: tuple[type, ...] = (int, type(None))
"""The types of a field that is a whole number, or left out."""
_WORD: tuple[type, ...] = (str, type(None))
"""The types of a field that is a word, or left out."""
ACTS: Mapping[str, ActKind] = {
    "standby": ActKind(
        {
            "slot": _WHOLE,
            "batch_size": (int, str, type(None)),
            "policy": _WORD,
            "max_bandwidth": _NUMBER,
            "max_recovery_s": _NUMBER,
            "priority": _WORD,
        },
        _standby,
    ),
    "recovery": ActKind({"eps": _NUMBER, "delta": _NUMBER, "helpers": _WHOLE, "unbounded": _WORD}, _recovery),
    "scale": ActKind({"workers": _WHOLE}, _scale),
    "move": ActKind({"slot": (int,), "worker": (str,)}, _move),
    "query-add": ActKind({"text": (str,)}, _add),
    "query-drop": ActKind({"name": (str,)}, _drop),
}
"""The acts by name."""


def _checked(name: str, given: Mapping[str, Any]) -> ActKind:
    kind = ACTS.get(name)
    if kind is None:
        raise ActError(f"act: found {name!r}, expected one of {', '.join(ACTS)}")
    for field in given:
        if field not in kind.fields:
            raise ActError(f"{field}: no field of {name}; expected some of {', '.join(kind.fields)}")
    for field, types in kind.fields.items():
        if not isinstance(given.get(field), types) or isinstance(given.get(field), bool):
            expected = ", ".join(item.__name__ for item in types if item is not type(None))
            raise ActError(f"{field}: found {str(given.get(field))[:40]!r}, expected {expected}")
    return kind


def preview(settings: Settings, name: str, given: Mapping[str, Any]) -> list[str]:
    """Return what an act would do, and do nothing.

    Raises:
        ValueError: what is asked for is impossible.
        LogError: the log does not answer.
    """
    said: list[str] = []
    _checked(name, given).do(settings, given, said.append, lambda *_: None)
    return said


def do(settings: Settings, name: str, given: Mapping[str, Any], by: str) -> list[str]:
    """Do an act; return what was done. Who asked for it stands in `plan` beside its records.

    Raises:
        ValueError: what is asked for is impossible.
        LogError: the broker does not take the records.
    """
    said: list[str] = []
    fields = ", ".join(f"{field} = {value}" for field, value in _given(given).items()) or "as configured"

    def write(settings: Settings, records: Mapping[str, Plan]) -> None:
        act = Act(by=by, what=f"{name}: {fields}", at_us=time.time_ns() // 1000)
        write_plan(settings, {act_key(act): Plan(version=VERSION, act=act)} | dict(records))

    _checked(name, given).do(settings, given, said.append, write)
    return said
