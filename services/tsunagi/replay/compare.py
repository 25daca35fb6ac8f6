"""Outputs that were computed again, compared with `recovered`: names and tags must be the same, values nearly so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tsunagi.replay.generations import Generation
from tsunagi.replay.recompute import Recomputed
from tsunagi.runtime.columns import floats, octets, sensors
from tsunagi.runtime.door import decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.names import Name, unpack_key
from tsunagi.slot.frames import Frame

TOLERANCE_SD = 1e-6
"""Standard deviations by which a value that is computed again may differ: another machine may sum in another order."""
_SHOWN = 10
"""So many differences are told; all are counted."""


@dataclass(slots=True)
class Comparison:
    """What `compare` found.

    Attributes:
        outputs: outputs computed again; compared: those of them that `recovered` has.
        pending: outputs that `recovered` does not have yet, all after its last one.
        unreadable: records of `recovered` that are no outputs; Spark has put them into dead-letters.
        disowned: outputs of inputs that the log has lost: a later generation begins before them.
        differences: one line each; `differing` counts all, the first ones are kept.
        largest_sd: the largest difference of a value, in standard deviations of its sensor.
    """

    outputs: int = 0
    compared: int = 0
    pending: int = 0
    repeats: int = 0
    unreadable: int = 0
    disowned: int = 0
    differing: int = 0
    largest_sd: float = 0.0
    differences: list[str] = field(default_factory=list)

    def differ(self, text: str) -> None:
        """Count a difference; keep the first ones."""
        self.differing += 1
        if len(self.differences) < _SHOWN:
            self.differences.append(text)


def compare(
    recomputed: Iterable[Recomputed],
    recovered: Iterable[Record],
    scale: Mapping[int, float] | None = None,
    begun: Sequence[Generation] = (),
) -> Comparison:
    """Compare what the log says with what stands in `recovered`.

    Args:
        recovered: the whole partition, from its first record.
        scale: sensor id -> standard deviation; sensors without one are compared with the unit 1.
        begun: `generations` of the log; without it there is one.
    """
    result = Comparison()
    expected = {item.name: item for item in recomputed}
    result.outputs = len(expected)
    seen: set[Name] = set()
    for record in recovered:
        found = _output(record)
        if found is None:
            result.unreadable += 1
            continue
        generation, name, message = found
        place = f"recovered, offset {record.offset}, name {tuple(name)}"
        if _disowned(generation, name, begun):
            result.disowned += 1
            continue
        result.repeats += name in seen
        seen.add(name)
        item = expected.get(name)
        if item is None:
            result.differ(f"{place}: the log gives no output of this name")
        elif item.generation != generation:
            result.differ(f"{place}: generation {generation}, expected {item.generation}")
        else:
            _compare_one(place, item.frame, message, scale or {}, result)
    last = max(seen, default=None)
    for name in expected:
        if name in seen:
            result.compared += 1
        elif last is not None and name < last:
            result.differ(f"name {tuple(name)}: the log gives this output, `recovered` does not have it")
        else:
            result.pending += 1
    return result


def _disowned(generation: int, name: Name, begun: Sequence[Generation]) -> bool:
    """Return whether an output is of an input that the log has lost, or of what it held before it was begun anew."""
    known = [item.generation for item in begun]
    later = begun[known.index(generation) + 1 :] if generation in known else begun
    return any(item.blank or (generation in known and item.begin <= name.offset) for item in later)


def _output(record: Record) -> tuple[int, Name, Recovered] | None:
    """Return (generation, name, message); None = no output, but what somebody else wrote there."""
    try:
        generation, _, name = unpack_key(record.key)
        message = decode(Recovered, record.value)
    except ValueError:
        return None
    return generation, name, message


def _compare_one(place: str, frame: Frame, found: Recovered, scale: Mapping[int, float], result: Comparison) -> None:
    ids = sensors(found.sensor)
    if found.step != frame.step or found.event_time_us != frame.event_time_us:
        result.differ(f"{place}: step {found.step}, expected {frame.step}")
        return
    if not np.array_equal(ids, frame.sensor):
        result.differ(f"{place}: {len(ids)} rows, expected {len(frame.sensor)}, or other sensors")
        return
    if not np.array_equal(octets(found.quality), frame.quality):
        first = int(ids[octets(found.quality) != frame.quality][0])
        result.differ(f"{place}: another tag, first at sensor {first}")
        return
    unit = np.array([scale.get(sensor, 1.0) for sensor in ids.tolist()])
    for column, theirs, ours in (
        ("mean", found.mean, frame.mean),
        ("sd", found.sd, frame.sd),
        ("bound", found.bound, frame.bound),
    ):
        with np.errstate(invalid="ignore"):
            off = np.where(floats(theirs) == ours, 0.0, np.abs(floats(theirs) - ours) / unit)
        off = np.where(np.isnan(floats(theirs)) & np.isnan(ours), 0.0, np.nan_to_num(off, nan=math.inf))
        worst = float(off.max(initial=0.0))
        result.largest_sd = max(result.largest_sd, worst)
        if worst > TOLERANCE_SD:
            result.differ(
                f"{place}: {column} of sensor {int(ids[off.argmax()])} differs by {worst:.3g} standard deviations"
            )
            return
