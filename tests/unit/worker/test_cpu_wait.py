from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tsunagi.runtime.messages import SlotBeat
from tsunagi.worker.cpu_wait import LOOKS, CpuWait, kernels_count

PATIENCE_S = 60.0


def test_what_was_waited_since_a_moment_is_what_came_behind_the_first_look_after_it() -> None:
    waited = [0.0]
    cpu = CpuWait(lambda: waited[0])
    assert cpu.since(0.0) == 0.0
    for now, total in ((1.0, 0.5), (2.0, 0.7), (3.0, 1.6)):
        waited[0] = total
        cpu.take_off([], now)
    assert cpu.since(0.0) == pytest.approx(1.1)
    assert cpu.since(1.5) == pytest.approx(0.9)
    assert cpu.since(2.5) == 0.0
    assert cpu.since(9.0) == 0.0


def test_heartbeats_say_how_long_the_loop_was_busy_without_its_waits_for_a_core() -> None:
    waited = [0.0]
    cpu = CpuWait(lambda: waited[0])
    parts = [SlotBeat(busy_us=2_000_000), SlotBeat(busy_us=500_000)]
    for now in (10.0, 11.0, 12.0):
        waited[0] += 0.75
        cpu.take_off(parts if now == 12.0 else [], now)
    assert [part.busy_us for part in parts] == [500_000, 500_000]


def test_a_minute_is_remembered() -> None:
    cpu = CpuWait(lambda: 0.0)
    for now in range(3 * LOOKS):
        cpu.take_off([], float(now))
    assert len(cpu._looks) == LOOKS


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="a kernel that does not count (CONFIG_SCHED_INFO)"
)
def test_the_kernel_counts_waits_for_a_core_that_another_process_has() -> None:
    cores = os.sched_getaffinity(0)
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for process in (rival.pid, 0):
            os.sched_setaffinity(process, {min(cores)})
        read = kernels_count(threading.get_native_id())
        before, deadline = read(), time.monotonic() + PATIENCE_S
        while read() - before < 0.05:
            assert time.monotonic() < deadline, "two processes are on one core, and neither has waited for it"
    finally:
        os.sched_setaffinity(0, cores)
        rival.kill()
        rival.wait()


def test_a_thread_of_which_the_kernel_says_nothing_has_not_waited() -> None:
    assert kernels_count(2**22 + 1)() == 0.0
