"""Finds the units of series where messages, or the names of columns, tell them.

The unit that stands beside a value is read with the edge's own decoder, as the value is. So it belongs to the same
sensor, however that one gets its name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jmespath

from tsunagi.edge.decode import Reading
from tsunagi.edge.fields import Entries
from tsunagi.edge.inbox import Message
from tsunagi.project.shapes import PLAIN, Path, leaves_of, written
from tsunagi.runtime.naming import text_fault
from tsunagi.runtime.settings.fields import EVERY, FieldSettings

_KEYS = ("unit", "units", "uom", "unit_of_measurement", "unitofmeasurement", "engunit")
"""Keys at which a unit is looked for, the likeliest first; letters may be large or small."""
_SIGN = re.compile("unit|uom", re.IGNORECASE)
"""Is found in every key at which a unit is looked for, whatever stands around it."""
_ATTRIBUTES = "attributes"
"""The key of an object beside a value that describes it. Home Assistant writes the unit there."""
_LONGEST = 24
"""A longer text is a remark, and no unit."""
_TOLD = 2
"""The units are numbered from here: a number that stands where a unit is looked for is read as 0, a boolean as 1."""
_BRACKETS = re.compile(r"[\[(]\s*([^\[\]()]+?)\s*[\])]\s*\Z")
"""Matches what stands in brackets at the end of a name."""
_BASE = (
    r"(?:[YZEPTGMkhdcmuµμnpf]|da)?(?:Wh|VAr|VA|var|bar|Pa|Hz|Ohm|ohm|Ω|Ω|eV|Ah|cal|mol|cd|lm|lx|Sv|Gy|Bq|rad|pH"
    r"|[mgsAVWNJKCFTHSLltBb])"
    r"|%|‰|°[CF]?|[℃℉]|deg[CF]?|ppm|ppb|psi|atm|mmHg|inHg|dBA|dBm|dB|rpm|kn|ft|in|mi|mph|gal|lux|min|h|d|y|NTU|pcs|1"
    r"|[Cc]elsius|[Ff]ahrenheit|[Kk]elvin|[Pp]ercent|[Vv]olts?|[Aa]mperes?|[Aa]mps?|[Ww]atts?|[Hh]ertz|[Ss]econds?"
)
"""Matches a unit with its prefix."""
_UNIT = re.compile(rf"(?:{_BASE})(?:\^?[-⁻]?[1-9¹²³])?(?:\s?[/·*⋅ ]\s?(?:{_BASE})(?:\^?[-⁻]?[1-9¹²³])?)*")
"""Matches units, with powers, products and quotients: m³/h, kg·m^-3, 1/min."""
_TEMPLATE = re.compile(
    r"\{\{\s*value(?:_json(?:\.(\w+)|\[['\"]([^'\"]+)['\"]\]))?\s*"
    r"(?:\|\s*(?:round|float|int|is_defined)\s*(?:\([^()]*\)\s*)?)*\}\}"
)
"""Matches templates of Home Assistant that take a message, or a value of it, as it is. Others change its unit."""
_OTHERWISE = frozenset({"min", "in", "1", "B"})
"""What stands in brackets for a least value, an input, a number or a phase more often than for a unit."""


def unit_in_name(name: str) -> str:
    """Return the unit that a name ends in, as "temperature [°C]" and "pressure (bar)" do; "" if it ends in none."""
    found = _BRACKETS.search(name)
    unit = found[1] if found and found.start() else ""
    return unit if unit not in _OTHERWISE and _UNIT.fullmatch(unit) else ""


class UnitReader:
    """Reads the units that messages tell.

    Args:
        tables: the tables of `[source] fields` that find the values.
        messages: all messages, each with what it has become.
    """

    def __init__(self, tables: Sequence[Mapping[str, Any]], messages: Sequence[tuple[Message, object]]) -> None:
        self._discovered = _discovered(body for _, body in messages)
        bodies = [self._with_units(body, message.topic) for message, body in messages]
        numbers: dict[str, int] = {}
        found = [
            FieldSettings.model_validate(made) for table in tables if (made := _unit_table(table, bodies, numbers))
        ]
        self._units = {float(number): unit.strip() for unit, number in numbers.items()}
        self._entries = Entries(found, "")
        self._values = Entries([FieldSettings.model_validate(table) for table in tables], "")

    def read(self, body: object, message: Message) -> Iterator[tuple[str, str]]:
        """Yield (name of a sensor, its unit) for each unit that a message tells, or that another one tells of it."""
        names: list[str] = []

        def place_of(name: str) -> int:
            names.append(name)
            return len(names) - 1

        plain = self._discovered.get(message.topic, {}).get("")
        if plain is not None and not isinstance(body, dict | list):
            self._values.readings(body, message, place_of)
            yield from ((name, plain) for name in names)
            return
        for item in self._entries.readings(self._with_units(body, message.topic), message, place_of):
            if isinstance(item, Reading) and item.value in self._units:
                yield names[item.place], self._units[item.value]

    def _with_units(self, body: object, topic: str) -> object:
        """Return a message with the units that another one tells of it, beside its values."""
        units = self._discovered.get(topic)
        return {"units": units} | body if units and isinstance(body, dict) else body


def _discovered(bodies: Iterable[object]) -> dict[str, dict[str, str]]:
    """Return the units that messages for the discovery of Home Assistant tell, by topic and by key in its messages.

    The key is "" if a message of the topic is the value itself. Home Assistant knows short names of the keys.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for body in bodies:
        if not isinstance(body, dict):
            continue
        topic, unit, template = (
            next((text for key in keys if isinstance(text := body.get(key), str)), "")
            for keys in (
                ("state_topic", "stat_t"),
                ("unit_of_measurement", "unit_of_meas"),
                ("value_template", "val_tpl"),
            )
        )
        match = _TEMPLATE.fullmatch(template.strip() or "{{ value }}")
        if topic and match and _may_be_unit(unit):
            base = body.get("~")
            topic = topic.replace("~", base) if isinstance(base, str) else topic
            found[topic][match[1] or match[2] or ""] = unit.strip()
    return found


def _unit_table(table: Mapping[str, Any], bodies: Iterable[object], numbers: dict[str, int]) -> dict[str, Any]:
    """Return a table that finds the units of what another one finds; {} if there are none.

    Args:
        numbers: gets the number of each unit, which the table returns as its value.
    """
    values = table["values"]
    named = values if isinstance(values, dict) else {path: path for path in values}
    paths = {name: _keys(path) for name, path in named.items() if not path.endswith(EVERY)}
    texts: dict[Path, set[str]] = defaultdict(set)
    for body in bodies:
        parts = jmespath.search(table["each"], body) if "each" in table else [body]
        for part in parts if isinstance(parts, list) else ():
            for path, text in leaves_of(part):
                if isinstance(text, str) and any(_SIGN.search(str(key)) for key in path[-2:]):
                    texts[path].add(text)
    units = {path: some for path, some in texts.items() if all(map(_may_be_unit, some))}
    found = {name: place for name, path in paths.items() if (place := _beside(path, list(paths.values()), units))}
    if not found:
        return {}
    for told in found.values():
        for unit in sorted(units[told]):
            numbers.setdefault(unit, len(numbers) + _TOLD)
    kept = {key: item for key, item in table.items() if key not in {"words", "missing"}}
    return kept | {"values": {name: written(path) for name, path in found.items()}, "words": numbers, "scale": 0.0}


def _beside(value: Path, values: Iterable[Path], units: Iterable[Path]) -> Path:
    """Return where the unit of a value stands; () = nowhere.

    A unit with a name like that of the value is the value's. A unit alone is that of the one value beside it, or of the
    one that is just called `value`.
    """
    if not value or not isinstance(value[-1], str):
        return ()
    above, name = value[:-1], value[-1].lower()
    lower = {tuple(str(key).lower() for key in path): path for path in units}
    around = tuple(str(key).lower() for key in above)
    own = [(*around, made) for key in _KEYS for made in (f"{name}_{key}", f"{name}{key}", f"{key}_{name}")]
    own += [(*around, key, name) for key in _KEYS]
    shared = [(*around, *inner, key) for inner in ((), (_ATTRIBUTES,)) for key in _KEYS]
    beside = [path for path in values if path and path[:-1] == above]
    plain = [path for path in beside if str(path[-1]).lower() in PLAIN]
    alone = [value] in (beside, plain)
    return next((lower[path] for path in own + shared * alone if path in lower), ())


def _may_be_unit(text: str) -> bool:
    text = text.strip()
    return 0 < len(text) <= _LONGEST and not text.replace(".", "").isdecimal() and not text_fault(text)


def _keys(path: str) -> Path:
    """Return the keys and places of a path that `tsunagi.project.shapes.written` has made."""

    def of(node: Mapping[str, Any]) -> Path:
        if node["type"] in {"field", "index"}:
            return (node["value"],)
        return tuple(key for child in node["children"] for key in of(child))

    return of(jmespath.compile(path).parsed)
