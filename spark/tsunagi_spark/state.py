"""What the job keeps between batches, beside Spark's checkpoint: `<checkpoint>/tsunagi/`.

    query.json           the Spark query this state belongs to
    layouts/SERIAL       Layout
    driver/before-N      what the driver decided before batch N ran: layout, slots left behind
    driver/after-N       slot marks, delivered steps and totals after batch N
    core-C/state-N       CoreState after batch N
    core-C/rows-N        readings of batch N that have not expired from the minute yet
    programs/SERIAL      the statements in CQL that are in force
    queries/split-C-N, queries/whole-N
                         what the queries in CQL keep after batch N: those that are split, and the others
    queries/fill-Q-N     the same of a query that is filled from the log, or was
    queries/panes-K-N    panes of windows that batch N has completed, and that do not change any more

Every file is written under a temporary name, synced and renamed, so that a file that exists is whole. Batch N reads
state N-1; the files of the last few batches are kept, so that Spark can run a batch again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats, pack_arrays, unpack_arrays
from tsunagi.runtime.marked import mark
from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.layout import Flags, Ints
from tsunagi_spark.queries import QueryReadings
from tsunagi_spark.windows import PANE, Panes, no_panes

VERSION = 2
"""Version of the state's files. Since version 2 marks say to which log they belong. A file of a later version counts as
damaged."""

KEPT = 4
"""Number of batches whose state is kept. Spark runs at most the last one again."""

_FOLDERS = ("layouts", "driver", "programs", "queries")
"""The folders of the state, beside those of the cores."""
_MAGIC = b"TSNG"
"""First bytes of a state file."""
_ADVICE = "restore it, or empty the checkpoint to start from the beginning of `recovered`"
"""Advice for state that is missing or damaged."""


class StateError(RuntimeError):
    """State is missing, damaged, of another query or not writable. The message names the file and what to do."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or not at all, even if the power fails.

    Raises:
        StateError: the directory cannot be written, or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StateError(f"{path}: state cannot be written: {error.strerror}") from error


def seal(arrays: dict[str, npt.NDArray[np.generic]]) -> bytes:
    """Return named arrays as bytes, with version and checksum in front."""
    return seal_body(pack_arrays(arrays))


def seal_body(body: bytes) -> bytes:
    """Return bytes with version and checksum in front."""
    return b"".join((_MAGIC, VERSION.to_bytes(4, "little"), zlib.crc32(body).to_bytes(4, "little"), body))


def unseal(data: bytes, path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """Read what `seal` has returned.

    Raises:
        StateError: the bytes are something else, or damaged.
    """
    return unpack_arrays(bytes(unseal_body(data, path)))


def unseal_body(data: bytes, path: Path) -> memoryview:
    """Read what `seal_body` has returned.

    Raises:
        StateError: the bytes are something else, or damaged.
    """
    if data[:4] != _MAGIC:
        raise StateError(f"{path}: not a state file")
    version = int.from_bytes(data[4:8], "little")
    if version > VERSION:
        raise StateError(f"{path}: found version {version}, expected at most {VERSION}")
    if zlib.crc32(data[12:]) != int.from_bytes(data[8:12], "little"):
        raise StateError(f"{path}: damaged (checksum); {_ADVICE}")
    return memoryview(data)[12:]


MINUTE_ROW = np.dtype([("step", "<i8"), ("sensor", "<u4"), ("above", "u1")])
"""A row of a rows file. The rows are in the order of steps, so that a few steps can be read without the rest."""


def dump_readings(readings: QueryReadings) -> bytes:
    """Return readings, which are in the order of steps, as the bytes of a rows file."""
    rows = np.empty(len(readings.sensor), dtype=MINUTE_ROW)
    rows["step"], rows["sensor"], rows["above"] = readings.step, readings.sensor, readings.above
    return rows.tobytes()


def load_readings(path: Path, low: int, high: int) -> QueryReadings:
    """Read from a rows file the readings of the steps low < step <= high.

    Raises:
        StateError: the file is missing or damaged.
    """
    try:
        rows = np.memmap(path, dtype=MINUTE_ROW, mode="r")
    except FileNotFoundError:
        raise StateError(f"{path}: state is missing; {_ADVICE}") from None
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: damaged: {error}") from error
    first, last = np.searchsorted(rows["step"], (low, high), side="right")
    part = rows[first:last]
    return QueryReadings(part["sensor"].copy(), part["step"].copy(), part["above"] != 0)


@dataclass(slots=True)
class Minute:
    """Where the readings of the running minute are kept: one file of rows for each batch.

    Attributes:
        batch: int64[files], the batches that wrote the files.
        least: int64[files], the oldest step in each file.
        left: int64[files], number of readings in each file that have not expired.
        dropped: int64[k, 2], (batch of a file, batch in which its last reading expired).
    """

    batch: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    least: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    left: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    dropped: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))

    def gone(self, batch: int, which: Flags) -> Minute:
        """Return the minute without some of the files, whose last readings expire in a batch."""
        files = self.batch[which & (self.batch >= 0)]  # what was gathered from other cores is in no file
        dropped = np.column_stack((files, np.full(len(files), batch, dtype=np.int64)))
        recent = self.dropped[self.dropped[:, 1] >= batch - KEPT]
        return Minute(self.batch[~which], self.least[~which], self.left[~which], np.concatenate((recent, dropped)))


@dataclass(slots=True)
class CoreState:
    """What one P-SORT core keeps from batch to batch.

    Attributes:
        delivered: int64[groups], the last step that was sent; NEVER if none.
        count, above: int64[sensors], number of readings in the last minute up to the group's delivered step, and of
            those above the sensor's threshold.
        rows: rows behind the frontier, whose steps are not complete yet.
        slot, step, appended_us: int64[records], the steps that slots have delivered and some group has not.
        minute: where the readings in `count` are kept.
        rate: float64[sensors], number of delivered rows, halved after a set time: the load is shared out by it.
        panes: sums of the window aggregates that are not complete yet.
    """

    delivered: Ints
    count: Ints
    above: Ints
    rows: RecoveredRows
    slot: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    step: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    appended_us: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    minute: Minute = field(default_factory=Minute)
    rate: Floats = field(default_factory=lambda: np.zeros(0))
    panes: Panes = field(default_factory=no_panes)

    def dump(self) -> bytes:
        """Return the state as the bytes of a state file."""
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "delivered": self.delivered,
            "count": self.count,
            "above": self.above,
            "slot": self.slot,
            "step": self.step,
            "appended_us": self.appended_us,
            "rate": self.rate,
            "panes": self.panes.view(np.uint8),
            "minute.batch": self.minute.batch,
            "minute.least": self.minute.least,
            "minute.left": self.minute.left,
            "minute.dropped": self.minute.dropped,
        }
        arrays |= {f"rows.{name}": column for name, column in self.rows.columns().items()}
        return seal(arrays)

    @staticmethod
    def load(data: bytes, path: Path) -> CoreState:
        """Read a state from the bytes of a state file."""
        arrays: dict[str, Any] = unseal(data, path)
        minute = Minute(*(arrays[f"minute.{name}"] for name in ("batch", "least", "left", "dropped")))
        rows = RecoveredRows(**{name: arrays[f"rows.{name}"] for name in RecoveredRows.NAMES})
        plain = {name: arrays[name] for name in ("delivered", "count", "above", "slot", "step", "appended_us")}
        rate = arrays.get("rate", np.zeros(len(arrays["count"])))
        panes = arrays.get("panes", np.zeros(0, np.uint8)).view(PANE)
        return CoreState(rows=rows, minute=minute, rate=rate, panes=panes, **plain)


class Store:
    """The directory of the state, which the driver and every core use."""

    def __init__(self, checkpoint: Path) -> None:
        self.root = checkpoint / "tsunagi"

    def prepare(self, cores: int) -> None:
        """Make the directories and check that they can be written.

        Raises:
            StateError: they cannot be written.
        """
        try:
            for name in (*_FOLDERS, *(f"core-{core}" for core in range(cores))):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"{self.root}: state directory cannot be made: {error.strerror}") from error
        probe = self.root / "driver" / "probe"
        write_atomically(probe, b"probe")
        probe.unlink()

    def clear(self) -> None:
        """Remove everything that the job keeps, for a new query; other files in the directory stay."""
        for kept in (*_FOLDERS, "core-*"):
            for path in self.root.glob(kept):
                shutil.rmtree(path)
        self.remove("query.json")

    def lock(self) -> IO[str]:
        """Lock the directory for this process; the operating system unlocks it whenever the process ends.

        Raises:
            StateError: another driver holds the lock.
        """
        mark(self.root.parent)
        self.root.mkdir(exist_ok=True)
        file = (self.root / "lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise StateError(f"checkpoint {self.root.parent} is in use by another driver ({owner})") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        return file

    def write(self, name: str, data: bytes) -> None:
        """Write a file, given its name relative to the directory."""
        write_atomically(self.root / name, data)

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes:
        """Read a file, or a part of it.

        Args:
            length: bytes from `offset` on; -1 = all.

        Raises:
            StateError: it is missing or cannot be read.
        """
        path = self.root / name
        self.check(name)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except OSError as error:
            raise StateError(f"{path}: state cannot be read: {error.strerror}") from error

    def check(self, name: str) -> None:
        """Check that a file exists.

        Raises:
            StateError: it does not.
        """
        if not (self.root / name).exists():
            raise StateError(f"{self.root / name}: state is missing; {_ADVICE}")

    def find(self, name: str) -> bytes | None:
        """Read a file; return None if it does not exist."""
        return self.read(name) if (self.root / name).exists() else None

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file."""
        try:
            found = json.loads(self.read(name))
        except ValueError as error:
            raise StateError(f"{self.root / name}: damaged: {error}") from None
        if not isinstance(found, dict) or found.get("version", 0) > VERSION:
            raise StateError(f"{self.root / name}: found version {found.get('version')!r}, expected at most {VERSION}")
        return found

    def write_json(self, name: str, fields: dict[str, Any]) -> None:
        """Write a JSON file."""
        self.write(name, json.dumps({"version": VERSION} | fields).encode())

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""
        (self.root / name).unlink(missing_ok=True)
