from __future__ import annotations

import numpy as np
import pytest

from tests.unit.spark.test_parts import layout_of, part_of
from tsunagi_spark.encode import encode_blocks
from tsunagi_spark.merge import result_blocks
from tsunagi_spark.publish import block_key


@pytest.mark.parametrize("part", [0, 2])
@pytest.mark.parametrize("slide_us", [1, 1_600_000])
def test_the_bytes_are_those_of_the_message(part: int, slide_us: int) -> None:
    layout = layout_of([0, 0, 1] + [2] * 300)
    cells = [(step, sensor) for step in (-(2**40), -1, 0, 1, 2**31) for sensor in range(len(layout)) if step or sensor]
    ordered = part_of(layout, cells)
    ordered.rows.mean[::7] = np.nan
    wanted = list(result_blocks(ordered, layout, slide_us, part))
    found = list(encode_blocks(ordered, layout, slide_us, part))
    assert [item.key for item in found] == [block_key(block) for block in wanted]
    assert [item.value for item in found] == [block.SerializeToString(deterministic=True) for block in wanted]
    assert [layout.groups[item.group] for item in found] == [block.group for block in wanted]


def test_a_step_without_rows_is_a_block_too() -> None:
    layout = layout_of([0, 1])
    ordered = part_of(layout, [(1, 0), (2, 0)])
    ordered.start = np.array([0, 0, 2])
    wanted = [block.SerializeToString(deterministic=True) for block in result_blocks(ordered, layout, 5)]
    assert [item.value for item in encode_blocks(ordered, layout, 5)] == wanted
