"""The query cores' work in Spark: what P-SORT cores hand to them, and how they run, send and keep their state."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import structlog

from tsunagi.query.catalog import READINGS
from tsunagi.query.encoding import EncodedBlock
from tsunagi.query.opk import places_of
from tsunagi.query.readings import Readings
from tsunagi.query.snapshots import Tree, pack, unpack
from tsunagi.query.windows import Stored
from tsunagi.runtime.columns import pack_arrays, unpack_arrays
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RESULTS, LogError, Reader
from tsunagi.runtime.results import parse_block
from tsunagi.runtime.settings import KafkaSettings
from tsunagi_spark.complete_rows import CompleteRows, no_rows
from tsunagi_spark.events import apart_by, first_steps
from tsunagi_spark.fill import Past, fill, time_for
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.layout import Layout
from tsunagi_spark.merge import Ordered
from tsunagi_spark.publish import Sending, Stopwatch, messages
from tsunagi_spark.query_core import QueryCore, pane_files, partition_of
from tsunagi_spark.query_program import QueryProgram
from tsunagi_spark.state import KEPT, StateError, Store
from tsunagi_spark.summed_rows import SummedRows
from tsunagi_spark.task_context import BatchContext, JobContext, layout_of

QUERIES = -2
"""Stands for a query core in reports."""
_FILL = "fill-"
"""What the kinds of query cores begin with that have one query, which is filled from the log or was."""
_OPK = "opk-"
"""What the kinds of query cores begin with that have the queries of one OPK."""
FOLDER = "queries"
"""The folder of the query cores' state in the job's store."""
_TIMES = 100
"""Number of blocks for which a report says when their inputs came."""

_kept: dict[tuple[str, str], tuple[str, int, QueryCore]] = {}
"""What this process has of the query cores, by checkpoint and kind: the Spark query, the batch, and the state behind
it. Spark's Python workers outlive a batch, and to read the state again takes as long as its size."""
_programs: dict[tuple[str, int], QueryProgram] = {}
"""The newest program, by Spark query and serial."""
_tables: dict[tuple[str, int, int], Readings] = {}
"""What the sensors table says, by Spark query, layout and program."""


class QueryParts(NamedTuple):
    """What one P-SORT core has complete, for one query core.

    Attributes:
        first: the first step of which it has a reading or hands on an event; NEVER if there is none.
        upto: the last step that is complete for all groups; all cores say the same.
        split: the rows of the groups that belong to the query core, for the queries that are split; None = there are
            no such queries.
        whole: all rows, for the other queries; None = it does not run these.
        events: the events that the P-SORT core hands on, for the queries that get all rows; None = there are none.
        apart: of each OPK by which queries are computed apart, the rows and events of the query core; None = there are
            no such queries.
        sums: the rows and events added up, for the queries that need no more; None = it does not run these.
    """

    first: int
    upto: int
    split: bytes | None = None
    whole: bytes | None = None
    events: bytes | None = None
    apart: bytes | None = None
    sums: bytes | None = None


def parts_of(
    job: JobContext, context: BatchContext, ordered: Ordered, upto: int, events: Sequence[bytes]
) -> Iterator[QueryParts]:
    """Yield what a P-SORT core has complete, for each query core.

    Args:
        upto: the last step that is complete for all groups.
        events: the events that came with its blocks.
    """
    layout = layout_of(job, context)
    complete = CompleteRows.from_ordered(ordered)
    steps = [int(complete.rows["step"].min())] if len(complete.rows["step"]) else []
    unpacked = [unpack(data) for data in events]
    first = min([*steps, *first_steps(unpacked)], default=NEVER)
    program = _program(context, Store(Path(job.checkpoint)), context.program)
    by_group = program.places_in(layout)[layout.group_of[ordered.rows.sensor]] if context.split else None
    table = _table(context, program, layout)
    shares = _shares(program, table, layout.cores, complete, unpacked)
    for core in range(layout.cores):
        split = None if by_group is None else _packed(complete.some(by_group == core))
        apart = pack({name: share[core] for name, share in shares.items()}) if shares else None
        found = QueryParts(first, upto, split, apart=apart)
        if core == _whole_core(layout) and context.whole:
            came = pack_arrays({str(place): np.frombuffer(data, np.uint8) for place, data in enumerate(events)})
            found = found._replace(whole=_packed(complete), events=came if events else None)
        if core == _whole_core(layout) and context.sums:
            found = found._replace(sums=pack(SummedRows.added_up(complete, events, program, table).tree()))
        yield found


def _shares(
    program: QueryProgram, table: Readings, cores: int, complete: CompleteRows, events: Sequence[Tree]
) -> dict[str, list[Tree]]:
    """Return of each OPK, by its name, the rows and events of each query core."""
    found: dict[str, list[Tree]] = {}
    for name, opk in program.opk_names.items():
        columns = dict(opk.columns)
        if READINGS in columns:
            whose = places_of(table.of_sensor(columns[READINGS]), cores)[complete.rows["sensor"]]
        else:
            whose = np.full(len(complete.rows["sensor"]), -1)
        came = apart_by(events, columns, program.compiled, table, cores)
        found[name] = [
            {"rows": complete.some(whose == core).arrays(), "events": [np.frombuffer(data, np.uint8) for data in mine]}
            for core, mine in enumerate(came)
        ]
    return found


def _packed(complete: CompleteRows) -> bytes:
    return pack_arrays(complete.arrays())


def _whole_core(layout: Layout) -> int:
    """Return the query core that runs the queries which need all rows: not the one that merges cut groups, if any."""
    return layout.cores - 1


def program_file(serial: int) -> str:
    """Return the name of the file that has a version of the statements in force."""
    return f"programs/{serial}"


def split_file(batch: int, core: int) -> str:
    """Return the name of the file that has what a query core keeps of split queries after a batch."""
    return f"{FOLDER}/split-{core}-{batch}"


def whole_file(batch: int) -> str:
    """Return the name of the file that has what the queries that need all rows keep after a batch."""
    return f"{FOLDER}/whole-{batch}"


def panes_file(kind: str, batch: int) -> str:
    """Return the name of the file with the panes that a batch has put away; `kind` is `split-CORE` or `whole`."""
    return f"{FOLDER}/panes-{kind}-{batch}"


def read_panes(store: Store, kind: str, where: Stored) -> bytes:
    """Return panes that were put away.

    Raises:
        StateError: they are missing or damaged.
    """
    name = panes_file(kind, where.file)
    data = store.read(name, where.offset, where.length)
    if len(data) != where.length or zlib.crc32(data) != where.checksum:
        raise StateError(f"{store.root / name}: damaged: panes at {where.offset} are not those that were written")
    return data


def fill_file(batch: int, query: str) -> str:
    """Return the name of the file that has what a query keeps after a batch which is filled from the log, or was."""
    return f"{FOLDER}/{_FILL}{query}-{batch}"


def opk_file(batch: int, opk: str, core: int) -> str:
    """Return the name of the file that has what a query core keeps of the queries that are computed apart by an OPK."""
    return f"{FOLDER}/{_OPK}{opk}-{core}-{batch}"


def summed_file(batch: int) -> str:
    """Return the name of the file that has what the queries whose rows come added up keep after a batch."""
    return f"{FOLDER}/summed-{batch}"


def state_files(program: QueryProgram, batch: int, cores: int) -> list[str]:
    """Return the names of all files that queries need to go on after a batch."""
    split = [split_file(batch, core) for core in range(cores)] if program.split else []
    fills = [fill_file(batch, query) for query in sorted(program.fills)]
    apart = [opk_file(batch, opk, core) for opk in sorted(program.opk_names) for core in range(cores)]
    one = [whole_file(batch)] * bool(program.whole) + [summed_file(batch)] * bool(program.summed)
    return split + one + fills + apart


def forget_ended(store: Store, fills: Collection[str], opks: Collection[str], batch: int) -> None:
    """Remove what is left of queries that are gone and had files of their own: filled ones, and those of an OPK.

    Args:
        fills: the queries that are filled, or have been, and are there still.
        opks: the names of the OPKs by which there are queries still.
        batch: files of batches after this one stay, since a batch may run again.
    """
    for prefix, known in ((_FILL, fills), (_OPK, opks)):
        for path in (store.root / FOLDER).glob(f"*{prefix}*"):
            name, _, number = path.name.removeprefix("panes-").removeprefix(prefix).rpartition("-")
            if prefix == _OPK:
                name = name.rpartition("-")[0]  # the core stands behind it
            if name not in known and number.isdecimal() and int(number) <= batch:
                path.unlink(missing_ok=True)


def run_queries(
    job: JobContext, context: BatchContext, number: int, parts: Sequence[QueryParts]
) -> Iterator[dict[str, Any]]:
    """Run a query core on a batch: send the rows of its queries, and keep their state; yield its reports.

    Args:
        number: the number of the query core.
        parts: what each P-SORT core has complete for it.
    """
    first = min((part.first for part in parts if part.first != NEVER), default=NEVER)
    upto = parts[0].upto
    yield _run(job, context, _split_place(number), _Came(_together(part.split for part in parts), first, upto))
    shares = [unpack(part.apart) for part in parts if part.apart is not None]
    for name in context.opks:
        mine = [share[name] for share in shares if name in share]
        rows = [CompleteRows.from_arrays(share["rows"]) for share in mine]
        events = [array.tobytes() for share in mine for array in share["events"]]
        state_file = partial(opk_file, opk=name, core=number)
        place = _Place(f"{_OPK}{name}-{number}", state_file, tells=number == 0, opk=name)
        came = _Came(CompleteRows.of(rows) if rows else no_rows(), first, upto, events)
        yield _run(job, context, place, came)
    if number == _whole_core(layout_of(job, context)):
        events = [array.tobytes() for part in parts if part.events for array in unpack_arrays(part.events).values()]
        came = _Came(_together(part.whole for part in parts), first, upto, events)
        yield _run(job, context, _Place("whole", whole_file, tells=True), came)
        if context.sums:
            sums = [SummedRows.of(unpack(part.sums)) for part in parts if part.sums]
            steps = CompleteRows.of([item.complete for item in sums]) if sums else no_rows()
            yield _run(job, context, _Place("summed", summed_file, tells=True), _Came(steps, first, upto, (), sums))
        until_s = time.monotonic() + time_for(job.slide_us)  # for all of them together
        for name in context.fills:  # behind the others, which should not wait for it
            place = _Place(f"{_FILL}{name}", partial(fill_file, query=name), tells=True, filled=name)
            yield _run(job, context, place, came, until_s)


def run_direct(job: JobContext, context: BatchContext, number: int, ordered: Ordered, upto: int) -> dict[str, Any]:
    """Run a query core on what the P-SORT core of the same number has complete; return its report.

    There is no shuffle then. It gives the same as `run_queries`.
    """
    came = CompleteRows.of([CompleteRows.from_ordered(ordered)])
    first = int(came.rows["step"][0]) if len(came.rows["step"]) else NEVER
    return _run(job, context, _split_place(number), _Came(came, first, upto))


class _Came(NamedTuple):
    """What has come for a query core: the arguments of `QueryCore.advance`."""

    rows: CompleteRows
    first: int
    upto: int
    events: Sequence[bytes] = ()
    sums: Sequence[SummedRows] = ()


class _Place(NamedTuple):
    """A query core.

    Attributes:
        kind: `split-CORE`, `whole`, `summed`, `fill-QUERY`, or `opk-NAME-CORE`.
        state_file: returns the name of the file with its state after a batch.
        tells: whether it says in `results` where its queries begin and end.
        filled: the query that it has, if this is filled from the log or was; "" = it has others.
        opk: the name of the OPK by which its queries are computed apart; "" = it has others.
    """

    kind: str
    state_file: Callable[[int], str]
    tells: bool
    filled: str = ""
    opk: str = ""

    def published(self, program: QueryProgram) -> frozenset[str]:
        """Return the queries of a program whose rows it sends."""
        if self.filled:
            return frozenset({self.filled} & program.fills.keys())
        if self.opk:
            opk = program.opk_names.get(self.opk)
            return frozenset() if opk is None else program.apart[opk]
        return {"whole": program.whole, "summed": program.summed}.get(self.kind, program.split)


def _split_place(number: int) -> _Place:
    return _Place(f"split-{number}", partial(split_file, core=number), tells=number == 0)


def _together(parts: Iterable[bytes | None]) -> CompleteRows:
    """Return the rows of all P-SORT cores, in order."""
    found = [CompleteRows.from_arrays(unpack_arrays(data)) for data in parts if data is not None]
    return CompleteRows.of(found) if found else no_rows()


def _run(job: JobContext, context: BatchContext, place: _Place, came: _Came, until_s: float = 0.0) -> dict[str, Any]:
    """Run a query core on a batch; return its report.

    Args:
        until_s: until when, by `time.monotonic`, a query is filled from the log, if it is.
    """
    watch = Stopwatch()
    cpu_s = time.thread_time()
    store = Store(Path(job.checkpoint))
    layout = layout_of(job, context)
    core = _taken(job, context, store, place)
    kind, state_file = place.kind, place.state_file
    watch.lap("load_s")
    sent, places, appended = 0, Counter[int](), list[int]()
    blocks = count = 0
    with Sending(job.kafka) as out:
        table = _table(context, core.program, layout)
        for block in _advance(job, context, core, came, table, until_s):
            partition = partition_of(block.query, block.group, layout.cores)
            records = [(block.key, block.value)] if job.form == "blocks" else _as_json(block, layout)
            for key, value in records:
                out.send(RESULTS, partition, key, value)
                sent += len(value)
            places[partition] += len(records)
            blocks, count = blocks + 1, count + block.rows
            if block.appended_us:
                appended.append(block.appended_us)
        watch.lap("compute_s")
    watch.lap("send_s")
    if core.published or core.panes.known:  # a batch before may run again, and needs its panes
        state, panes = core.dump(context.batch, job.query_bytes)
        if panes:
            store.write(panes_file(kind, context.batch), panes)
        store.write(state_file(context.batch), state)
        for number in core.panes.forget(context.batch - KEPT):
            store.remove(panes_file(kind, number))
        _kept[job.checkpoint, kind] = context.query, context.batch, core
    store.remove(state_file(context.batch - KEPT))
    watch.lap("save_s")
    return {
        "core": QUERIES,
        "blocks": blocks,
        "rows": count,
        "bytes": sent,
        "sent_to": places,
        "appended_us": appended[-_TIMES:],
        "sent_us": time.time_ns() // 1000,
        "cpu_s": time.thread_time() - cpu_s,
        "seconds": watch.seconds,
        "waiting": len(core.waiting.rows["step"]) + len(core.events) + core.waiting_sums,
        "queries": core.report(),
    }


def _as_json(block: EncodedBlock, layout: Layout) -> list[tuple[bytes, bytes]]:
    return list(messages(parse_block(block.value), layout, "json"))


def _advance(
    job: JobContext, context: BatchContext, core: QueryCore, came: _Came, table: Readings, until_s: float
) -> Iterator[EncodedBlock]:
    """Yield the blocks of a batch; of a query that is filled from the log those of the past first."""
    if core.filling is not None:
        delivered = np.array(context.delivered, dtype=np.int64)
        past = Past(layout_of(job, context), context.marks, delivered, job.slide_us)
        try:
            yield from fill(core, past, _reader(job.kafka), until_s, table)
        except LogError as error:  # it is filled later, and the others go on
            structlog.get_logger("tsunagi.spark").warning("a query is not filled now", detail=str(error))
    if core.filling is None:
        yield from core.advance(came.rows, came.first, came.upto, table, came.events, came.sums)


_readers: dict[str, Reader] = {}


def _reader(settings: KafkaSettings) -> Reader:
    """Return this process's reader of what queries are filled with."""
    key = settings.model_dump_json()
    if key not in _readers:
        _readers[key] = KafkaLog(settings, client_id="tsunagi-spark-fill").reader()
    return _readers[key]


def _taken(job: JobContext, context: BatchContext, store: Store, place: _Place) -> QueryCore:
    """Return a query core as it was behind the batch before, with the program that is in force now.

    What this process has kept is used once: this batch changes it, and may have to run again from the file. If it is
    of an earlier batch, since another process ran the one before, only what has changed since is read anew. A query
    core that had no queries before begins behind all steps that any group has delivered, since rows of those are gone;
    and if there are streams of events, behind all steps whose events may have been read.
    """
    kind = place.kind
    kept = _kept.pop((job.checkpoint, kind), None)
    if kept is not None:
        query, batch, core = kept
        if (query, batch, core.program.serial) == (context.query, context.batch - 1, context.program):
            return core  # no query is new
    like = kept[2] if kept is not None and kept[0] == context.query else None
    program = _program(context, store, context.program)
    before = _program(context, store, context.program_before) if context.program_before else None
    done = max(context.delivered, default=NEVER)
    if len(program.compiled.catalog.streams) > 1:
        done = max([done, *(mark.step + 1 for mark in context.marks.values() if mark.step != NEVER)])
    core = QueryCore(program, place.published(program), place.tells, done, summed=kind == "summed")
    anew = False
    if place.filled in program.fills:
        core.done, core.begin, core.filling = NEVER, program.fills[place.filled], {}
        anew = before is not None and before.runs.get(place.filled) != program.runs[place.filled]
    if before is not None:
        name = place.state_file(context.batch - 1)
        get = partial(read_panes, store, kind)
        if place.published(before) and not anew:
            core.load(store.read(name), store.root / name, get, like)
        elif (data := store.find(name)) is not None:
            core.panes = pane_files(data, store.root / name)
    if core.summed:
        core.know(done)
    if not core.published:
        core.filling = None
    return core


def _program(context: BatchContext, store: Store, serial: int) -> QueryProgram:
    key = context.query, serial
    if key not in _programs:
        if len(_programs) > KEPT:
            _programs.clear()
        _programs[key] = QueryProgram.load(store.read(program_file(serial)))
    return _programs[key]


def _table(context: BatchContext, program: QueryProgram, layout: Layout) -> Readings:
    key = context.query, context.layout, context.program
    if key not in _tables:
        _tables.clear()
        _tables[key] = Readings(layout.table, program.step_us, program.kinds)
    return _tables[key]
