"""Spark's own logs in the checkpoint: finds out which of their files are whole, and makes them fit the job's state.

Spark writes `offsets/N` before batch N and `commits/N` after it, and syncs neither. After a power cut the newest of
these files may be empty, torn, full of zeros or missing, and Spark refuses to start with one that it cannot read. The
job's own state (tsunagi_spark.state) is synced, so it decides: the last whole batch is the last one whose state is
whole, and Spark's logs are made to end there. A file that is not whole is set aside, never deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import structlog

from tsunagi.runtime import metrics
from tsunagi.runtime.marked import MARKER
from tsunagi_spark.layout import Layout
from tsunagi_spark.query_core import check_state
from tsunagi_spark.query_program import QueryProgram
from tsunagi_spark.query_task import FOLDER, program_file, read_panes, state_files
from tsunagi_spark.standing import JobStanding
from tsunagi_spark.state import MINUTE_ROW, CoreState, StateError, Store, write_atomically

ASIDE = "aside"
"""Directory in the checkpoint. `aside/K` holds the files that the K-th start with damage set aside, under their
names."""

_LOG_VERSION = "v1"
"""First line of Spark's log files: their version."""
_PLAIN_OFFSETS = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
"""Second line of an offsets file if no older file shows what it looks like; Spark then takes its present options."""

_PLAIN_COMMIT = '{"nextBatchWatermarkMs":0}'
"""Content of a commits file below its first line."""
_NOT_WHOLE = (StateError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Errors that reading a damaged file may raise; each of them only tells that the file is not whole."""


class Checkpoint:
    """The directory `[spark] checkpoint`.

    Args:
        topic: name of `recovered` in Kafka, as in Spark's offsets.

    Attributes:
        damaged: names of the files that were set aside, relative to the checkpoint.
    """

    def __init__(self, root: Path, topic: str) -> None:
        self.root = root
        self.damaged: list[str] = []
        self._topic = topic
        self._aside: Path | None = None
        self._logger = structlog.get_logger("tsunagi.spark")

    def batches(self, kind: str) -> list[int]:
        """Return the numbers of the batches that have a file in `offsets` or `commits`, ascending."""
        return _numbers(self.root / kind, "")

    def positions(self, batch: int) -> dict[int, int]:
        """Return where a batch ends in Spark's log: partition -> offset of `recovered`, exclusive.

        Raises:
            ValueError, OSError, ...: the file is missing or not whole (`_NOT_WHOLE`).
        """
        _, pattern, *sources = _lines(self.root / "offsets" / str(batch))
        if not isinstance(json.loads(pattern), dict) or len(sources) != 1:
            raise ValueError(f"found {len(sources)} sources, expected 1")
        return {int(partition): int(offset) for partition, offset in json.loads(sources[0])[self._topic].items()}

    def mend_logs(self) -> None:
        """Set aside those of Spark's files that are not whole."""
        for path in _files(self.root / "offsets"):
            self._look(path, partial(self.positions, int(path.name)))
        for path in [*_files(self.root / "commits"), *_files(self.root / "sources" / "0")]:
            self._look(path, partial(_json_of, path))
        for sidecar in self.root.rglob(".*.crc"):
            sidecar.unlink()  # the file that it guards has just been read, and a torn checksum would stop Spark

    def mend_owner(self, store: Store) -> str:
        """Return the id of the query to which the job's state belongs; "" if there is no state.

        Spark and the job's state both keep the id. If it is not whole in one of them, it is written again from the
        other.
        """
        spark, owner = self.root / "metadata", store.root / "query.json"
        known = self._look(owner, partial(_owner, store))
        torn = not known and str(owner.relative_to(self.root)) in self.damaged
        if spark.exists() and not self._look(spark, partial(query_id, self.root)) and known:
            write_atomically(spark, json.dumps({"id": _owner(store)}).encode())
        if torn and spark.exists():
            store.write_json("query.json", {"id": query_id(self.root)})
        return _owner(store) if owner.exists() else ""

    def mend_state(self, store: Store, cores: int) -> int:
        """Set aside the parts of the job's state that are not whole; return the last whole batch, or -1."""
        for path in _visible(store.root / "layouts"):
            self._look(path, partial(_layout, store, path.name))
        for path in _visible(store.root / "driver"):
            self._look(path, partial(_driver, store, path.name))
        for batch in reversed(_numbers(store.root / "driver", "after-")):
            if self._whole(store, batch, cores):
                return batch
        return -1

    def set_aside(self, path: Path, why: str) -> None:
        """Move a file or directory of the checkpoint to `aside`, count it and log it."""
        if self._aside is None:
            self._aside = self.root / ASIDE / str(max(_numbers(self.root / ASIDE, ""), default=0) + 1)
        name = path.relative_to(self.root)
        target = self._aside / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        except OSError as error:
            raise StateError(f"{path}: damaged ({why}) and cannot be moved to {target}: {error.strerror}") from error
        self.damaged.append(str(name))
        metrics.SPARK_SET_ASIDE.inc()
        self._logger.warning("set aside", file=str(name), found=why, now=str(target))

    def set_back(self, batch: int, positions: Mapping[int, int], *, anew: bool = False) -> None:
        """Make Spark's logs end with a batch, so that the next batch begins at the given offsets.

        Args:
            positions: partition -> offset of `recovered`; used for a file that is missing.
            anew: use these positions in any case, because the log of before no longer exists.
        """
        offsets, commits = self.root / "offsets", self.root / "commits"
        for path in _files(offsets):
            if int(path.name) > batch + (0 if anew else 1):
                self.set_aside(path, f"a batch after {batch}, the last whole one")
        for path in _files(commits):
            if int(path.name) > batch:
                self.set_aside(path, f"a batch after {batch}, the last whole one")
        known = _files(offsets)
        pattern = _lines(known[-1])[1] if known else _PLAIN_OFFSETS
        ends = json.dumps({self._topic: {str(partition): offset for partition, offset in sorted(positions.items())}})
        # Spark reads the file before its last one as well.
        for number in range(max(0, batch - 1), batch + 1):
            if anew or not (offsets / str(number)).exists():
                self._write(offsets / str(number), f"{_LOG_VERSION}\n{pattern}\n{ends}")
        if not (commits / str(batch)).exists():
            self._write(commits / str(batch), f"{_LOG_VERSION}\n{_PLAIN_COMMIT}")

    def drop_planned(self, store: Store, batch: int) -> None:
        """Set aside what was planned after a whole batch, so that Spark cuts the next batch anew."""
        for path in [*_files(self.root / "offsets"), *_visible(store.root / "driver")]:
            number = path.name.removeprefix("before-")
            if number.isdecimal() and int(number) > batch:
                self.set_aside(path, "the batch is cut anew")

    def start_anew(self, store: Store, why: str = "no batch is whole") -> None:
        """Set everything aside: the job cannot go on from any of it."""
        self._aside = None  # directories of the same names may stand there
        for path in [*self.root.glob("*"), *store.root.glob("*")]:
            if path.name not in (ASIDE, MARKER, "lock", store.root.name):
                self.set_aside(path, why)

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())

    def _whole(self, store: Store, batch: int, cores: int) -> bool:
        """Return whether everything that a batch left is whole, and set aside what is not."""
        states = [f"core-{core}/state-{batch}" for core in range(cores)]
        standing = _driver(store, f"after-{batch}")
        queries: list[str] = []
        if standing.program:
            name = program_file(standing.program)
            if not self._look(store.root / name, partial(_program, store, name)):
                self._logger.warning("a batch is not whole", batch=batch, missing=name)
                return False
            queries = state_files(_program(store, name), batch, cores)
        for name in (f"layouts/{standing.layout}", *states, *queries):
            if not (store.root / name).exists():
                self._logger.warning("a batch is not whole", batch=batch, missing=name)
                return False
        kept = [(name, partial(_core, store, name)) for name in states]
        kept += [(name, partial(_queries, store, name)) for name in queries]
        return all(self._look(store.root / name, read) for name, read in kept)

    def _look(self, path: Path, read: Callable[[], object]) -> bool:
        """Return whether a file exists and can be read; one that exists and cannot be read is set aside."""
        if not path.exists():
            return False
        try:
            read()
        except _NOT_WHOLE as error:
            self.set_aside(path, str(error) or type(error).__name__)
            return False
        return True


def query_id(checkpoint: Path) -> str:
    """Return the id that Spark has given the query of a checkpoint; "" if the checkpoint is new."""
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path}: Spark's checkpoint is damaged: {error}; empty the checkpoint") from error


def _core(store: Store, name: str) -> None:
    """Read the state of a core, and check the files of rows that it needs.

    Raises:
        StateError, ValueError, OSError: one of these files is not whole (`_NOT_WHOLE`).
    """
    path = store.root / name
    minute = CoreState.load(store.read(name), path).minute
    for batch, least, left in zip(minute.batch.tolist(), minute.least.tolist(), minute.left.tolist(), strict=True):
        rows = path.with_name(f"rows-{batch}")
        steps = np.memmap(rows, dtype=MINUTE_ROW, mode="r")["step"]
        if len(steps) < left or steps[0] != least or (np.diff(steps) < 0).any():
            raise StateError(f"{rows}: damaged: found {len(steps)} rows, not in the order of steps from {least} on")


def _queries(store: Store, name: str) -> None:
    kind = name.removeprefix(f"{FOLDER}/").rpartition("-")[0]
    check_state(store.read(name), store.root / name, partial(read_panes, store, kind))


def _program(store: Store, name: str) -> QueryProgram:
    return QueryProgram.load(store.read(name))


def _layout(store: Store, name: str) -> Layout:
    return Layout.load(store.read(f"layouts/{name}"))


def _driver(store: Store, name: str) -> JobStanding:
    fields = store.read_json(f"driver/{name}")
    return JobStanding.of(fields) if name.startswith("after-") else JobStanding()


def _owner(store: Store) -> str:
    return str(store.read_json("query.json")["id"])


def _visible(directory: Path) -> list[Path]:
    return [path for path in directory.glob("*") if not path.name.startswith(".")]


def _numbers(directory: Path, prefix: str) -> list[int]:
    names = (path.name.removeprefix(prefix) for path in directory.glob(f"{prefix}*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _files(directory: Path) -> list[Path]:
    return [directory / str(number) for number in _numbers(directory, "")]


def _lines(path: Path) -> list[str]:
    """Return the lines of one of Spark's log files; some files begin with a zero byte.

    Raises:
        ValueError, OSError: the file is empty, of another version or not text.
    """
    data = path.read_bytes()
    lines = data.removeprefix(b"\0").decode().splitlines()
    if not lines or lines[0] != _LOG_VERSION:
        raise ValueError(f"found {data[:20]!r}, expected {_LOG_VERSION} and what follows" if data else "empty")
    return lines


def _json_of(path: Path) -> object:
    _, text = _lines(path)
    return json.loads(text)
