"""Tumbling and sliding window aggregates: count, sum, mean, minimum and maximum, by sensor or by group.

A window of an aggregate ends at every multiple of `slide_s` of event time and is (end - range, end]. Values are summed
in panes, from which windows are made (Li et al., "No pane, no gain", SIGMOD Record 2005): so a value is touched once,
however many windows contain it. The aggregate of a group is made from those of its sensors, in the order of sensors. So
its bytes depend neither on which core had which sensor nor on how batches were cut.

Values that were filled in have errors e_i with standard deviations s_i, and how they correlate is not sent along. These
bounds hold in any case: sd(sum) <= s_1 + ... + s_n (the triangle inequality), so sd(mean) <= their mean. A minimum or
maximum is wrong by at most max |e_i|, and so by at most sqrt(s_1^2 + ... + s_n^2) in the root mean square. The mean is
wrong by at most the mean of the values' own bounds wherever each of those holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.messages import BOUNDED, UNBOUNDED, VERSION, ResultBlock, Window
from tsunagi.runtime.settings import AggregateSettings, ConfigError, StepsSettings
from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.frontier import CompletedSteps, appended_at
from tsunagi_spark.layout import Flags, Ints, Layout

GROUP = 2**32 - 1
"""Stands for the sensor in the row of a whole group."""

_SUMS = ("count", "filled", "sum", "sum_sd", "square_sd", "bound")
"""The columns of a pane that are added up; the others are minima and maxima."""
PANE = np.dtype(
    [
        ("query", "<u2"),
        ("sensor", "<u4"),
        ("pane", "<i8"),
        ("count", "<i8"),
        ("filled", "<i8"),
        ("worst", "u1"),
        ("sum", "<f8"),
        ("sum_sd", "<f8"),
        ("square_sd", "<f8"),
        ("bound", "<f8"),
        ("minimum", "<f8"),
        ("maximum", "<f8"),
    ]
)
"""A row of sums of a sensor: over a pane, or over a window, where `pane` is the step at which the window ends."""

Panes = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Spec:
    """One aggregate query; lengths are in steps."""

    name: str
    length: int
    slide: int
    by_group: bool

    @property
    def pane(self) -> int:
        """Number of steps in a pane: a window begins and ends between two panes."""
        return math.gcd(self.length, self.slide)


@dataclass(slots=True)
class CompleteWindows:
    """Windows that are complete.

    Attributes:
        sums: `PANE`[n], in the order of (end, query, group, sensor).
        appended_us: int64[n], the latest append time of the inputs that completed the window.
    """

    sums: Panes
    appended_us: Ints

    def take(self, which: Flags) -> CompleteWindows:
        """Return some of the windows."""
        return CompleteWindows(self.sums[which], self.appended_us[which])


def specs_of(aggregates: Sequence[AggregateSettings], steps: StepsSettings) -> tuple[Spec, ...]:
    """Return the queries with their lengths in steps.

    Raises:
        ConfigError: a length is not a whole number of steps.
    """
    found = []
    for item in aggregates:
        lengths = []
        for key, seconds in (("range_s", item.range_s), ("slide_s", item.slide_s or item.range_s)):
            length, rest = divmod(round(seconds * 1e6), steps.slide_us)
            if rest or not length:
                raise ConfigError(
                    f"[[query.aggregates]] {item.name}: {key} = {seconds:g}: expected a multiple of a step, "
                    f"{steps.slide_s:g} s"
                )
            lengths.append(length)
        found.append(Spec(item.name, lengths[0], lengths[1], item.by == "group"))
    return tuple(found)


def no_panes() -> Panes:
    """Return no rows of sums."""
    return np.zeros(0, dtype=PANE)


def add_rows(panes: Panes, rows: RecoveredRows, specs: Sequence[Spec]) -> Panes:
    """Add rows, which are in the order of steps, to the panes; a value that is NaN is left out."""
    rows = rows.take(~np.isnan(rows.mean)) if np.isnan(rows.mean).any() else rows
    if not specs or not len(rows):
        return panes
    fresh = np.zeros(len(rows) * len(specs), dtype=PANE)
    filled = (rows.quality == BOUNDED) | (rows.quality == UNBOUNDED)
    for number, spec in enumerate(specs):
        part = fresh[number * len(rows) : (number + 1) * len(rows)]
        part["query"], part["sensor"], part["pane"] = number, rows.sensor, (rows.step - 1) // spec.pane
        part["count"], part["filled"], part["worst"] = 1, filled, np.where(filled, rows.quality, 0)
        part["sum"] = part["minimum"] = part["maximum"] = rows.mean
        part["sum_sd"], part["square_sd"], part["bound"] = rows.sd, rows.sd**2, rows.bound
    return _added(np.concatenate((panes, fresh)), ("query", "sensor", "pane"))


def close_windows(
    panes: Panes, specs: Sequence[Spec], layout: Layout, before: Ints, after: Ints, closed: Sequence[CompletedSteps]
) -> tuple[CompleteWindows, Panes]:
    """Remove the windows that are complete now.

    Args:
        before, after: int64[groups], the last delivered steps before and after this batch.
        closed: the steps that are delivered now.

    Returns:
        (the windows by sensor, the panes that later windows still need).
    """
    group = layout.group_of[panes["sensor"]]
    found = []
    needed = np.zeros(len(panes), dtype=np.bool_)
    for number, spec in enumerate(specs):
        mine = np.flatnonzero(panes["query"] == number)
        last = (panes["pane"][mine] + 1) * spec.pane
        first_end = -(-last // spec.slide) * spec.slide
        for turn in range(-(-spec.length // spec.slide)):
            end = first_end + turn * spec.slide
            covers = end - spec.length < last
            done = covers & (before[group[mine]] < end) & (end <= after[group[mine]])
            needed[mine] |= covers & (end > after[group[mine]])
            rows = panes[mine[done]].copy()
            rows["pane"] = end[done]
            found.append(rows)
    sums = _added(np.concatenate(found), ("query", "sensor", "pane")) if found else no_panes()
    sums = sums[window_order(sums, layout)]
    appended_us, _ = appended_at(closed, len(layout.groups), layout.group_of[sums["sensor"]], sums["pane"])
    return CompleteWindows(sums, appended_us), panes[needed]


def window_order(sums: Panes, layout: Layout) -> Ints:
    """Return the positions that put windows in the order of (end, query, group, sensor)."""
    return np.lexsort((sums["sensor"], layout.group_of[sums["sensor"]], sums["query"], sums["pane"]))


def window_blocks(
    windows: CompleteWindows, specs: Sequence[Spec], layout: Layout, slide_us: int, part_number: int = 0
) -> Iterator[tuple[int, ResultBlock]]:
    """Yield (group, block) of windows by sensor, which are in order; queries by group are put together here."""
    sums = windows.sums
    group = layout.group_of[sums["sensor"]]
    if not len(sums):
        return
    same = (
        (sums["pane"][1:] == sums["pane"][:-1]) & (sums["query"][1:] == sums["query"][:-1]) & (group[1:] == group[:-1])
    )
    starts = np.concatenate(([0], np.flatnonzero(~same) + 1, [len(sums)]))
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        rows = sums[first:last]
        spec = specs[int(rows["query"][0])]
        if spec.by_group:
            rows = rows.copy()
            rows["sensor"] = GROUP
            rows = _added(rows, ("query", "sensor", "pane"))
        number, end = int(group[first]), int(rows["pane"][0])
        count = rows["count"]
        yield (
            number,
            ResultBlock(
                version=VERSION,
                query=spec.name,
                group=layout.groups[number],
                step=end,
                event_time_us=end * slide_us,
                appended_us=int(windows.appended_us[first]),
                sensor=pack_sensors(rows["sensor"]),
                mean=pack_floats(rows["sum"] / count),
                sd=pack_floats(rows["sum_sd"] / count),
                quality=pack_octets(rows["worst"]),
                bound=pack_floats(rows["bound"] / count),
                q1=pack_sensors(count),
                q2=pack_sensors(rows["filled"]),
                q3=pack_floats(rows["filled"] / count),
                part=part_number,
                parts=layout.cores if part_number else 0,
                window=Window(
                    length_us=spec.length * slide_us,
                    sum=pack_floats(rows["sum"]),
                    minimum=pack_floats(rows["minimum"]),
                    maximum=pack_floats(rows["maximum"]),
                    sum_sd=pack_floats(rows["sum_sd"]),
                    extreme_sd=pack_floats(np.sqrt(rows["square_sd"])),
                ),
            ),
        )


def _added(rows: Panes, keys: Sequence[str]) -> Panes:
    """Sum the rows with equal keys in the order in which they come, so that the sums are the same every time."""
    _, first, place = np.unique(rows[list(keys)], return_index=True, return_inverse=True)
    found = rows[first].copy()
    place = place.reshape(-1)
    rest = np.ones(len(rows), dtype=np.bool_)
    rest[first] = False
    for name in _SUMS:
        np.add.at(found[name], place[rest], rows[name][rest])
    np.maximum.at(found["worst"], place[rest], rows["worst"][rest])
    np.minimum.at(found["minimum"], place[rest], rows["minimum"][rest])
    np.maximum.at(found["maximum"], place[rest], rows["maximum"][rest])
    return found
