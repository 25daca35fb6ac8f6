"""Finds out where readings stand in the messages of devices, and proposes `[source] fields` for them.

What is proposed is read with the edge's own decoder afterwards, so nobody is told of a sensor that an edge would not
find.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tsunagi.runtime.time_form import BadTimeError, TimeForm

WORDS = {"on": 1.0, "off": 0.0, "open": 1.0, "closed": 0.0, "true": 1.0, "false": 0.0, "online": 1.0, "offline": 0.0}
"""Texts that are taken for values, in small letters. Each stands beside its opposite."""
NO_VALUE = frozenset({"unavailable", "unknown", "null", "none", "na", "n/a", "nan", ""})
"""Texts that are taken for no value, in small letters."""
_TIMES = ("time", "timestamp", "ts", "t", "datetime", "date_time", "last_seen", "created_at", "measured_at", "date")
"""Keys at which a time is looked for, the likeliest first; letters may be large or small."""
IDS = ("sensor", "sensor_id", "sensorid", "id", "device", "device_id", "deviceid", "name", "host")
"""Keys at which the name of a sensor or device is looked for, the likeliest first."""
PLAIN = frozenset({"@", "value", "v", "val", "reading", "state"})
"""Names of values that say nothing: the one value of a device is called by the device."""
_COMMON: frozenset[object] = frozenset(("", (name,)) for name in _TIMES)
"""Paths of times, which messages of any shape may have."""
_DAY_US = 86_400_000_000
"""Microseconds in a day: a time that is further from now is none of the message."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Matches keys that need no quotes in a path."""
_DEEPEST = 8
"""Objects within objects that are looked into at most."""

Path = tuple[str | int, ...]


class Sample(NamedTuple):
    """A message that has come.

    Attributes:
        body: the JSON value, or the text that it is.
    """

    topic: str
    body: Any
    arrived_us: int


def propose(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """Return tables of `[source] fields` that find the readings of messages.

    Devices that send under topics alike may each have a shape of message of its own. Each shape gets a table.
    """
    families: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        levels = sample.topic.split("/")
        families[len(levels), levels[0]].append(sample)
    found = []
    for some in families.values():
        for shape in _shapes(some):
            entry = _entry(shape, some)
            found += [entry] if entry else []
    return found


def _shapes(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return samples by the shape of their messages. Where two shapes have a value at one path, they are taken as one.

    Otherwise the tables of both would find this value, and it would count twice.
    """
    alike: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        alike[_shape(sample)].append(sample)
    found: list[tuple[set[object], list[Sample]]] = []
    for messages in alike.values():
        some, each = messages, _list_of_objects(messages)
        paths: set[object] = {
            (each, path) for item in some for part in _records(item.body, each) for path, _ in leaves_of(part)
        }
        for other in [item for item in found if item[0] & paths - _COMMON]:
            found.remove(other)
            paths, some = paths | other[0], other[1] + some
        found.append((paths, some))
    return [some for _, some in found]


def _shape(sample: Sample) -> tuple[object, ...]:
    """Return what tells messages apart that are read in different ways: lists, objects, and where the time stands."""
    each = _list_of_objects([sample])
    keys = {str(path[-1]).lower() for path, _ in leaves_of(sample.body) if path}
    return isinstance(sample.body, dict | list), each, next((name for name in _TIMES if name in keys), "")


def _entry(samples: Sequence[Sample], family: Sequence[Sample]) -> dict[str, Any]:
    """Return a table for messages of one shape; {} if they have no values.

    Args:
        family: the messages whose topics are alike, also those of other shapes.
    """
    each = _list_of_objects(samples)
    records = [(sample, record) for sample in samples for record in _records(sample.body, each)]
    leaves = [dict(leaves_of(record)) for _, record in records]
    time, unit = _time(records, leaves)
    if not time and each:
        time, unit = _time(records, [dict(leaves_of(_around(sample.body, each))) for sample, _ in records])
    identity = _identity(records, leaves)
    topic, named = _pattern([sample.topic for sample in family], alone=not identity)
    found = _values(leaves, {time, identity, *_other_times(records, leaves)}, [sample.topic for sample, _ in records])
    if not found.paths:
        return {}
    fields = _named(found.paths)
    plain = all(name == path for name, path in fields.items())
    parts = [f"{{{name}}}" for name in named] + ([f"{{{written(identity)}}}"] if identity else [])
    if len(fields) > 1 or not parts or next(iter(fields)).lower() not in PLAIN:
        parts.append("{field}")
    entry: dict[str, Any] = {"topic": topic} if samples[0].topic else {}
    entry |= {"each": each} if each else {}
    entry |= {"values": list(fields) if plain else fields, "sensor": ".".join(parts), "time": written(time)}
    entry |= {"time_unit": unit} if unit != "s" else {}
    entry |= {"words": found.words} if found.words else {}
    entry |= {"missing": found.missing} if found.missing else {}
    return entry


def _pattern(topics: Sequence[str], *, alone: bool) -> tuple[str, list[str]]:
    """Return (the pattern of topics, the names of the levels that differ).

    Args:
        alone: whether nothing but the topic tells devices apart: all levels but the first count as such then, though
            they were always the same.
    """
    columns = list(zip(*(topic.split("/") for topic in topics), strict=True))
    differ = [place for place, levels in enumerate(columns) if len(set(levels)) > 1]
    if not differ and alone and len(columns) > 1:
        differ = list(range(1, len(columns)))
    names = {place: f"level{place + 1}" for place in differ}
    if differ:
        names[differ[-1]] = "device"
    if len(differ) > 1:
        names[differ[0]] = "area"
    pattern = "/".join(f"{{{names[place]}}}" if place in names else levels[0] for place, levels in enumerate(columns))
    return pattern, [names[place] for place in differ]


def _list_of_objects(samples: Sequence[Sample]) -> str:
    """Return the path of a list whose items are messages of their own; "" if there is none."""
    if all(isinstance(sample.body, list) for sample in samples):
        return "@"
    keys = Counter(
        key
        for sample in samples
        if isinstance(sample.body, dict)
        for key, item in sample.body.items()
        if isinstance(item, list) and item and all(isinstance(part, dict) for part in item)
    )
    return written((keys.most_common(1)[0][0],)) if keys else ""


def _records(body: Any, each: str) -> list[Any]:  # noqa: ANN401 - a JSON value
    if not each:
        return [body]
    if each == "@":
        return body if isinstance(body, list) else []
    found = body.get(json.loads(each) if each.startswith('"') else each) if isinstance(body, dict) else None
    return found if isinstance(found, list) else []


def _around(body: Any, each: str) -> Any:  # noqa: ANN401 - a JSON value
    """Return what a message has beside its list."""
    return {key: item for key, item in body.items() if written((key,)) != each} if isinstance(body, dict) else None


def leaves_of(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:  # noqa: ANN401 - a JSON value
    """Yield (path, value) of each number, boolean and text."""
    if isinstance(tree, dict) and len(path) < _DEEPEST:
        for key, item in tree.items():
            yield from leaves_of(item, (*path, key))
    elif isinstance(tree, list) and len(path) < _DEEPEST:
        for number, item in enumerate(tree):
            yield from leaves_of(item, (*path, number))
    elif isinstance(tree, bool | int | float | str):
        yield path, tree


def _time(records: Sequence[tuple[Sample, Any]], leaves: Sequence[dict[Path, Any]]) -> tuple[Path, str]:
    """Return (where the time stands, its unit); () = not every record has one."""
    for wanted in _TIMES:
        paths = dict.fromkeys(path for mine in leaves for path in mine if path and str(path[-1]).lower() == wanted)
        for path in paths:
            unit = recent_unit(
                (mine.get(path), sample.arrived_us) for (sample, _), mine in zip(records, leaves, strict=True)
            )
            if unit:
                return path, unit
    return (), "s"


def _other_times(records: Sequence[tuple[Sample, Any]], leaves: Sequence[dict[Path, Any]]) -> Iterator[Path]:
    """Yield where times stand that some records have, so that nobody takes them for values."""
    for (sample, _), mine in zip(records, leaves, strict=True):
        for path, given in mine.items():
            named = path and str(path[-1]).lower() in _TIMES
            if named and any(_is_recent(given, unit, sample.arrived_us) for unit in ("s", "ms", "us", "ns")):
                yield path


def recent_unit(times: Iterable[tuple[object, int]]) -> str:
    """Return the unit in which times are near the arrivals of their messages; "" = in none of them.

    Args:
        times: (time of a message, its arrival in microseconds).
    """
    given = list(times)
    units = ("s", "ms", "us", "ns")
    return next((unit for unit in units if all(_is_recent(time, unit, arrived_us) for time, arrived_us in given)), "")


def _is_recent(given: object, unit: str, arrived_us: int) -> bool:
    try:
        return abs(TimeForm(unit, number_texts=True).read(given) - arrived_us) < _DAY_US
    except BadTimeError:
        return False


def _identity(records: Sequence[tuple[Sample, Any]], leaves: Sequence[dict[Path, Any]]) -> Path:
    """Return where a name stands that tells apart what has one topic; () = the topic does."""
    differ: dict[Path, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (sample, _), mine in zip(records, leaves, strict=True):
        for path, item in mine.items():
            if path and isinstance(item, str):
                differ[path][sample.topic].add(item)
    several = {path for path, by_topic in differ.items() if any(len(names) > 1 for names in by_topic.values())}
    everywhere = {path for path in several if all(path in mine for mine in leaves)}
    likely = [path for key in IDS for path in sorted(everywhere, key=str) if str(path[-1]).lower() == key]
    return likely[0] if likely else ()


class _Values(NamedTuple):
    paths: list[Path]
    words: dict[str, float]
    missing: list[str]


def _values(leaves: Sequence[dict[Path, Any]], others: set[Path], topics: Sequence[str]) -> _Values:
    """Return where values stand: numbers, and texts that are all known words.

    Args:
        others: where names and times stand.
        topics: the topic of each record.
    """
    given: dict[Path, list[Any]] = defaultdict(list)
    by_topic: dict[Path, dict[str, set[object]]] = defaultdict(lambda: defaultdict(set))
    for mine, topic in zip(leaves, topics, strict=True):
        for path, item in mine.items():
            if path not in others or not path:
                given[path].append(item)
                by_topic[path][topic].add(item)
    paths, words, missing, doubtful = [], dict[str, float](), set[str](), []
    for path, items in given.items():
        texts = {item for item in items if isinstance(item, str) and not _is_number(item)}
        nothing = {text for text in texts if text.strip().lower() in NO_VALUE}
        known = _known(texts - nothing)
        if not texts - nothing <= known.keys() or len(nothing) == len(set(map(str, items))):
            continue
        fixed = all(len(found) == 1 for found in by_topic[path].values()) and len(items) > len(by_topic[path])
        if path and fixed and not known and all(isinstance(item, str) for item in items):
            doubtful.append(path)  # a version, or the number of a machine, most likely
            continue
        paths.append(path)
        words |= known
        missing |= nothing
    several = len(set(map(str, given.get(doubtful[0], ())))) > 1 if doubtful else False
    return _Values(paths or (doubtful if several else []), words, sorted(missing))


def _known(texts: set[str]) -> dict[str, float]:
    """Return the values of those texts that are known words, and of their opposites, which may come later."""
    words = list(WORDS)
    found: dict[str, float] = {}
    for text in sorted(texts):
        if text.lower() in WORDS:
            other = words[words.index(text.lower()) ^ 1]
            other = other.upper() if text.isupper() else other.capitalize() if text[0].isupper() else other
            found |= {text: WORDS[text.lower()], other: WORDS[other.lower()]}
    return dict(sorted(found.items()))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip().lower() not in NO_VALUE


def _named(paths: Sequence[Path]) -> dict[str, str]:
    """Return the paths of values by their names: the last keys, or more of a path where two would be alike."""
    short = [str(next((part for part in reversed(path) if isinstance(part, str)), "@")) for path in paths]
    alike = Counter(short)
    return {
        name if alike[name] == 1 else _dotted(path): written(path) or "@"
        for name, path in zip(short, paths, strict=True)
    }


def _dotted(path: Path) -> str:
    """Return a path as the name of a value."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "@"


def written(path: Path) -> str:
    """Return a path as JMESPath; "" for none."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _NAME.fullmatch(part) else json.dumps(part))
    return text
