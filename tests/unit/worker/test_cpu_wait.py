from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tsunagi.runtime.messages import SlotBeat
from tsunagi.worker.cpu_wait import LOOKS, CpuWait, kernels_count


def test_what_was_waited_since_a_moment_is_what_came_behind_the_first_look_after_it() -> None:
    waited = [0.0]
    cpu = CpuWait(lambda: waited[0])
    assert cpu.since(0.0) == 0.0
    for now, total in ((1.0, 0.5), (2.0, 0.7), (3.0, 1.6)):
        waited[0] = total
        cpu.look(now)
    assert cpu.since(0.0) == pytest.approx(1.1)
    assert cpu.since(1.5) == pytest.approx(0.9)
    assert cpu.since(2.5) == 0.0
    assert cpu.since(9.0) == 0.0


def test_heartbeats_say_how_long_the_loop_was_busy_without_its_waits_for_a_core() -> None:
    waited = [0.0]
    cpu = CpuWait(lambda: waited[0])
    for now in (10.0, 11.0, 12.0):
        waited[0] += 0.75
        cpu.look(now)
    parts = [SlotBeat(busy_us=2_000_000), SlotBeat(busy_us=500_000)]
    cpu.take_off(parts, 12.0)
    assert [part.busy_us for part in parts] == [500_000, 500_000]


def test_a_minute_is_remembered() -> None:
    cpu = CpuWait(lambda: 0.0)
    for now in range(3 * LOOKS):
        cpu.look(float(now))
    assert len(cpu._looks) == LOOKS


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count")
def test_the_kernel_counts_waiting_for_a_core_and_not_sleeping() -> None:
    read = kernels_count(threading.get_native_id())
    before = read()
    time.sleep(0.3)
    assert read() - before < 0.2
    assert kernels_count(2**22 + 1)() == 0.0  # no such thread
