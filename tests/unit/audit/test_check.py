"""The checker passes a world that is right, and none in which one thing is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.audit import small_world
from tests.unit.audit.small_world import SmallWorld
from tsunagi.audit.check import check
from tsunagi.audit.tally import Findings
from tsunagi.runtime.columns import floats, octets, pack_floats, pack_octets, pack_sensors, sensors
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import EXACT, LogRecord, Recovered, ResultBlock
from tsunagi.runtime.names import Name, pack_key


@pytest.fixture
def small(tmp_path: Path) -> SmallWorld:
    return small_world.make(tmp_path)


def findings(small: SmallWorld) -> Findings:
    return check(small.collected(), small.world).findings


def edit(records: list[Record], place: int, kind: Any, change: Callable[[Any], None]) -> None:
    """Decode one record, change it, put it back."""
    message = kind.FromString(records[place].value)
    change(message)
    records[place] = replace(records[place], value=message.SerializeToString())


def renumber(records: list[Record]) -> None:
    records[:] = [replace(record, offset=offset) for offset, record in enumerate(records)]


def add_to_first(column: str, difference: float) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        values = floats(getattr(message, column)).copy()
        values[0] += difference
        setattr(message, column, pack_floats(values))

    return change


def test_the_untouched_world_passes(small: SmallWorld) -> None:
    found = findings(small)
    assert found.ok, found.problems
    assert found.lost == found.duplicated == 0
    assert set(found.inversions) == {"g0", "g1", "g2", "ungrouped"}
    assert sum(found.inversions.values()) == 0
    assert found.repeats == 1  # the new owner said the last output again
    assert found.late == 2
    steps = len(small.world.truth.values)
    assert found.rows_out == 8 * steps
    assert found.tuples_in == 8 * steps - 4 * (small_world.DEAD[2] - small_world.DEAD[1])
    assert sum(int(str(item["tuples"])) for item in found.not_sent) == 32


def test_a_run_without_any_result(small: SmallWorld) -> None:
    small.results.clear()
    steps = len(small.world.truth.values)
    assert findings(small).wrong["missing blocks"] == 4 * steps
    assert findings(small).lost == 8 * steps


@pytest.mark.slow
def test_a_dropped_result(small: SmallWorld) -> None:
    del small.results[0][10]
    found = findings(small)
    assert found.lost > 0
    assert found.wrong["missing blocks"] == 1


@pytest.mark.slow
def test_a_result_repeated_under_its_own_name_is_dropped_by_readers(small: SmallWorld) -> None:
    small.results[0].insert(12, small.results[0][8])
    renumber(small.results[0])
    found = findings(small)
    assert found.ok
    assert found.repeats == 2


def test_a_result_repeated_with_other_values(small: SmallWorld) -> None:
    small.results[0].insert(12, small.results[0][8])
    edit(small.results[0], 12, ResultBlock, add_to_first("mean", 1e-12))
    renumber(small.results[0])
    assert findings(small).duplicated == 3


@pytest.mark.slow
def test_a_doubled_row(small: SmallWorld) -> None:
    def double(block: Any) -> None:
        for name in ("mean", "sd", "bound", "q3"):
            values = floats(getattr(block, name))
            setattr(block, name, pack_floats(np.concatenate([values, values[-1:]])))
        for name in ("sensor", "q1", "q2"):
            numbers = sensors(getattr(block, name))
            setattr(block, name, pack_sensors(np.concatenate([numbers, numbers[-1:]])))
        quality = octets(block.quality)
        block.quality = pack_octets(np.concatenate([quality, quality[-1:]]))

    edit(small.results[0], 10, ResultBlock, double)
    assert findings(small).duplicated == 1


@pytest.mark.slow
def test_an_output_doubled_under_a_new_name(small: SmallWorld) -> None:
    original = small.recovered[0][5]

    def rename(message: Any) -> None:
        message.index = 1

    small.recovered[0].insert(6, original)
    edit(small.recovered[0], 6, Recovered, rename)
    message = Recovered.FromString(small.recovered[0][6].value or b"")
    small.recovered[0][6] = replace(
        small.recovered[0][6], key=pack_key(small_world.GENERATION, 0, Name(message.offset, 1))
    )
    assert findings(small).duplicated > 0


@pytest.mark.slow
def test_a_dropped_output(small: SmallWorld) -> None:
    del small.recovered[1][7]
    assert findings(small).wrong["missing outputs"] == 1


def test_swapped_results(small: SmallWorld) -> None:
    records = small.results[1]  # groups g1 and ungrouped in turn: two places on is the same group's next step
    records[6], records[8] = records[8], records[6]
    renumber(records)
    found = findings(small)
    assert sum(found.inversions.values()) == 1
    assert not found.ok


def test_swapped_outputs(small: SmallWorld) -> None:
    records = small.recovered[1]
    records[6], records[7] = records[7], records[6]
    assert findings(small).inversions["recovered/1"] == 1


def test_a_block_before_the_first_of_its_group_is_out_of_order(small: SmallWorld) -> None:
    records = small.results[1]
    records[0], records[2] = records[2], records[0]
    renumber(records)
    found = findings(small)
    assert found.inversions["g1"] == 1
    assert found.lost == found.duplicated == 0


@pytest.mark.parametrize(("difference", "rows"), [(1e-9, 0), (1e-3, 4)])
def test_an_output_repeated_with_other_values(small: SmallWorld, difference: float, rows: int) -> None:
    records = small.recovered[0]
    (again,) = (place for place in range(1, len(records)) if records[place].key == records[place - 1].key)
    edit(records, again, Recovered, add_to_first("mean", difference))
    assert findings(small).duplicated == rows


def test_an_output_of_another_slots_sensor(small: SmallWorld) -> None:
    def change(message: Any) -> None:
        message.sensor = pack_sensors([1, *sensors(message.sensor)[1:]])

    edit(small.recovered[0], 4, Recovered, change)
    assert findings(small).wrong["foreign"] == 1


def test_rows_out_of_order_in_a_block(small: SmallWorld) -> None:
    def swap(block: Any) -> None:
        block.sensor = pack_sensors(sensors(block.sensor)[::-1])

    edit(small.results[0], 10, ResultBlock, swap)
    assert sum(findings(small).inversions.values()) > 0


@pytest.mark.parametrize("difference", [1e-7, -0.5])
def test_an_altered_measured_value(small: SmallWorld, difference: float) -> None:
    edit(small.results[0], 10, ResultBlock, add_to_first("mean", difference))
    found = findings(small)
    assert found.wrong["values"] >= 1
    assert found.wrong["altered"] == 1


def test_an_altered_value_in_results_and_recovered_alike(small: SmallWorld) -> None:
    edit(small.results[0], 0, ResultBlock, add_to_first("mean", 1e-6))
    edit(small.recovered[0], 0, Recovered, add_to_first("mean", 1e-6))
    assert findings(small).wrong["values"] == 1


def test_one_bit_of_an_estimated_value(small: SmallWorld) -> None:
    for place, record in enumerate(small.results[0]):
        block = ResultBlock.FromString(record.value or b"")
        estimated = np.flatnonzero(octets(block.quality) != EXACT)
        if len(estimated):
            mean = floats(block.mean).copy()
            mean[estimated[0]] = np.nextafter(mean[estimated[0]], np.inf)
            block.mean = pack_floats(mean)
            small.results[0][place] = replace(record, value=block.SerializeToString())
            break
    assert findings(small).wrong["altered"] == 1


@pytest.mark.parametrize("column", ["q1", "q2"])
def test_an_altered_count(small: SmallWorld, column: str) -> None:
    def change(block: Any) -> None:
        counts = sensors(getattr(block, column)).copy()
        counts[-1] += 1
        setattr(block, column, pack_sensors(counts))

    edit(small.results[0], 20, ResultBlock, change)
    assert findings(small).wrong["queries"] == 1


def test_an_altered_ratio(small: SmallWorld) -> None:
    edit(small.results[0], 20, ResultBlock, add_to_first("q3", 1e-6))
    assert findings(small).wrong["queries"] == 1


def test_a_late_record_that_vanished(small: SmallWorld) -> None:
    small.late.clear()
    assert findings(small).lost == 2


def test_an_altered_batch(small: SmallWorld) -> None:
    def change(message: Any) -> None:
        values = floats(message.batch.value).copy()
        values[0] *= 1 + 1e-8
        message.batch.value = pack_floats(values)

    edit(small.tuples[0], 10, LogRecord, change)
    assert findings(small).wrong["windows"] == 1


def test_a_batch_that_a_living_edge_did_not_send(small: SmallWorld) -> None:
    small.outages.clear()
    assert findings(small).lost == 32


def test_a_row_that_nobody_measured(small: SmallWorld) -> None:
    def exact(message: Any) -> None:
        message.quality = pack_octets([EXACT] * len(sensors(message.sensor)))
        message.sd = pack_floats(np.zeros(len(sensors(message.sensor))))

    dead = small.world.truth.first_step + small_world.DEAD[1]  # of steps before it a tuple does say so, a late one
    for place, record in enumerate(small.results[0]):
        block = ResultBlock.FromString(record.value or b"")
        if block.step >= dead and (octets(block.quality) != EXACT).any():
            edit(small.results[0], place, ResultBlock, exact)
            break
    found = findings(small)
    assert found.wrong["invented"] >= 1
    assert not found.ok


def test_a_group_in_two_partitions(small: SmallWorld) -> None:
    moved = small.results[0].pop()
    small.results[1].append(replace(moved, partition=1))
    assert findings(small).wrong["partitions"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"node": "gw-2", "owner": "gw-2"},
        {"acked": -1, "newest_us": 0},
        {"slot": 1, "node": "gw-2", "owner": "gw-2"},
    ],
    ids=["not the owner", "nothing in flight", "nobody took over"],
)
def test_a_kill_that_does_not_count(small: SmallWorld, change: dict[str, Any]) -> None:
    small.kills[1] = replace(small.kills[1], **change)
    assert findings(small).wrong["kills"] == 1
