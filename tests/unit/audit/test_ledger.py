from __future__ import annotations

import pytest

from tests.unit.audit.flow import FIRST, STEP_US, Flow
from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.messages import EXACT, Late, TupleBatch


@pytest.fixture
def flow() -> Flow:
    return Flow()


def settled(flow: Flow) -> Flow:
    flow.go_on(60)
    flow.ledger.expire(flow.now_us)
    flow.ledger.finish()
    return flow


def test_a_true_stream_is_ok_and_was_really_judged(flow):
    settled(flow)
    counts = flow.ledger.counts()
    assert flow.ledger.tally.verdict() == "ok"
    assert flow.ledger.tally.problems == []
    assert counts["readings"] == 60 * 4
    assert counts["batches"] == 120
    assert counts["steps"] == 58  # the last ones wait until everybody is past them
    assert counts["rows"] == 58 * 4
    assert flow.ledger.outstanding(flow.now_us - 3 * STEP_US) == ""


def test_repeats_of_a_takeover_are_dropped_by_name(flow):
    outputs = [flow.write(flow.step) for _ in range(3)]
    for output in outputs:
        output.epoch = 2
        flow.take(output, flow.block(output, "a"))
    settled(flow)
    assert flow.ledger.tally.ok
    assert flow.ledger.tally.repeats == 6


def test_a_missing_output_is_a_lost_step(flow):
    step = flow.step
    for edge in ("edge-1", "edge-2"):
        flow.ledger.take(flow.batch(edge, step))
    flow.step += 1
    settled(flow)
    assert flow.ledger.tally.lost >= 1
    assert any(f"after step {step - 1}" in text for text in flow.ledger.tally.problems)


def test_a_repeat_with_another_value_is_a_duplicate(flow):
    output = flow.write(flow.step)
    output.mean = pack_floats([0.0] * 4)
    flow.take(output)
    assert settled(flow).ledger.tally.duplicated == 4


@pytest.mark.slow
def test_a_second_output_of_a_step_under_another_name_is_a_duplicate(flow):
    output = flow.write(flow.step)
    output.index = 1
    flow.take(output)
    assert settled(flow).ledger.tally.duplicated == 4


def test_an_output_after_a_later_one_is_inverted(flow):
    output = flow.write(flow.step)
    between = flow.output(flow.step, offset=output.offset, epoch=1)
    between.offset = output.offset - 1  # a name that nobody has seen, below the last
    flow.take(between)
    assert settled(flow).ledger.tally.inverted == 1


@pytest.mark.slow
def test_a_sensor_that_is_left_out_is_a_lost_row(flow):
    step = flow.step
    for edge in ("edge-1", "edge-2"):
        flow.ledger.take(flow.batch(edge, step))
    output = flow.output(step, offset=flow.ends["tuples"] - 1, ids=(0, 1, 2))
    flow.take(output, flow.block(output, "a"), flow.block(output, "b", (1,)))
    flow.step += 1
    settled(flow)
    assert flow.ledger.tally.lost >= 2  # the row, and the reading that stands nowhere


@pytest.mark.slow
def test_a_reading_that_was_estimated_instead_is_lost_unless_it_was_set_aside(flow):
    for aside in (True, False):
        flow = Flow()
        step = flow.step
        first = flow.batch("edge-1", step)
        late = flow.batch("edge-2", step)
        flow.ledger.take(first)
        flow.ledger.take(late)
        output = flow.output(step, offset=first.offset, out=("edge-2",))
        flow.take(output, flow.block(output, "a"), flow.block(output, "b"))
        flow.step += 1
        if aside:
            flow.take(Late(version=1, slot=0, offset=late.offset, reason="closed"))
        settled(flow)
        assert flow.ledger.tally.lost == (0 if aside else 2)
        assert flow.ledger.counts()["aside"] == aside


@pytest.mark.slow
def test_an_aside_that_is_read_before_its_batch_counts(flow):
    step = flow.step
    first, late = flow.batch("edge-1", step), flow.batch("edge-2", step)
    flow.take(Late(version=1, slot=0, offset=late.offset, reason="closed"))
    flow.ledger.take(first)
    flow.ledger.take(late)
    output = flow.output(step, offset=first.offset, out=("edge-2",))
    flow.take(output, flow.block(output, "a"), flow.block(output, "b"))
    flow.step += 1
    assert settled(flow).ledger.tally.ok


@pytest.mark.slow
def test_a_batch_that_is_set_aside_and_in_the_output_as_well_is_wrong(flow):
    flow.write(flow.step)
    flow.take(Late(version=1, slot=0, offset=flow.ends["tuples"] - 1, reason="closed"))
    settled(flow)
    assert flow.ledger.tally.wrong["invented"] == 2


@pytest.mark.slow
def test_a_second_batch_of_a_step_must_be_set_aside(flow):
    step = flow.step
    flow.write(step)
    flow.ledger.take(flow.batch("edge-1", step))
    settled(flow)
    assert flow.ledger.tally.wrong["second batch"] == 1


def test_a_measured_value_that_no_edge_sent_is_invented(flow):
    step = flow.step
    first = flow.batch("edge-1", step)
    flow.ledger.take(first)
    output = flow.output(step, offset=first.offset)  # says that edge-2's values were measured too
    flow.take(output, flow.block(output, "a"), flow.block(output, "b"))
    flow.step += 1
    assert settled(flow).ledger.tally.wrong["invented"] == 2


def test_another_value_than_the_reading_is_wrong(flow):
    step = flow.step
    for edge in ("edge-1", "edge-2"):
        flow.ledger.take(flow.batch(edge, step))
    output = flow.output(step, offset=flow.ends["tuples"] - 1)
    output.mean = pack_floats([flow.value(step, 0) + 1e-3, *(flow.value(step, i) for i in (1, 2, 3))])
    flow.take(output, flow.block(output, "a"), flow.block(output, "b"))
    flow.step += 1
    assert settled(flow).ledger.tally.wrong["values"] == 1


def test_a_sensor_of_another_slot_is_foreign(flow):
    for edge in ("edge-1", "edge-2"):
        flow.ledger.take(flow.batch(edge, flow.step))
    flow.take(flow.output(flow.step, offset=flow.ends["tuples"] - 1, ids=(0, 1, 2, 9)))
    assert flow.ledger.tally.wrong["foreign"] == 1


@pytest.mark.slow
def test_a_missing_block_is_lost_and_one_that_comes_later_is_inverted(flow):
    output = flow.output(flow.step, offset=0)
    blocks = []
    for _ in range(2):
        step = flow.step
        for edge in ("edge-1", "edge-2"):
            flow.ledger.take(flow.batch(edge, step))
        output = flow.output(step, offset=flow.ends["tuples"] - 1)
        blocks.append([flow.block(output, "a"), flow.block(output, "b")])
        flow.take(output)
        flow.step += 1
    flow.take(blocks[0][1], *blocks[1])
    assert flow.ledger.tally.wrong["missing blocks"] == 1
    flow.take(blocks[0][0])
    settled(flow)
    found = flow.ledger.tally
    assert (found.lost, found.wrong["missing blocks"], found.inverted) == (0, 0, 1)


@pytest.mark.slow
def test_a_block_without_a_row_of_recovered_is_lost_unless_its_slot_was_left_behind(flow):
    for left in (True, False):
        flow = Flow()
        step = flow.step
        for edge in ("edge-1", "edge-2"):
            flow.ledger.take(flow.batch(edge, step))
        output = flow.output(step, offset=flow.ends["tuples"] - 1)
        flow.take(output, flow.block(output, "a"), flow.block(output, "b", (1,)))
        flow.step += 1
        if left:
            part = flow.output(step, offset=output.offset, ids=(3,))
            flow.take(Late(version=1, reason="frontier", recovered=part))
        settled(flow)
        assert flow.ledger.tally.lost == (0 if left else 1)


@pytest.mark.slow
def test_results_with_other_values_than_recovered_are_altered(flow):
    step = flow.step
    for edge in ("edge-1", "edge-2"):
        flow.ledger.take(flow.batch(edge, step))
    output = flow.output(step, offset=flow.ends["tuples"] - 1)
    spoilt = flow.block(output, "a")
    spoilt.mean = pack_floats([0.0, 0.0])
    flow.take(output, spoilt, flow.block(output, "b"))
    flow.step += 1
    assert settled(flow).ledger.tally.wrong["altered"] == 2


def test_a_repeated_block_with_other_rows_is_a_duplicate(flow):
    output = flow.write(flow.step)
    again = flow.block(output, "a")
    again.q1 = pack_sensors([9, 9])
    flow.take(again)
    assert settled(flow).ledger.tally.duplicated == 2


@pytest.mark.slow
def test_rows_out_of_order_are_inverted(flow):
    step = flow.step
    for edge in ("edge-1", "edge-2"):
        flow.ledger.take(flow.batch(edge, step))
    output = flow.output(step, offset=flow.ends["tuples"] - 1)
    flow.take(output, flow.block(output, "a", (2, 0)), flow.block(output, "b"))
    flow.step += 1
    assert settled(flow).ledger.tally.inverted == 1


def test_a_row_that_stands_twice_counts_once(flow):
    for groups in ({"a": (0, 2, 2), "b": (1, 3)}, {"a": (0, 2), "b": (1, 2, 3)}):
        step = flow.step
        for edge in ("edge-1", "edge-2"):
            flow.ledger.take(flow.batch(edge, step))
        output = flow.output(step, offset=flow.ends["tuples"] - 1)
        flow.take(output, *(flow.block(output, group, ids) for group, ids in groups.items()))
        flow.step += 1
    assert settled(flow).ledger.tally.duplicated == 2


def test_a_damaged_batch_is_no_reading_to_lose(flow):
    body = TupleBatch(edge="edge-1", step=flow.step, sensor=pack_sensors([0, 1]), value=pack_floats([1.0]))
    from tsunagi.runtime.messages import LogRecord

    flow.ledger.take(flow.record("tuples", LogRecord(version=1, batch=body).SerializeToString()))
    flow.ledger.take(flow.record("tuples", b"\xff\xff"))
    assert settled(flow).ledger.tally.ok


@pytest.mark.slow
def test_memory_stays_bounded():
    flow = Flow(kept=100)
    flow.go_on(300)
    flow.ledger.expire(flow.now_us)
    book = flow.ledger.readings[0]
    assert len(book._steps) <= 101
    assert len(book._claimed) <= 2 * 101
    assert len(flow.ledger._outputs[0]._kept) == 100
    assert len(flow.ledger.rows._steps) < 10
    assert not book._pending
    assert not book._waiting
    assert flow.ledger.tally.ok


def test_what_was_before_the_beginning_is_not_judged():
    flow = Flow()
    assert flow.ledger.base == FIRST + 5
    assert flow.ledger.counts()["readings"] == 0
    assert EXACT == 0
    assert pack_octets([EXACT]) == b"\0"
