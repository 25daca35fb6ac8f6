"""Rows as they are written: whatever part of a frame, the bytes are those of the whole message."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.messages import BOUNDED, VERSION, Recovered
from tsunagi.runtime.names import Name
from tsunagi.slot.frames import Frame
from tsunagi.slot.packed import Packed, PackedColumns

ROWS = 4


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("begin", "end"), list(combinations(range(ROWS + 1), 2)))
def test_any_part_of_a_frame_is_the_message_of_its_rows(begin: int, end: int, *, exact: bool) -> None:
    spread = np.zeros(ROWS) if exact else np.arange(1.0, ROWS + 1)
    quality = np.full(ROWS, 0 if exact else BOUNDED, dtype=np.uint8)
    frame = Frame(7, 1_400_000, np.arange(ROWS, dtype=np.uint32) + 3, spread + 10, spread, quality, spread + 20)
    packed = Packed(frame.step, frame.event_time_us, PackedColumns(frame), begin, end)
    part = slice(begin, end)
    assert Recovered.FromString(packed.encode(5, 77, Name(9, 2), 4, 1_500_000)) == Recovered(
        version=VERSION,
        slot=5,
        generation=77,
        offset=9,
        index=2,
        epoch=4,
        step=7,
        event_time_us=1_400_000,
        appended_us=1_500_000,
        sensor=pack_sensors(frame.sensor[part]),
        mean=pack_floats(frame.mean[part]),
        sd=pack_floats(frame.sd[part]),
        quality=pack_octets(frame.quality[part]),
        bound=pack_floats(frame.bound[part]),
    )
