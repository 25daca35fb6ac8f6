"""The rules by which columns of rows are compared, and the sentences of findings that several judges report."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from tsunagi.audit.evidence import AuditedBlock, AuditedOutput, Batch
from tsunagi.audit.tally import Tally
from tsunagi.runtime.columns import Bytes, Floats, Sensors
from tsunagi.runtime.messages import EXACT, UNMODELLED

VALUE_TOLERANCE = 1e-9
"""Share by which a measured value may differ from the judge's own aggregate: a judge sums in another order."""

REPEAT_TOLERANCE = 1e-6
"""A repeated value may differ by this many standard deviations of its sensor: another machine may sum in another order
(architecture, "The slot's log decides")."""

COLUMNS = ("mean", "sd", "bound", "quality")
"""The columns that a row of `recovered` and its row of `results` have in common."""

_BLOCK_COLUMNS = ("sensor", *COLUMNS, "q1", "q2", "q3")
"""All columns of a block of `results`. A repeated block must have the same ones."""
Mask = npt.NDArray[np.bool_]


def close(found: npt.ArrayLike, expected: npt.ArrayLike) -> Mask:
    """Return where two columns are equal, except for the rounding of another order of summation."""
    return np.isclose(found, expected, rtol=VALUE_TOLERANCE, atol=1e-12, equal_nan=True)


def identical(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> Mask:
    """Return where two columns are exactly equal, or both NaN."""
    return np.asarray((one == other) | ((one != one) & (other != other)))  # noqa: PLR0124 - NaN


def is_measured(quality: Bytes) -> Mask:
    """Return which values are tagged as measured; the others were estimated."""
    return np.isin(quality, (EXACT, UNMODELLED))


def same_output(first: AuditedOutput, second: AuditedOutput, scale: Floats | None = None) -> bool:
    """Return whether two records under one name have the same content, except for `REPEAT_TOLERANCE`.

    Args:
        first, second: the records.
        scale: float64[n], the standard deviation of each sensor. None if it is not known; the tolerance is then a share
            of the value.
    """
    if (first.step, first.generation) != (second.step, second.generation):
        return False
    if not np.array_equal(first.sensor, second.sensor) or not np.array_equal(first.quality, second.quality):
        return False
    relative, unit = (1.0, 1.0) if scale is None else (0.0, np.maximum(scale[first.sensor], 1e-12))
    return all(
        np.isclose(
            getattr(first, name),
            getattr(second, name),
            rtol=REPEAT_TOLERANCE * relative,
            atol=REPEAT_TOLERANCE * unit,
            equal_nan=True,
        ).all()
        for name in ("mean", "sd", "bound")
    )


def content(block: AuditedBlock) -> bytes:
    """Return a digest of 16 bytes of all columns of a block."""
    digest = hashlib.blake2b(digest_size=16)
    for name in _BLOCK_COLUMNS:
        column = getattr(block, name).tobytes()
        digest.update(len(column).to_bytes(4, "little") + column)
    return digest.digest()


def check_rows(sensors: Sensors, where: str, place: str, tally: Tally) -> None:
    """Check that the rows of a record are in the order of their sensors, each of them once.

    Args:
        sensors: the sensor ids of the rows.
        where: the group, or the partition of `recovered`.
        place: names the record in findings.
        tally: receives the findings.
    """
    falls = int((np.diff(sensors.astype(np.int64)) < 0).sum())
    if falls:
        tally.invert(where, f"{place}: rows are not in the order of their sensors", falls)
    twice = len(sensors) - len(np.unique(sensors))
    if twice:
        tally.double(f"{place}: {twice} rows stand twice", twice)


def accuse_invented(place: str, sensors: list[int], tally: Tally) -> None:
    """Report rows that are tagged as measured although no tuple has their values."""
    tally.amiss(
        "invented",
        f"{place}: sensor {sensors[0]} is tagged as measured, but no batch that counts says so",
        len(sensors),
    )


def accuse_altered(step: int, sensors: Sensors, tally: Tally) -> None:
    """Report rows of `results` that differ from those of `recovered`."""
    tally.amiss(
        "altered", f"results: step {step}: sensor {sensors[0]} has other values than in recovered", len(sensors)
    )


def accuse_second(batch: Batch, tally: Tally) -> None:
    """Report a batch that was not set aside although another batch of the same edge and step was used."""
    tally.amiss("second batch", f"{batch.place}: a second batch of the step that is not set aside")


def accuse_values(batch: Batch, sensors: Sensors, topic: str, tally: Tally) -> None:
    """Report measured rows whose values differ from those of the batch that claims them."""
    tally.amiss("values", f"{batch.place}: sensor {sensors[0]} has another value in {topic}", len(sensors))


def lost_text(batch: Batch, readings: int, topic: str) -> str:
    """Return the finding that readings of a batch are nowhere, in words."""
    return f"{batch.place}: {readings} of its readings are neither in {topic}, nor in late, nor in dead-letters"
