"""Compares outputs that were computed again with `recovered`: names and tags must be the same, values nearly so."""

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
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.slot.frames import Frame
from tsunagi.slot.packed import PackedRows

TOLERANCE_SD = 1e-6
"""Standard deviations by which a value that is computed again may differ: another machine may sum in another order."""
_SHOWN = 10
"""How many differences are kept in words. All are counted, but the first ones are enough to see what is wrong."""


@dataclass(slots=True)
class Comparison:
    """What `compare` found.

    Attributes:
        outputs: how many outputs were computed again.
        compared: how many of them `recovered` has.
        pending: outputs that `recovered` does not have yet; they come after the last one that it has.
        repeats: records of `recovered` under a name that was read before.
        unreadable: records of `recovered` that are no outputs; Spark puts them into dead-letters.
        disowned: records of `recovered` whose inputs the log has lost: a later generation begins at or before these
            inputs, or knows nothing from before it.
        differing: how many differences there are.
        largest_sd: the largest difference of a value, in standard deviations of its sensor.
        differences: the first differences, one line each.
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
        """Count a difference, and keep its text if it is one of the first."""
        self.differing += 1
        if len(self.differences) < _SHOWN:
            self.differences.append(text)


def compare(
    recomputed: Iterable[Recomputed],
    recovered: Iterable[Record],
    scale: Mapping[int, float] | None = None,
    begun: Sequence[Generation] = (),
) -> Comparison:
    """Compare the outputs that follow from the log with those in `recovered`.

    Args:
        recomputed: the outputs that were computed again from the log.
        recovered: the whole partition of `recovered`, from its first record.
        scale: the standard deviation of each sensor, by id; differences of other sensors are not scaled.
        begun: the generations of the log, as `generations` returns them; empty means that there is only one.
    """
    result = Comparison()
    expected = {item.name: item for item in recomputed}
    result.outputs = len(expected)
    seen: set[Name] = set()
    for record in recovered:
        found = _outputs(record)
        result.unreadable += not found
        for generation, name, message in found:
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
    """Return whether the log has lost the input of an output, or held that input before it was begun anew."""
    known = [item.generation for item in begun]
    later = begun[known.index(generation) + 1 :] if generation in known else begun
    return any(item.blank or (generation in known and item.begin <= name.offset) for item in later)


def _outputs(record: Record) -> list[tuple[int, Name, Recovered]]:
    """Return (generation, name, message) of a record's outputs; none if it was written by somebody else."""
    try:
        generation, _, last = unpack_key(record.key)
        messages = outputs_of(decode(Recovered, record.value))
    except ValueError:
        return []
    if len(messages) == 1:
        return [(generation, last, messages[0])]
    return [(generation, Name(message.offset, message.index), message) for message in messages]


def _compare_one(
    place: str, frame: Frame | PackedRows, found: Recovered, scale: Mapping[int, float], result: Comparison
) -> None:
    ids = sensors(found.sensor)
    if found.step != frame.step or found.event_time_us != frame.event_time_us:
        result.differ(f"{place}: step {found.step}, expected {frame.step}")
        return
    if isinstance(frame, PackedRows):
        columns = Recovered(column=found.column).SerializeToString()
        if (found.query, found.rows, columns) != (frame.query, frame.rows, frame.columns):
            result.differ(f"{place}: query {found.query!r}, {found.rows} rows; expected other rows of {frame.query!r}")
        return
    if found.query:
        result.differ(f"{place}: rows of query {found.query!r}, expected readings")
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
