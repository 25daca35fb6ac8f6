"""Reads a trace of arrival rates, and converts it to the simulator's steps and scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.runtime.csv_text import CsvError, Line, read_table

DAY_S = 86400.0
"""Seconds in a day."""
STEP_S = 10.0
"""Length of a step of the simulation, in seconds."""
MINUTE_S = 60.0
"""Seconds in a minute."""
PEAK_RATE = 2000.0
"""Tuples/s in the busiest minute of a scaled trace, so that traces of different fleets can be compared."""
LONG_DAYS = 112.0
"""A trace of at least this many days is scored over its last four weeks, a shorter one over its last week."""

HEADER = ["t_s", "rate_per_s"]
"""Header of a trace's CSV: time in seconds, rate in tuples/s."""


class TraceError(ValueError):
    """The trace cannot be used. The message names file and line, what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrival rates at even steps: `rates[i]` holds over [i, i + 1) * `step_s`, in tuples/s."""

    rates: Floats
    step_s: float

    @property
    def days(self) -> float:
        """Length of the trace in days."""
        return len(self.rates) * self.step_s / DAY_S


def read_trace(path: Path) -> Trace:
    """Read a CSV file with the columns t_s,rate_per_s: even steps, no gap, no rate below 0.

    Raises:
        TraceError: the file is not such a CSV.
    """
    times: list[float] = []
    rates: list[float] = []
    try:
        rows = read_table(path)
        top = next(rows, Line(1, []))
        header = [name.strip() for name in top.cells]
        if header != HEADER:
            raise TraceError(
                f"{path}, line {top.number}: found {','.join(header)!r}, expected the header t_s,rate_per_s"
            )
        for line, row in rows:
            time_s, rate = _numbers(row, f"{path}, line {line}")
            if len(times) >= 2:
                step_s = times[1] - times[0]
                expected = times[0] + len(times) * step_s
                if abs(time_s - expected) > step_s * 1e-3:
                    raise TraceError(
                        f"{path}, line {line}: found t_s = {time_s:g}, expected {expected:g}: "
                        f"the steps before are {step_s:g} s long, and a trace has no gaps"
                    )
            elif times and time_s <= times[0]:
                raise TraceError(f"{path}, line {line}: found t_s = {time_s:g}, expected more than {times[0]:g}")
            times.append(time_s)
            rates.append(rate)
    except CsvError as error:
        raise TraceError(str(error)) from None
    if len(times) < 2:
        raise TraceError(f"{path}: found {len(times)} rates, expected at least 2")
    return Trace(np.array(rates), times[1] - times[0])


def _numbers(row: list[str], place: str) -> tuple[float, float]:
    if len(row) != len(HEADER):
        raise TraceError(f"{place}: found {len(row)} columns, expected 2: t_s,rate_per_s")
    numbers = []
    for name, text in zip(HEADER, row, strict=True):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise TraceError(f"{place}: found {name} = {text!r}, expected a number")
        numbers.append(number)
    if numbers[1] < 0:
        raise TraceError(f"{place}: found rate_per_s = {numbers[1]:g}, expected 0 or more")
    return numbers[0], numbers[1]


def resample(trace: Trace, step_s: float) -> Trace:
    """Return the mean rates over steps of another length; a rest at the end that is shorter than a step is left out."""
    if trace.step_s == step_s:
        return trace
    arrived = np.concatenate(([0.0], np.cumsum(trace.rates) * trace.step_s))
    ends = np.arange(len(arrived)) * trace.step_s
    count = int(ends[-1] / step_s + 1e-9)
    return Trace(np.diff(np.interp(np.arange(count + 1) * step_s, ends, arrived)) / step_s, step_s)


def scale(trace: Trace, peak: float = PEAK_RATE) -> Trace:
    """Return the trace, scaled so that the greatest mean over a minute is `peak` tuples/s.

    Raises:
        TraceError: the trace is empty, or 0 throughout.
    """
    minutes = resample(trace, MINUTE_S).rates if trace.step_s < MINUTE_S else trace.rates
    highest = float(minutes.max(initial=0.0))
    if highest <= 0:
        raise TraceError("the trace: found no rate above 0 in a whole minute, expected some load")
    return Trace(trace.rates * (peak / highest), trace.step_s)


def default_score_days(trace: Trace) -> float:
    """Return how many days at the end are scored: 28 if the trace has sixteen weeks or more, else 7."""
    return 28.0 if trace.days >= LONG_DAYS else 7.0


def split(trace: Trace, score_days: float) -> tuple[Trace, Trace]:
    """Return the part of the trace that is known beforehand, and the last days, which are scored.

    Raises:
        TraceError: the trace is not longer than the scored days.
    """
    scored = round(score_days * DAY_S / trace.step_s)
    if not 0 < scored < len(trace.rates):
        raise TraceError(
            f"the trace: found {trace.days:.2f} days, expected more than the {score_days:g} that are scored"
        )
    return Trace(trace.rates[:-scored], trace.step_s), Trace(trace.rates[-scored:], trace.step_s)
