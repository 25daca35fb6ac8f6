"""The P-SORT paper's day: 130 sensors on 21 machines, all readings of a day, in lock-step or with rates that differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tsunagi.runtime.columns import Floats, Sensors
from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.layout import Ints, Layout, Order, assigned

MACHINES = (22, *[8] * 5, *[5] * 8, *[4] * 7)
"""Sensors of each: the largest and the next as in the paper, the rest as table 1 leaves them (tests/unit/spark)."""
SENSORS = sum(MACHINES)
GROUP_OF = np.repeat(np.arange(len(MACHINES), dtype=np.int64), MACHINES)
DAY_US = 86_400_000_000
RANGE_US = 60_000_000
"""The queries' minute."""
COLUMNS = {"sensor": "<u4", "step": "<i8", "mean": "<f8"}


def zipf(exponent: float) -> Floats:
    """Return each sensor's rate, float64[sensors], the greatest 1; exponent 0 = all alike. Ranks are by chance."""
    rank = np.random.default_rng(1).permutation(SENSORS) + 1
    rates: Floats = rank.astype(np.float64) ** -exponent
    return rates


@dataclass(frozen=True)
class Day:
    """A day of readings in files, in the order of (step, sensor).

    Attributes:
        directory: where the columns stand.
        steps: of the day; the sensor with the greatest rate has a reading in each.
        readings: int64[sensors], of each sensor.
    """

    directory: Path
    steps: int
    readings: Ints

    @property
    def rows(self) -> int:
        """All readings."""
        return int(self.readings.sum())

    @property
    def even(self) -> bool:
        """Whether all sensors are in lock-step: one slot then holds them all, else each machine has its own."""
        return bool((self.readings == self.steps).all())

    @property
    def slots(self) -> int:
        """Slots that the readings come from."""
        return 1 if self.even else len(MACHINES)

    @property
    def slide_us(self) -> int:
        """Length of a step."""
        return DAY_US // self.steps

    def column(self, name: str) -> np.memmap[tuple[int, ...], np.dtype[np.generic]]:
        """Open a column."""
        return np.memmap(self.directory / name, dtype=COLUMNS[name], mode="r")

    def rates(self) -> dict[int, float]:
        """Return readings by sensor, for the assignment."""
        return dict(enumerate(self.readings.astype(np.float64).tolist()))

    def layout(self, cores: int, order: Order) -> Layout:
        """Make the table of who works on what."""
        slot_of = np.zeros(SENSORS, dtype=np.uint32) if self.even else GROUP_OF.astype(np.uint32)
        return Layout(
            serial=1,
            placement=1,
            cores=cores,
            slots=self.slots,
            names=tuple(f"s{number}" for number in range(SENSORS)),
            edges=tuple(f"edge-{group}" for group in GROUP_OF),
            units=("",) * SENSORS,
            threshold=np.ones(SENSORS),
            group_of=GROUP_OF,
            slot_of=slot_of,
            groups=tuple(f"machine-{group}" for group in range(len(MACHINES))),
            order=order,
            sensor_core=self._spread(cores) if order == "none" else assigned(GROUP_OF, cores, self.rates(), order),
            home=np.zeros(len(MACHINES), dtype=np.int64),
        )

    def _spread(self, cores: int) -> Ints:
        """Spread sensors as evenly as can be: neighbours together in lock-step, so that what is unordered is cheap."""
        if self.even:
            return np.arange(SENSORS, dtype=np.int64) * cores // SENSORS
        return assigned(GROUP_OF, cores, self.rates(), "full")


def make_day(directory: Path, rows: int, exponent: float) -> Day:
    """Write a day of about `rows` readings, or find it written."""
    rates = zipf(exponent)
    steps = max(1, round(rows / rates.sum()))
    readings = np.maximum(1, np.round(rates * steps)).astype(np.int64)
    day = Day(directory / f"day-{rows}-{exponent:g}", steps, readings)
    if (day.directory / "done").exists():
        return day
    day.directory.mkdir(parents=True, exist_ok=True)
    sensor = np.repeat(np.arange(SENSORS, dtype=np.uint32), readings)
    number = np.arange(day.rows) - np.repeat(np.cumsum(readings) - readings, readings)
    step = 1 + number * steps // np.repeat(readings, readings)
    place = np.argsort(step * SENSORS + sensor, kind="stable")
    values = np.random.default_rng(2).normal(size=day.rows)
    for name, column in (("sensor", sensor[place]), ("step", step[place]), ("mean", values)):
        column.astype(COLUMNS[name]).tofile(day.directory / name)
    (day.directory / "done").touch()
    return day


def read_rows(day: Day, first: int, last: int) -> RecoveredRows:
    """Read what the steps first < step <= last hold, as copies."""
    bounds = np.searchsorted(day.column("step"), (first, last), side="right")
    sensor, step, mean = (np.array(day.column(name)[slice(*bounds)]) for name in COLUMNS)
    nothing = np.zeros(len(sensor))
    return RecoveredRows(sensor, step, mean, nothing, np.zeros(len(sensor), np.uint8), nothing)


def shares(sensor: Sensors, place_of: Ints) -> tuple[Ints, Ints]:
    """Return the order that puts rows by place, keeping theirs within one, and where each place begins.

    Args:
        place_of: int64[sensors], the place of each sensor's rows, from 0 on without a gap.
    """
    place = place_of.astype(np.uint16)[sensor]
    order = np.argsort(place, kind="stable")  # of 16 bits: a radix sort
    starts = np.concatenate(([0], np.cumsum(np.bincount(place, minlength=int(place_of.max()) + 1))))
    return order, starts
