"""The table of the values that each field of a record may have. `tsunagi.runtime.ranges_check` checks messages by it.

Whoever can append a record chooses every bit of it. A record that passes can be computed with: no sum of a time and a
window and no name of an output leaves the range of its type, and columns fit each other. What a value means (whether
the sensor belongs to this edge, whether the step is open) is checked where the record is processed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

INT64_MAX = (1 << 63) - 1
"""The greatest number that an int64 holds."""
MAX_TIME_US = 9_214_646_400_000_000
"""The latest time, 2262-01-01, in microseconds since 1970. An int64 cannot hold the nanoseconds of later times. It is
also the greatest step, since no step is shorter than a microsecond."""

NOT_YET = -(1 << 62)
"""Stands for a step if there has been none yet (tsunagi.slot.steps)."""

MAX_FLOAT = 1e100
"""Greatest size of the floats with which a slot computes directly. The sum of their squares over all sensors is
finite."""

MAX_NAME = 1024
"""Longest name of a node, sensor or group, in characters. It is more than `tsunagi.runtime.naming` allows."""
MAX_WORD = 64
"""Longest word, such as a role, a policy or an id, in characters."""
MAX_DETAIL = 65_536
"""Longest text for people, such as a reason, in characters."""
MAX_TEXT = MAX_BYTES = 64 << 20
"""Greatest length of the fields that may be as long as a record. Topics allow less by default."""


class Whole(NamedTuple):
    """A whole number within [low, high]. In a repeated field it holds for each number."""

    low: int
    high: int
    other: int = 0
    """One more value that is allowed; 0 means that there is none."""


class Real(NamedTuple):
    """A float within [low, high]. NaN is not allowed."""

    low: float
    high: float


class Text(NamedTuple):
    """A text of at most `most` characters. It holds for `bytes` as well, which are counted in bytes."""

    most: int


class Digest(NamedTuple):
    """A SHA-256 in hexadecimal digits, or nothing. It becomes the name of a file, so no other text is allowed."""


class Elements(NamedTuple):
    """A column of numbers, without a broken one at its end.

    Attributes:
        kind: the type of the numbers.
        most: each number must be within [-most, most] or NaN; None allows every number of the type.
    """

    kind: np.dtype[np.generic]
    most: float | None = None


class AnyValue(NamedTuple):
    """A message, which has a row of its own in the table. A field of another type may have every value of its type."""


Rule = Whole | Real | Text | Digest | Elements | AnyValue

ANY = AnyValue()
"""Every value of the field's type is allowed."""
VERSION = NUMBER = SERIAL = MAC = FLAG = PART = ANY
"""Names of `ANY` that say what a field is. `PART` is a message with its own row."""
COUNT = Whole(0, INT64_MAX)
"""A number that is counted up, such as an epoch."""
OFFSET = Whole(-1, INT64_MAX - (1 << 32))
"""An offset in a partition; -1 means none. Sums of an offset and a uint32 stay within an int64."""
STEP = Whole(0, MAX_TIME_US)
"""The number of a step."""
TIME = Whole(0, MAX_TIME_US)
"""A time, in microseconds since 1970."""
LENGTH = Whole(0, MAX_TIME_US)
"""A length of time, in microseconds."""
NAME, WORD, DETAIL, TEXT, BYTES = Text(MAX_NAME), Text(MAX_WORD), Text(MAX_DETAIL), Text(MAX_TEXT), Text(MAX_BYTES)
"""Texts of several lengths."""
SHA256 = Digest()
"""The digest of a model or of settings."""
F64, I64, U32, U8 = np.dtype("<f8"), np.dtype("<i8"), np.dtype("<u4"), np.dtype("u1")
"""The types of numbers in columns: float64, int64, uint32 and uint8, little-endian."""
SENSORS, COUNTS, QUALITIES = Elements(U32), Elements(U32), Elements(U8)
"""Columns of sensor ids, counts and qualities."""
NUMBERS = Elements(I64)
"""A column of offsets, steps or times. Whoever reads it looks at each of them."""
# Every float is allowed in readings: one odd reading must not make the readings of all other sensors of its edge
# unusable. The operators look at the values.
READINGS = Elements(F64)
FACTORS = Elements(F64, MAX_FLOAT)
"""A column of factors, with which a slot computes directly."""
AMOUNT = Real(0.0, 1e15)
"""A measured time in microseconds, or another measured amount, as a float."""

RANGES: Mapping[str, Mapping[str, Rule]] = {
    "LogRecord": {
        "version": VERSION,
        "batch": PART,
        "ownership": PART,
        "edge_out": PART,
        "model": PART,
        "settings": PART,
        "quarantine": PART,
        "punctuation": PART,
        "calibrated": PART,
        "sensor_out": PART,
        "helpers": PART,
        "past": PART,
        "serial": SERIAL,
        "mac": MAC,
    },
    "TupleBatch": {
        "edge": NAME,
        "incarnation": COUNT,
        "step": STEP,
        "event_time_us": TIME,
        "sensor": SENSORS,
        "value": READINGS,
        "count": COUNTS,
        "offset": OFFSET,
        "helper": SENSORS,
        "helper_value": READINGS,
        "column": PART,
        "events": PART,
    },
    "Events": {"stream": NAME, "rows": NUMBER, "column": PART},
    "Ownership": {
        "epoch": COUNT,
        "node": NAME,
        "generation": ANY,
        "first_step": STEP,
        "settings_hash": SHA256,
        "founding": PART,
    },
    "Founding": {"begin": OFFSET, "blank": FLAG, "lost_from": OFFSET, "lost_to": OFFSET, "reason": DETAIL},
    "EdgeOut": {"epoch": COUNT, "edge": NAME, "from_step": Whole(0, MAX_TIME_US, INT64_MAX)},
    "ModelChange": {"epoch": COUNT, "sha256": SHA256, "refit_of": SHA256},
    "SlotSettings": {"epoch": COUNT, "hash": SHA256, "text": TEXT},
    "Quarantine": {"epoch": COUNT, "offset": OFFSET},
    "Punctuation": {"epoch": COUNT, "step": STEP},
    "Calibrated": {
        "epoch": COUNT,
        "model": SHA256,
        "factor": FACTORS,
        "group": SENSORS,
        "slope": FACTORS,
        "centre": FACTORS,
        "tried": READINGS,
    },
    "SensorOut": {"epoch": COUNT, "model": SHA256, "sensor": NUMBER, "out": FLAG, "reason": DETAIL},
    "Helpers": {"epoch": COUNT, "model": SHA256, "sensor": SENSORS, "name": NAME, "edge": NAME},
    "Past": {
        "epoch": COUNT,
        "query": NAME,
        "from_us": TIME,
        "begin": OFFSET,
        "upto": OFFSET,
        "batch": PART,
        "appended_us": TIME,
    },
    "Recovered": {
        "version": VERSION,
        "slot": NUMBER,
        "generation": ANY,
        "offset": OFFSET,
        "index": NUMBER,
        "epoch": COUNT,
        "step": STEP,
        "event_time_us": TIME,
        "appended_us": TIME,
        "sensor": SENSORS,
        "mean": READINGS,
        "sd": READINGS,
        "quality": QUALITIES,
        "bound": READINGS,
        "query": NAME,
        "rows": NUMBER,
        "column": PART,
        "run": PART,
    },
    "OutputRun": {
        "offset": NUMBERS,
        "step": NUMBERS,
        "event_time_us": NUMBERS,
        "appended_us": NUMBERS,
        "sensor": SENSORS,
        "mean": READINGS,
    },
    "ResultBlock": {
        "version": VERSION,
        "query": NAME,
        "group": NAME,
        "step": STEP,
        "event_time_us": TIME,
        "appended_us": TIME,
        "sensor": SENSORS,
        "mean": READINGS,
        "sd": READINGS,
        "quality": QUALITIES,
        "bound": READINGS,
        "q1": COUNTS,
        "q2": COUNTS,
        "q3": READINGS,
        "part": NUMBER,
        "parts": NUMBER,
        "window": PART,
        "column": PART,
        "rows": NUMBER,
        "definition": DETAIL,
        "run": COUNT,
    },
    "TypedColumn": {
        "name": NAME,
        "kind": WORD,
        "value": BYTES,
        "valid": QUALITIES,
        "text": TEXT,
        "low": READINGS,
        "high": READINGS,
        "sd": READINGS,
    },
    "Window": {
        "length_us": LENGTH,
        "sum": READINGS,
        "minimum": READINGS,
        "maximum": READINGS,
        "sum_sd": READINGS,
        "extreme_sd": READINGS,
    },
    "Ack": {"version": VERSION, "level0": PART, "level1": PART, "mac": MAC},
    "Level0Ack": {
        "slot": NUMBER,
        "node": NAME,
        "epoch": COUNT,
        "generation": ANY,
        "offset": OFFSET,
        "last_offset": OFFSET,
        "last_index": NUMBER,
        "topic_id": WORD,
        "digest": NUMBER,
        "recovered_end": OFFSET,
    },
    "Level1Ack": {
        "slot": NUMBER,
        "node": NAME,
        "epoch": COUNT,
        "generation": ANY,
        "offset": OFFSET,
        "context_offset": OFFSET,
        "last_offset": OFFSET,
        "last_index": NUMBER,
        "context_bytes": NUMBER,
        "appended_us": TIME,
    },
    "Context": {
        "version": VERSION,
        "slot": NUMBER,
        "generation": ANY,
        "epoch": COUNT,
        "owner": NAME,
        "offset": OFFSET,
        "last_offset": OFFSET,
        "last_index": NUMBER,
        "settings": PART,
        "model_sha256": SHA256,
        "cursor": Whole(0, MAX_TIME_US + 1, NOT_YET),
        "punctuated": Whole(0, MAX_TIME_US, NOT_YET),
        "edges": PART,
        "open": PART,
        "operators": BYTES,
        "quarantined": OFFSET,
        "serial": SERIAL,
        "helpers": PART,
        "refit_of": SHA256,
        "topic_id": WORD,
        "digest": NUMBER,
        "founding": PART,
        "part": NUMBER,
        "parts": NUMBER,
        "piece": BYTES,
        "mac": MAC,
    },
    "EdgeState": {
        "edge": NAME,
        "incarnation": COUNT,
        "last_step": Whole(0, MAX_TIME_US, NOT_YET),
        "out_from": Whole(0, MAX_TIME_US + 1, INT64_MAX),
        "out_us": TIME,
    },
    "Filled": {
        "upto": OFFSET,
        "kept_from": OFFSET,
        "done": FLAG,
        "newest_us": TIME,
        "edges": PART,
        "kept": PART,
        "queries": BYTES,
    },
    "Arrays": {"array": PART},
    "Array": {"dtype": WORD, "shape": NUMBER, "data": BYTES},
    "Heartbeat": {
        "version": VERSION,
        "node": NAME,
        "role": WORD,
        "incarnation": COUNT,
        "sequence": COUNT,
        "sent_us": TIME,
        "leaving": FLAG,
        "metrics_port": Whole(0, 65_535),
        "overloaded_ms": COUNT,
        "pid": NUMBER,
        "slots": PART,
        "step": Whole(NOT_YET, MAX_TIME_US),
        "metrics_host": NAME,
        "spark": PART,
        "learner": PART,
        "sink": PART,
        "table": COUNT,
        "mac": MAC,
    },
    "SparkBeat": {
        "batch": Whole(-1, INT64_MAX),
        "batch_us": LENGTH,
        "latency_us": Whole(-MAX_TIME_US, MAX_TIME_US),
        "frontier": Whole(NOT_YET, MAX_TIME_US),
        "newest": Whole(NOT_YET, MAX_TIME_US),
        "held_by": NUMBER,
        "left_behind": NUMBER,
        "carried": COUNT,
        "order": WORD,
        "cut": NUMBER,
        "fault": DETAIL,
        "query": PART,
    },
    "SinkBeat": {"sink": NAME, "lag": COUNT, "rows": COUNT, "refused": COUNT, "fault": DETAIL},
    "LearnerBeat": {"steps": COUNT, "needed": COUNT, "fitting": FLAG, "fault": DETAIL, "out": NAME},
    "QueryBeat": {
        "name": NAME,
        "since": Whole(NOT_YET, MAX_TIME_US),
        "rows": COUNT,
        "state_bytes": COUNT,
        "late": COUNT,
        "fault": DETAIL,
        "filled_to": Whole(NOT_YET, MAX_TIME_US),
    },
    "SlotBeat": {
        "slot": NUMBER,
        "role": WORD,
        "epoch": COUNT,
        "position": OFFSET,
        "busy_offset": OFFSET,
        "busy_until": OFFSET,
        "busy_us": Whole(-MAX_TIME_US, MAX_TIME_US),
        "ready": FLAG,
        "reason": DETAIL,
        "step": Whole(NOT_YET - 1, MAX_TIME_US),
        "record_us": AMOUNT,
        "batch_size": COUNT,
        "lag": OFFSET,
        "record_tuples": AMOUNT,
        "taking_up": FLAG,
        "send_us": AMOUNT,
        "wait_us": Whole(-MAX_TIME_US, MAX_TIME_US),
        "busy_limit_us": Whole(0, INT64_MAX),
        "declared": DETAIL,
        "query": PART,
        "move_us": TIME,
    },
    "Plan": {
        "version": VERSION,
        "assignment": PART,
        "placement": PART,
        "helpers": PART,
        "target": PART,
        "recovery": PART,
        "workers": PART,
        "system": PART,
        "query": PART,
        "model": PART,
        "table": PART,
        "act": PART,
        "move": PART,
        "serial": SERIAL,
        "mac": MAC,
    },
    "SlotMove": {"slot": NUMBER, "to": NAME, "by": DETAIL},
    "Act": {"by": NAME, "what": DETAIL, "at_us": TIME},
    "QueryChange": {"name": NAME, "text": DETAIL, "by": DETAIL, "from_us": TIME},
    "FleetTable": {"csv": BYTES, "from_us": TIME, "by": DETAIL},
    "System": {"id": WORD, "prefix": NAME, "made_us": TIME, "by": DETAIL},
    "Assignment": {"slot": NUMBER, "owner": NAME, "secondary": NAME, "serial": COUNT, "reason": DETAIL},
    "Workers": {"as_configured": FLAG, "count": Whole(0, 100_000), "by": WORD},
    "StandbyTarget": {
        "slot": NUMBER,
        "as_configured": FLAG,
        "batch_size": COUNT,
        "policy": WORD,
        "max_bandwidth": Real(0.0, np.inf),
        "max_recovery_s": Real(0.0, np.inf),
        "priority": WORD,
    },
    "Placement": {
        "serial": COUNT,
        "slots": NUMBER,
        "slot": SENSORS,
        "table_sha256": SHA256,
        "before": SENSORS,
        "from_us": TIME,
        "move": WORD,
    },
    "HelperRequest": {"slot": NUMBER, "epoch": COUNT, "sensor": SENSORS, "from_step": Whole(NOT_YET, MAX_TIME_US)},
    "RecoveryTarget": {
        "as_configured": FLAG,
        "eps": Real(0.0, MAX_FLOAT),
        "delta": Real(0.0, 1.0),
        "helpers": NUMBER,
        "unbounded": WORD,
    },
    "ModelTarget": {
        "as_configured": FLAG,
        "sha256": SHA256,
        "by": WORD,
        "sensors": COUNT,
        "steps": COUNT,
        "newest": STEP,
        "error": Real(0.0, MAX_FLOAT),
        "naive": Real(0.0, MAX_FLOAT),
    },
    "Late": {
        "version": VERSION,
        "slot": NUMBER,
        "offset": OFFSET,
        "reason": WORD,
        "batch": PART,
        "cursor": Whole(0, MAX_TIME_US + 1, NOT_YET),
        "recovered": PART,
    },
    "DeadLetter": {
        "version": VERSION,
        "topic": NAME,
        "partition": NUMBER,
        "offset": OFFSET,
        "reason": DETAIL,
        "detail": TEXT,
        "key": BYTES,
        "value": BYTES,
    },
}
"""The rule for each field of each message."""

ALIKE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "TupleBatch": (("sensor", "value"), ("helper", "helper_value")),
    "Helpers": (("sensor", "name", "edge"),),
    "Recovered": (("quality", "sensor", "mean", "sd", "bound"),),
    "OutputRun": (("offset", "step", "event_time_us", "appended_us"), ("sensor", "mean")),
    "ResultBlock": (("quality", "sensor", "mean", "sd", "bound", "q1", "q2", "q3"),),
    "TypedColumn": (("low", "high", "sd"),),
    "Window": (("sum", "minimum", "maximum", "sum_sd", "extreme_sd"),),
}
"""Groups of fields that must have the same number of elements, by message."""


def is_sha256(text: str) -> bool:
    """Return whether a text is a SHA-256 in 64 lower-case hexadecimal digits."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")
