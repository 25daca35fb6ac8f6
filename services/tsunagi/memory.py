"""Runs a pipeline in one process: edges, a worker and the ordering of results, on a log in memory, in virtual time.

The code that computes is the same as on Kafka: `tsunagi.edge.service.EdgeService` reads, cuts windows and publishes,
`tsunagi.worker.host.ReplicaHost` runs the slots, and `tsunagi_spark` orders and counts as its job does, but without
Spark. A run in memory has no takeovers, no acknowledgements by Spark and no scaler, since these need several processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import structlog

from tsunagi.edge.service import EdgeService
from tsunagi.installation import missing
from tsunagi.operator_names import PipelineError
from tsunagi.query.definitions import check, read_definitions
from tsunagi.query.encoding import EncodedBlock
from tsunagi.query.readings import Readings, attribute_kinds
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.log import CONTEXTS, PLAN, RECOVERED, RESULTS, TOPICS, TUPLES
from tsunagi.runtime.messages import VERSION, Assignment, Placement, Plan
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.scaler.placing import place_sensors
from tsunagi.slot.operators import OperatorFailedError, build_chain
from tsunagi.worker.host import ReplicaHost

if TYPE_CHECKING:
    from tsunagi_spark.layout import Layout
    from tsunagi_spark.merge import Ordered

NODE = "gw-1"
"""The name of the only worker."""
LEAD_S = 2.0
"""Virtual seconds before the first reading. Meanwhile the worker takes over its slots, and edges learn to which slots
they send."""
START_S = 0.05
"""Length of a turn before the first reading, in virtual seconds. It is short, so that the start has many turns."""


def _drop(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


_silent = structlog.wrap_logger(None, processors=[_drop])


def run_in_memory(settings: Settings, table: SensorTable) -> tuple[MemoryLog, Counter[str]]:
    """Run until the source has ended and everything has been computed.

    Args:
        settings: `source` is a CSV; its `origin_us` is the event time of its first row.

    Returns:
        The log, with all topics as on Kafka, and how many readings the edges could not use, by reason
        (docs/howto/sources.md).

    Raises:
        SourceError, SensorsError, OperatorError, ModelError: what was given cannot be used.
        PipelineError: the extra `spark` of the distribution is not installed.
        QueryError: a query in CQL cannot be understood.
        OperatorFailedError: an operator of the user failed. The message names a row if the operator fails on that row
            alone.
    """
    if settings.query.mode == "steps" and find_spec("pyarrow") is None:
        raise PipelineError(f"results are ordered with pyarrow, which is not installed here; {missing('spark')}")
    clock = ManualClock(settings.source.origin_us - round(LEAD_S * 1e6))
    slots = settings.slots.count
    log = MemoryLog(clock, dict.fromkeys(TOPICS, 1) | dict.fromkeys((TUPLES, RECOVERED, CONTEXTS), slots))
    slot_of = place_sensors(settings, table)
    placement = Placement(serial=1, slots=slots, slot=pack_sensors(slot_of), table_sha256=table.digest())
    _wish(log, b"placement", Plan(version=VERSION, placement=placement))
    for slot in range(slots):
        assignment = Assignment(slot=slot, owner=NODE, serial=slot + 1)
        _wish(log, f"assignment/{slot}".encode(), Plan(version=VERSION, assignment=assignment))
    with ExitStack() as open_now:
        host = ReplicaHost(settings, NODE, table, log.client(NODE), clock, _silent, threads=False)
        open_now.callback(host.close)
        edges = []
        for name in table.edges:
            edge = EdgeService(settings, name, log.client(name), clock, _silent)
            open_now.callback(edge.close, 0.0)
            edges.append(edge)
        try:
            _turns(settings, clock, log, host, edges)
        except OperatorFailedError as error:
            raise _with_row(host, error) from error.__cause__
        unusable = sum((edge.dead_letters.counts for edge in edges), Counter[str]())
    if settings.query.mode == "steps":
        _order(settings, table, placement, log)
    return log, unusable


def _wish(log: MemoryLog, key: bytes, plan: Plan) -> None:
    log.append(PLAN, 0, key, plan.SerializeToString())


def _turns(settings: Settings, clock: ManualClock, log: MemoryLog, host: ReplicaHost, edges: list[EdgeService]) -> None:
    """Let the edges and the worker act in turns until all edges are done.

    In each turn everybody acts until there is nothing left to do, so no turn begins with old work.
    """
    # Time moves by one step at a time. So nobody is late, however long a step is.
    turn_s = settings.steps.slide_s
    while not all(edge.done for edge in edges):
        host.heartbeats.send()
        for edge in edges:
            while not edge.done and edge.step() == 0.0:
                pass
        _settle(log, host)
        clock.advance(START_S if clock.monotonic() < LEAD_S else turn_s)


def _settle(log: MemoryLog, host: ReplicaHost) -> None:
    """Let the worker act until it has processed the whole log."""
    before: list[int] = []
    while (now := _progress(log, host)) != before:
        before = now
        host.step()


def _progress(log: MemoryLog, host: ReplicaHost) -> list[int]:
    ends = [log.stored(topic, slot).end for topic in (TUPLES, RECOVERED) for slot in range(log.layout[topic])]
    return [*ends, *(replica.slot.position for replica in host.replicas.values())]


def _with_row(host: ReplicaHost, error: OperatorFailedError) -> OperatorFailedError:
    """Return the error with the first row that alone makes a new operator fail in the same way, if there is one.

    There may be none: an operator may fail because of what it remembers, or because of several rows together.
    """
    if error.operator.startswith("query "):
        return error  # it names the query
    frame, kind = error.frame, type(error.__cause__)
    for replica in host.replicas.values():
        config = replica.wish.config
        names = dict(zip(config.sensors, config.names, strict=True))
        if not set(frame.sensor.tolist()) <= names.keys():
            continue
        for row in range(len(frame.sensor)):
            alone = build_chain(config, None).operator(error.operator)
            try:
                alone.process(frame.keep(np.array([row])))
            except Exception as again:  # noqa: BLE001 - its kind is compared with that of the first error
                if type(again) is kind:
                    sensor, value = names[int(frame.sensor[row])], float(frame.mean[row])
                    return error.at(f"sensor {sensor!r}, value {value!r}")
    return error


def _order(settings: Settings, table: SensorTable, placement: Placement, log: MemoryLog) -> None:
    """Write `results` as the Spark job does, as if the whole of `recovered` were one batch on one core."""
    # These modules need packages that are not installed with the services alone.
    from tsunagi_spark.decode import Arrived, decode  # noqa: PLC0415
    from tsunagi_spark.layout import make_layout  # noqa: PLC0415
    from tsunagi_spark.merge import CoreTask, advance, grown, result_blocks  # noqa: PLC0415
    from tsunagi_spark.publish import block_key  # noqa: PLC0415
    from tsunagi_spark.queries import QueryReadings, span_steps  # noqa: PLC0415
    from tsunagi_spark.query_core import query_frontier  # noqa: PLC0415
    from tsunagi_spark.windows import specs_of, window_blocks  # noqa: PLC0415

    slide_us = settings.steps.slide_us
    layout = make_layout(table, placement, 1, settings.spark.unknown_group)
    records = (
        Arrived(item.partition, item.offset, item.key, item.value, item.appended_us) for item in log.records(RECOVERED)
    )
    state = grown(None, layout)
    decoders = decode(records, {}, layout, state.delivered, slide_us)
    specs = specs_of(settings.query.aggregates, settings.steps)
    task = CoreTask(0, 0, layout, {}, frozenset(), slide_us, span_steps(settings.query.range_s, slide_us), specs=specs)
    blocks = [block for decoder in decoders.values() for block in decoder.blocks()]
    advanced = advance(state, task, blocks, lambda *_: QueryReadings.concatenate([]))
    for aside in (item for decoder in decoders.values() for item in decoder.sidelined):
        log.append(aside.topic, 0, aside.key, aside.value)
    windows = (block for _, block in window_blocks(advanced.windows, specs, layout, slide_us))
    upto = query_frontier(task, blocks)
    events = [block.events for block in blocks if block.events]
    answers = _answers(settings, layout, advanced.ordered, upto, events)
    readings = result_blocks(advanced.ordered, layout, slide_us) if settings.results.readings else iter(())
    for block in chain(readings, windows):
        log.append(RESULTS, 0, block_key(block), block.SerializeToString(deterministic=True))
    for answer in answers:
        log.append(RESULTS, 0, answer.key, answer.value)


def _answers(
    settings: Settings, layout: Layout, ordered: Ordered, upto: int, events: Sequence[bytes]
) -> Iterator[EncodedBlock]:
    """Yield the rows of the queries in CQL, as the job's query core makes them."""
    from tsunagi_spark.complete_rows import CompleteRows  # noqa: PLC0415
    from tsunagi_spark.frontier import NEVER  # noqa: PLC0415
    from tsunagi_spark.query_core import QueryCore  # noqa: PLC0415
    from tsunagi_spark.query_program import QueryProgram  # noqa: PLC0415

    definitions = read_definitions(settings.query.files)
    if not definitions:
        return
    kinds = attribute_kinds(layout.table)
    check(definitions, settings.steps.slide_us, kinds)
    program = QueryProgram(1, tuple(definitions), kinds, settings.steps.slide_us)
    published = frozenset(plan.name for plan in program.compiled.published)
    core = QueryCore(program, published)
    table = Readings(layout.table, settings.steps.slide_us, kinds)
    came = CompleteRows.of([CompleteRows.from_ordered(ordered)])
    first = int(came.rows["step"][0]) if len(came.rows["step"]) else NEVER
    yield from core.advance(came, first, upto, table, events)
    for name, figures in core.figures.items():
        if figures.fault:
            raise PipelineError(f"query {name}: {figures.fault}")
