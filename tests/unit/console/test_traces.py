"""A step's way is told by the times at which the log had its records: edges, slots, groups."""

from __future__ import annotations

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tsunagi.console.traces import LONGEST_US, MOST_STEPS, QUIET_US, Traces, TracesFollower
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import RECOVERED, RESULTS, TUPLES, Record
from tsunagi.runtime.messages import VERSION, LogRecord, Punctuation, Recovered, ResultBlock, TupleBatch
from tsunagi.runtime.testing import MemoryLog

START_US = 1_700_000_000_000_000


def batch(step: int, edge: str, slot: int, at_ms: int, ended_ms: int = 0) -> Record:
    event_time_us = START_US + ended_ms * 1000
    made = TupleBatch(edge=edge, incarnation=1, step=step, event_time_us=event_time_us)
    value = LogRecord(version=VERSION, batch=made).SerializeToString()
    return Record(TUPLES, slot, 0, START_US + at_ms * 1000, edge.encode(), value)


def output(step: int, slot: int, input_ms: int, at_ms: int) -> Record:
    made = Recovered(version=VERSION, slot=slot, step=step, appended_us=START_US + input_ms * 1000)
    return Record(RECOVERED, slot, 0, START_US + at_ms * 1000, b"", made.SerializeToString())


def block(step: int, group: str, input_ms: int, at_ms: int) -> Record:
    made = ResultBlock(version=VERSION, group=group, step=step, appended_us=START_US + input_ms * 1000)
    return Record(RESULTS, 0, 0, START_US + at_ms * 1000, b"", made.SerializeToString())


WAY = [batch(7, "a", 0, 20), batch(7, "b", 1, 35), output(7, 0, 20, 50), output(7, 1, 35, 60), block(7, "hall", 35, 90)]


def told(records: list[Record], share: float = 1.0) -> list[tuple[str, str, int, int]]:
    """Return (name, parent's name, begin, end) of all spans, in milliseconds from the start."""
    exporter = InMemorySpanExporter()
    traces = Traces(share, exporter)
    for record in records:
        traces.take(record)
    traces.close()
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    return sorted(
        (
            span.name,
            "" if span.parent is None else names[span.parent.span_id],
            ((span.start_time or 0) // 1000 - START_US) // 1000,
            ((span.end_time or 0) // 1000 - START_US) // 1000,
        )
        for span in spans
    )


def test_a_step_has_a_span_for_each_edge_slot_and_group() -> None:
    assert told(WAY) == [
        ("order", "step 7", 60, 90),
        ("publish", "step 7", 0, 20),
        ("publish", "step 7", 0, 35),
        ("recover", "step 7", 20, 50),
        ("recover", "step 7", 35, 60),
        ("step 7", "", 0, 90),
    ]


def test_the_first_record_of_several_with_one_name_counts() -> None:
    assert told([*WAY, output(7, 0, 20, 400), batch(7, "a", 0, 300)]) == told(WAY)


def test_a_batch_of_long_ago_begins_when_the_log_had_it() -> None:
    found = told([batch(7, "a", 0, 20, ended_ms=-LONGEST_US // 1000)])
    assert found == [("publish", "step 7", 20, 20), ("step 7", "", 20, 20)]


def test_what_cannot_be_used_is_passed_over() -> None:
    control = LogRecord(version=VERSION, punctuation=Punctuation()).SerializeToString()
    odd = [Record(topic, 0, 0, START_US, b"", b"\xff\xff") for topic in (TUPLES, RECOVERED, RESULTS)]
    assert (
        told([Record(TUPLES, 0, 0, START_US, b"!w", control), *odd, Record(RESULTS, 0, 0, START_US, None, None)]) == []
    )


def test_only_the_share_of_steps_is_traced() -> None:
    traces = Traces(0.1, InMemorySpanExporter())
    assert 50 < sum(map(traces.chosen, range(1000))) < 200
    traces.close()
    assert told(WAY, share=0.0) == []


def test_a_step_is_sent_when_nothing_more_comes_and_no_more_steps_than_so_many_are_kept() -> None:
    exporter = InMemorySpanExporter()
    traces = Traces(1.0, exporter)

    def sent() -> int:
        traces.send()
        traces._provider.force_flush()
        return sum(span.parent is None for span in exporter.get_finished_spans())

    traces.take(batch(1, "a", 0, 0))
    assert sent() == 0
    traces.take(batch(2, "a", 0, QUIET_US // 1000 + 1))
    assert sent() == 1
    for step in range(3, 3 + MOST_STEPS):
        traces.take(batch(step, "a", 0, QUIET_US // 1000 + 2))
    assert sent() == 2
    traces.close()


def test_topics_are_followed_from_their_ends() -> None:
    log = MemoryLog(ManualClock(), {TUPLES: 2, RECOVERED: 2, RESULTS: 1})
    log.append(RECOVERED, 0, b"", output(5, 0, 0, 0).value or b"")
    exporter = InMemorySpanExporter()
    traces = Traces(1.0, exporter)
    follower = TracesFollower(log, traces)
    log.append(RECOVERED, 1, b"", output(6, 1, 0, 0).value or b"")
    follower.turn()
    follower.close()
    traces.close()
    assert [span.name for span in exporter.get_finished_spans() if span.parent is None] == ["step 6"]
