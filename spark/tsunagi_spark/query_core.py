"""The query core: runs the queries in CQL on the rows of all P-SORT cores, one step after the other.

A step is complete for queries when it is complete for every group, since a query may read sensors of several groups.
Rows of groups that are ahead wait here. Rows of a slot that was left behind, and comes back, are too late for queries:
they are counted, and stand in `results` as readings.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tsunagi.query.catalog import READINGS
from tsunagi.query.encoding import EncodedBlock, encode_rows, run_name
from tsunagi.query.placing import reading_streams, together
from tsunagi.query.readings import Readings
from tsunagi.query.relations import Rows
from tsunagi.query.results import ENDED
from tsunagi.query.running import Queries
from tsunagi.query.snapshots import Get, pack, unpack
from tsunagi.query.sums import Sums
from tsunagi.query.windows import Piece, Stored
from tsunagi.runtime.messages import VERSION, ResultBlock
from tsunagi_spark.blocks import SlotBlock
from tsunagi_spark.complete_rows import CompleteRows, no_rows
from tsunagi_spark.events import Events
from tsunagi_spark.frontier import NEVER, SlotMark, frontiers
from tsunagi_spark.merge import CoreTask, counted_slots
from tsunagi_spark.query_program import QueryProgram
from tsunagi_spark.state import seal_body, unseal_body
from tsunagi_spark.summed_rows import SummedRows

_ADVANCE_STEPS = 2_000
"""Most steps for which queries are advanced at once: rows of many instants are in memory together."""


def query_frontier(task: CoreTask, blocks: Sequence[SlotBlock]) -> int:
    """Return the last step that is complete for every group, by what all cores are told of slots."""
    last_step, counted = counted_slots(task, blocks)
    held = np.asarray(task.layout.held.any(axis=0)).reshape(1, -1)
    return int(frontiers(held, last_step, counted)[0])


@dataclass(slots=True)
class QueryFigures:
    """What is known of a query.

    Attributes:
        since: the step behind which it began.
        rows: how many rows it has written.
        late: how many readings came too late for it.
        fault: why it does not run; "" = it runs.
        state_bytes: size of its state.
    """

    since: int
    rows: int = 0
    late: int = 0
    fault: str = ""
    state_bytes: int = 0


@dataclass
class PaneFiles:
    """The files of panes that queries need: one for each batch that has completed a block of them.

    Attributes:
        needed: the numbers of the files that hold panes which queries need; a file has the number of its batch.
        dropped: (number of a file, batch after which nobody needed it).
        written: what this batch's file has.
        size: bytes of the pieces that were put or met since it was set to 0.
    """

    needed: set[int] = field(default_factory=set)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    written: bytes = b""
    size: int = 0
    _batch: int = 0
    _met: set[int] = field(default_factory=set)
    _parts: list[bytes] = field(default_factory=list)

    @property
    def known(self) -> bool:
        """Whether there are files that have not been forgotten."""
        return bool(self.needed or self.dropped)

    @staticmethod
    def of(fields: Sequence[Any]) -> PaneFiles:
        """Return those that the head of a state file names."""
        needed, dropped = fields
        return PaneFiles(set(needed), [(file, batch) for file, batch in dropped])

    def begin(self, batch: int) -> None:
        """Begin with the pieces of a batch."""
        self._batch, self._met, self._parts, self.written = batch, set(), [], b""

    def put(self, piece: Piece) -> Stored:
        """Take in a compact piece that queries need; return where it is kept."""
        if piece.stored is None:
            data = pack(piece)
            offset = sum(map(len, self._parts))
            piece.stored = Stored(self._batch, offset, len(data), zlib.crc32(data))
            self._parts.append(data)
        self._met.add(piece.stored.file)
        self.size += piece.stored.length
        return piece.stored

    def end(self) -> None:
        """Take in that all pieces have been put."""
        self.written = b"".join(self._parts)
        self.dropped += [(file, self._batch) for file in sorted(self.needed - self._met)]
        self.needed = self._met

    def forget(self, upto: int) -> list[int]:
        """Return the files that nobody has needed since a batch, and forget them."""
        gone = [file for file, batch in self.dropped if batch <= upto]
        self.dropped = [(file, batch) for file, batch in self.dropped if batch > upto]
        return gone


@dataclass
class QueryCore:
    """Queries with all that they keep between two batches.

    Args:
        published: the queries whose rows this core sends.
        tells: whether this core says in `results` where these queries begin and end.
        begin: the first step that counts; NEVER = the first with a reading.
        summed: whether rows come added up.
        filling: how far each slot has been read in the log, if the core is filled from there; None = it has caught up,
            and goes on with what the P-SORT cores have complete.

    Attributes:
        done: the last step for which queries have given their rows.
        first: the first step with a reading; NEVER until one is known.
        waiting: rows of later steps.
        events: events of later steps.
        sums: what is added up of later steps, by query.
        known: of each query whose rows come added up: its digest, and the last step of which rows may have come before
            the query was known. It begins behind that.
        digests: for each query, the digest of all that its state depends on.
        figures: what is known of each query.
        told: the queries of which this core has said where they begin.
        panes: the files with panes of windows that queries still need, by number, and those of before with the batch
            in which they were needed no more.
    """

    program: QueryProgram
    published: frozenset[str]
    tells: bool = True
    done: int = NEVER
    begin: int = NEVER
    summed: bool = False
    filling: dict[int, SlotMark] | None = None
    first: int = NEVER
    waiting: CompleteRows = field(default_factory=no_rows)
    events: Events = field(default_factory=Events)
    sums: dict[str, list[Sums]] = field(default_factory=dict)
    known: dict[str, tuple[str, int]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    figures: dict[str, QueryFigures] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    panes: PaneFiles = field(default_factory=PaneFiles)
    _packed: dict[str, bytes] = field(default_factory=dict)

    @cached_property
    def queries(self) -> Queries:
        """The queries that run here."""
        compiled = self.program.compiled
        summed = reading_streams(compiled, self.published) if self.summed else ()
        return Queries(compiled, together(compiled, self.published), summed)

    @cached_property
    def _named(self) -> dict[str, set[str]]:
        """The columns of each stream that the queries name."""
        return {name: self.queries.named(name) for name in self.program.compiled.catalog.streams}

    @cached_property
    def _wanted(self) -> dict[str, str]:
        """The digests of the queries that run here."""
        return {name: self.program.digests[name] for name in self.queries.runs}

    # ---- a batch

    def know(self, handed: int) -> None:
        """Take in which queries there are; rows come added up for these alone.

        Args:
            handed: the last step of which P-SORT cores may have handed on rows in batches before.
        """
        self.known = {
            name: self.known[name] if self.known.get(name, ("",))[0] == digest else (digest, handed)
            for name, digest in self._wanted.items()
        }

    @property
    def waiting_sums(self) -> int:
        """How many cells wait."""
        return sum(len(part) for parts in self.sums.values() for part in parts)

    def advance(
        self,
        came: CompleteRows,
        first: int,
        upto: int,
        table: Readings,
        events: Sequence[bytes] = (),
        sums: Sequence[SummedRows] = (),
    ) -> Iterator[EncodedBlock]:
        """Yield the blocks of the queries' rows for the steps that are complete now.

        Args:
            came: what the P-SORT cores have complete, in any steps.
            first: the first step of which any of them has a reading; NEVER if none has one.
            upto: the last step that is complete for all groups.
            events: what slots have passed on, as `events.packed` returns it.
            sums: what the P-SORT cores have added up; then `came` has the steps alone.
        """
        step = came.rows["step"]
        came, over = came.behind(self.done)
        earliest, late_events = self.events.add(events, self.program.compiled, self.done)
        late = np.concatenate((step[:over], late_events, *(item.late(self.done) for item in sums)))
        for figures in self.figures.values() if len(late) else ():
            figures.late += int(np.count_nonzero(late > figures.since))
        for item in sums:
            for name, cells in item.sums.items():
                self.sums.setdefault(name, []).append(cells.some(cells.step > self.done))
        self.waiting = CompleteRows.of([self.waiting, came])
        self.first = min((step for step in (self.first, first, earliest) if step != NEVER), default=NEVER)
        if self.done == NEVER and NEVER < self.first <= upto:  # however batches are cut, this is the first reading
            self.done = max(self.first, self.begin) - 1
        yield from self._begun()
        while self.done < upto and self.done != NEVER:
            high = min(upto, self.done + _ADVANCE_STEPS)
            rest, count = self.waiting.behind(high)
            part = {name: column[:count] for name, column in self.waiting.rows.items()}
            readings = table.rows(part["step"], part["sensor"], part, self._named[READINGS])
            streams = {READINGS: readings} | self.events.take(high, self.program.compiled, self._named, table)
            since = {name: figures.since for name, figures in self.figures.items()}
            found = self.queries.advance(streams, self.done, high, since, self._ready(high))
            for name, why in self.queries.faults.items():
                self.figures[name].fault = why
            yield from self._blocks(found, self.waiting)
            self.waiting, self.done = rest, high

    def _ready(self, high: int) -> dict[str, list[Sums]]:
        """Return what is added up of the steps up to one, which waits no longer."""
        waiting, self.sums = self.sums, {}
        ready: dict[str, list[Sums]] = {}
        for name, parts in waiting.items():
            ready[name] = [part.some(part.step <= high) for part in parts]
            later = [part.some(part.step > high) for part in parts if len(part) and part.step.max() > high]
            if later:
                self.sums[name] = later
        return ready

    def _begun(self) -> Iterator[EncodedBlock]:
        """Begin the queries that are new, and yield the blocks that say where they and those that are gone begin."""
        if self.done == NEVER:
            return
        plans = self.program.compiled.queries
        for name in sorted(self.digests.keys() - self._wanted.keys()):
            self.digests.pop(name)
            self.figures.pop(name)
            if self.tells and name in self.told:
                self.told.remove(name)
                if name not in plans:  # otherwise it runs in another place now, which says where it begins
                    yield self._definition(name, ENDED, self.done)
        for name, digest in self._wanted.items():
            if self.digests.get(name) == digest:
                continue
            since = max(self.done, self.known[name][1]) if self.summed else self.done
            self.digests[name], self.figures[name] = digest, QueryFigures(since)
            if self.tells and name in self.published:
                self.told.add(name)
                yield self._definition(name, plans[name].text, since)

    def _definition(self, name: str, text: str, step: int) -> EncodedBlock:
        block = ResultBlock(
            version=VERSION,
            query=name,
            step=step,
            event_time_us=step * self.program.step_us,
            definition=text,
            run=self.program.runs.get(name, 0),
        )
        return EncodedBlock(name, "", step, 0, 0, b"%b%d" % (run_name(name, ""), step), block.SerializeToString())

    def _blocks(self, found: Mapping[str, Rows], complete: CompleteRows) -> Iterator[EncodedBlock]:
        for name in sorted(self.published & found.keys()):
            within, rows = self.program.compiled.queries[name].within, found[name].only_taken()
            self.figures[name].rows += len(rows)
            run = self.program.runs.get(name, 0)
            yield from encode_rows(name, rows, within, self.program.step_us, complete.appended_at, run)

    def _pack(self, most_bytes: int) -> None:
        """Write down the state of each query that runs, and stop those that have too much."""
        self._packed = {}
        for name, run in self.queries.runs.items():
            figures = self.figures.get(name)
            if figures is None or figures.fault:
                continue
            self.panes.size = 0
            packed = pack(run.dump(), self.panes.put)
            figures.state_bytes = len(packed) + self.panes.size
            if figures.state_bytes <= most_bytes:
                self._packed[name] = packed
                continue
            found, most = figures.state_bytes / 1e6, most_bytes / 1e6
            figures.fault = f"its state has grown to {found:.0f} MB, [query] state_mb allows {most:.0f}"
            self.queries.faults[name] = figures.fault
            self.queries.stop(name)

    # ---- state

    def dump(self, batch: int, most_bytes: int) -> tuple[bytes, bytes]:
        """Return what is kept after a batch: the bytes of a state file, and those of the batch's file of panes.

        Panes of whole blocks are written once. So a batch does not cost more because windows are long.

        Args:
            most_bytes: a query whose state is larger is stopped.
        """
        self.panes.begin(batch)
        self._pack(most_bytes)
        self.panes.end()
        head = {
            "done": self.done,
            "first": self.first,
            "filling": self.filling,
            "told": sorted(self.told),
            "panes": [sorted(self.panes.needed), self.panes.dropped],
            "digests": self.digests,
            "figures": {name: [item.since, item.rows, item.late, item.fault] for name, item in self.figures.items()},
        }
        packed = {name: np.frombuffer(data, dtype=np.uint8) for name, data in self._packed.items()}
        more = {"events": self.events.dump()} if len(self.events) else {}
        if self.summed:
            head["known"] = {name: list(item) for name, item in self.known.items()}
            more["sums"] = {name: [part.tree() for part in parts] for name, parts in self.sums.items()}
        state = seal_body(pack({"head": json.dumps(head), "queries": packed, "waiting": self.waiting.arrays()} | more))
        return state, self.panes.written

    def pieces(self) -> dict[Stored, Piece]:
        """Return the panes that were put away, and are in memory."""
        windows = [
            window
            for run in self.queries.runs.values()
            for window in (run.grouping.windows() if run.grouping else {}).values()
        ]
        return {piece.stored: piece for window in windows for piece in window.history if piece.stored}

    def load(self, data: bytes, path: Path, get: Get, like: QueryCore | None = None) -> None:
        """Go on from a state file, perhaps with another program: queries that are the same keep their state.

        Args:
            get: returns panes that are in files of their own.
            like: the same core behind another batch, whose work is used where it is the same. Nobody uses it any more.

        Raises:
            StateError: the file is damaged.
        """
        known = {} if like is None else like.pieces()
        others = {} if like is None else like.queries.runs
        found = unpack(unseal_body(data, path))
        tree = json.loads(found["head"])
        self.done, self.first = tree["done"], tree["first"]
        filling = tree.get("filling")
        self.filling = None if filling is None else {int(slot): SlotMark.of(mark) for slot, mark in filling.items()}
        self.waiting = CompleteRows.from_arrays(found["waiting"])
        self.events = Events.load(found.get("events", {}))
        self.panes = PaneFiles.of(tree["panes"])
        self.digests, self.told = dict(tree["digests"]), set(tree["told"])
        self.figures = {name: QueryFigures(*item) for name, item in tree["figures"].items()}
        self.known = {name: (digest, step) for name, (digest, step) in tree.get("known", {}).items()}
        same = {name for name, digest in self.digests.items() if self._wanted.get(name) == digest}
        sums = {name: [Sums.of(part) for part in parts] for name, parts in found.get("sums", {}).items()}
        here = {name for name, (digest, _) in self.known.items() if self._wanted.get(name) == digest}
        self.sums = {name: parts for name, parts in sums.items() if name in here}
        self.queries.faults = {name: self.figures[name].fault for name in same if self.figures[name].fault}
        for name in same & self.queries.runs.keys() - self.queries.faults.keys():
            packed = found["queries"].get(name)
            if packed is None:  # until now it ran elsewhere
                self.digests.pop(name)
            else:
                self.queries.runs[name].load(unpack(packed.tobytes(), get, known), others.get(name))

    def report(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each query, for the driver."""
        return {
            name: {
                "since": item.since,
                "rows": item.rows,
                "late": item.late,
                "fault": item.fault,
                "state_bytes": item.state_bytes,
                "filled_to": 0 if self.filling is None else self.done,
            }
            for name, item in self.figures.items()
        }


def pane_files(data: bytes, path: Path) -> PaneFiles:
    """Return the files of panes that a state file names.

    Raises:
        StateError: the file is damaged.
    """
    return PaneFiles.of(json.loads(unpack(unseal_body(data, path))["head"])["panes"])


def check_state(data: bytes, path: Path, get: Get) -> None:
    """Read a state file with all panes that it needs.

    Raises:
        StateError, ValueError: one of them is damaged or missing.
    """
    for packed in unpack(unseal_body(data, path))["queries"].values():
        unpack(packed.tobytes(), get)


@lru_cache(maxsize=100_000)
def partition_of(query: str, group: str, cores: int) -> int:
    """Return the partition of `results` for a query's blocks of a group: all blocks of one order are in one."""
    return zlib.crc32(f"{query}/{group}".encode()) % cores
