"""Traces of the way of some steps through the system (OpenTelemetry): from the edges to the results.

They are made from outside, of the times at which the log appended the records of a step. So edges, workers and Spark
do nothing for them, and all times are of the broker's clock, but for the end of an edge's window.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import RECOVERED, RESULTS, TUPLES, Log, Position, Record
from tsunagi.runtime.messages import LogRecord, Recovered
from tsunagi.runtime.results import parse_block

READ_S = 0.2
"""Longest wait of a read, in seconds."""
READ_RECORDS = 2000
"""Most records that one read returns."""
QUIET_US = 5_000_000
"""A step is traced when nothing more of it has come for so long, in microseconds of the log's time."""
MOST_STEPS = 1000
"""Number of steps that are kept at a time. If there are more, the oldest are traced as they are."""
LONGEST_US = 60_000_000
"""A window that ended longer before its batch was appended is of a replay or a spool; its span begins with the
append."""


@dataclass(slots=True)
class StepTimes:
    """What was seen of a step; times in microseconds since 1970.

    Attributes:
        batches: of each edge and slot, when the window ended and when the log had the batch.
        outputs: of each slot, when the log had the last input and when the output.
        blocks: of each group and part, when the log had the last input and when the result.
        newest_us: when the log appended the newest of all these.
    """

    batches: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    outputs: dict[int, tuple[int, int]] = field(default_factory=dict)
    blocks: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    newest_us: int = 0


class Traces:
    """Collects the times of the chosen steps, and sends a trace of each.

    Args:
        share: the share of steps that are traced.
        exporter: gets the spans.
    """

    def __init__(self, share: float, exporter: SpanExporter) -> None:
        self._most = round(share * 2**32)
        self._steps: dict[int, StepTimes] = {}
        self._now_us = 0
        self._provider = TracerProvider(resource=Resource.create({"service.name": "tsunagi"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tsunagi")

    def chosen(self, step: int) -> bool:
        """Return whether a step is traced. All consoles choose the same."""
        return zlib.crc32(str(step).encode()) < self._most

    def take(self, record: Record) -> None:
        """Take in a record of `tuples`, `recovered` or `results`; one that cannot be used is passed over."""
        self._now_us = max(self._now_us, record.appended_us)
        try:
            if record.topic == TUPLES:
                self._batch(record)
            elif record.topic == RECOVERED:
                self._output(record)
            else:
                self._block(record)
        except (UnusableError, ValueError):
            return  # the services count and report it

    def _of(self, step: int, record: Record) -> StepTimes:
        found = self._steps.setdefault(step, StepTimes())
        found.newest_us = max(found.newest_us, record.appended_us)
        return found

    def _batch(self, record: Record) -> None:
        if (record.key or b"").startswith(b"!"):
            return
        batch = decode(LogRecord, record.value).batch
        if self.chosen(batch.step):
            ended = batch.event_time_us
            began = ended if 0 <= record.appended_us - ended <= LONGEST_US else record.appended_us
            self._of(batch.step, record).batches.setdefault((batch.edge, record.partition), (began, record.appended_us))

    def _output(self, record: Record) -> None:
        output = decode(Recovered, record.value)
        if self.chosen(output.step):
            self._of(output.step, record).outputs.setdefault(output.slot, (output.appended_us, record.appended_us))

    def _block(self, record: Record) -> None:
        block = parse_block(record.value)
        if self.chosen(block.step):
            times = block.appended_us, record.appended_us
            self._of(block.step, record).blocks.setdefault((block.group, block.part), times)

    def send(self, *, all_of_them: bool = False) -> None:
        """Send the traces of steps of which nothing more comes."""
        over = len(self._steps) - MOST_STEPS
        for number, step in enumerate(sorted(self._steps)):
            if all_of_them or number < over or self._now_us - self._steps[step].newest_us > QUIET_US:
                self._send(step, self._steps.pop(step))

    def _send(self, step: int, seen: StepTimes) -> None:
        times = [*seen.batches.values(), *seen.outputs.values(), *seen.blocks.values()]
        whole = min(begin for begin, _ in times), max(end for _, end in times)
        root = self._tracer.start_span(f"step {step}", start_time=whole[0] * 1000, attributes={"tsunagi.step": step})
        within = trace.set_span_in_context(root)
        spans: list[tuple[str, tuple[int, int], Mapping[str, str | int]]] = []
        for (edge, slot), at in sorted(seen.batches.items()):
            spans.append(("publish", at, {"tsunagi.edge": edge, "tsunagi.slot": slot}))
        spans += [("recover", at, {"tsunagi.slot": slot}) for slot, at in sorted(seen.outputs.items())]
        ready = max((end for _, end in seen.outputs.values()), default=0)
        for (group, part), (begin, end) in sorted(seen.blocks.items()):
            spans.append(("order", (min(max(begin, ready), end), end), {"tsunagi.group": group, "tsunagi.part": part}))
        for name, (begin, end), attributes in spans:
            span = self._tracer.start_span(name, within, start_time=begin * 1000, attributes=dict(attributes))
            span.end(max(begin, end) * 1000)
        root.end(whole[1] * 1000)

    def close(self) -> None:
        """Send what is left, and wait for the collector."""
        self.send(all_of_them=True)
        self._provider.shutdown()


def otlp(address: str) -> SpanExporter:
    """Return what sends spans to a collector, by OTLP over HTTP; `address` is its own, such as http://127.0.0.1:4318."""
    return OTLPSpanExporter(endpoint=f"{address.rstrip('/')}/v1/traces")


class TracesFollower:
    """A follower (`tsunagi.console.following`) of the three topics, from their present ends on."""

    def __init__(self, log: Log, traces: Traces) -> None:
        self._reader = log.reader()
        self._traces = traces
        self._reader.assign(list(self._ends(log)))

    def _ends(self, log: Log) -> Iterable[Position]:
        for topic in (TUPLES, RECOVERED, RESULTS):
            for partition in range(log.partitions(topic)):
                yield Position(topic, partition, self._reader.range(topic, partition)[1])

    def turn(self) -> None:
        for record in self._reader.read(READ_RECORDS, READ_S):
            self._traces.take(record)
        self._traces.send()

    def close(self) -> None:
        self._reader.close()
