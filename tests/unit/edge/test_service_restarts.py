"""An edge that is killed, paused or started twice: what its next incarnation sends, and what no incarnation repeats."""

from __future__ import annotations

import os
import random
import re
import socket
import threading
import time
from typing import Any

import numpy as np

from tests.unit.edge.worlds import SLIDE, SLOTS, WINDOW, steps_of
from tsunagi.edge.process import run
from tsunagi.runtime.clock import SystemClock
from tsunagi.runtime.heartbeat import ReplacedError
from tsunagi.runtime.log import DEAD_LETTERS, HEARTBEATS, PLAN, TUPLES
from tsunagi.runtime.messages import (
    VERSION,
    Heartbeat,
    LogRecord,
)
from tsunagi.runtime.testing import MemoryLog, Network


def test_what_an_edge_kept_for_an_outage_is_sent_by_its_next_incarnation(make):
    world = make(when_behind="send").write()
    world.place()
    first = world.edge("a")
    world.run(4)
    had = len(steps_of(world.batches()))
    world.log.stop()
    world.run(3)
    kept = first.publisher.depth
    assert kept > 10
    world.kill(first)
    world.log.start()
    world.edge("a")
    world.run(8)
    batches = world.batches()
    world.check(batches)
    steps = steps_of(batches)
    assert steps == list(range(steps[0], steps[0] + 25))
    of_first = {batch.step for _, batch in batches if batch.incarnation == first.incarnation}
    assert len(of_first) >= had + kept // SLOTS


def test_a_killed_edge_goes_on_where_its_source_is_now(make):
    world = make().write()
    world.place()
    first = world.edge("a")
    world.run(5.02)
    world.kill(first)
    before = steps_of(world.batches())
    world.run(0.8)
    second = world.edge("a")
    assert second.incarnation > first.incarnation
    world.run(8)
    assert second.done
    batches = world.batches()
    world.check(batches)
    after = [step for step in steps_of(batches) if step > before[-1]]
    assert len(after) > 3
    # whole windows again only `window` readings after the restart
    assert after[0] - before[-1] >= (WINDOW + 8) // SLIDE
    assert {batch.incarnation for _, batch in batches} == {first.incarnation, second.incarnation}


def test_an_edge_that_may_send_late_loses_no_step_over_a_kill(make):
    world = make(when_behind="send").write()
    world.place()
    for seconds in (4.0, 0.5, 1.3):
        edge = world.edge("a")
        world.run(seconds)
        world.kill(edge)
        world.clock.advance(0.35)
    world.edge("a")
    world.run(8)
    batches = world.batches()
    world.check(batches)
    steps = steps_of(batches)
    assert steps == list(range(steps[0], steps[0] + 25))


def test_kills_at_any_moment_never_repeat_a_step(make):
    chance = random.Random(11)
    network = Network((0.0, 0.1), (0.0, 0.1), (0.0, 0.1), (0.0, 0.1))
    for behind in ("skip", "send"):
        world = make(network, when_behind=behind, origin_us=0).write()
        world.place()
        while world.clock.monotonic() < 9:
            edge = world.edge("a")
            world.run(chance.uniform(0.05, 2.5))
            world.kill(edge)
            world.clock.advance(chance.uniform(0.0, 0.5))
        world.clock.advance(1)
        world.check(world.batches())
        assert len(world.batches()) > 10
        for file in ("run/origin", "run/edges/a/position.json"):
            (world.path / file).unlink()


def test_a_clock_that_is_ten_minutes_off_moves_the_steps_and_not_the_rhythm(make):
    world = make().write()
    world.place()
    right, fast = world.edge("a"), world.edge("b", clock_offset_s=600.0)
    world.run(5)
    assert right.publisher.last_step is not None
    assert fast.publisher.last_step == right.publisher.last_step + 3000
    values = {
        (batch.edge, batch.step - (3000 if batch.edge == "b" else 0)): batch.value for slot, batch in world.batches()
    }
    assert {step for edge, step in values if edge == "a"} == {step for edge, step in values if edge == "b"}


def test_a_clock_set_back_does_not_silence_the_edge(make):
    world = make().write()
    world.place()
    edge = world.edge("a", clock_offset_s=600.0)
    world.run(4)
    ahead = edge.publisher.last_step
    world.kill(edge)
    edge = world.edge("a")
    world.run(3)
    assert edge.publisher.last_step is not None
    assert edge.publisher.last_step < ahead


def test_a_pause_is_taken_for_absence(make):
    world = make().write()
    world.cells *= 3
    world.values = np.concatenate([world.values] * 3)
    world.write().place()
    edge = world.edge("a")
    world.run(5)
    before = steps_of(world.batches())
    world.clock.advance(6)
    world.run(5)
    batches = world.batches()
    world.check(batches)
    after = [step for step in steps_of(batches) if step > before[-1]]
    assert after[0] - before[-1] >= (60 + WINDOW) // SLIDE
    assert edge._source.skipped_rows >= 59


def beat(edge: str, incarnation: int, sequence: int, **fields: Any) -> bytes:
    return Heartbeat(
        version=VERSION, node=edge, role="edge", incarnation=incarnation, sequence=sequence, pid=7, **fields
    ).SerializeToString()


def test_an_edge_ends_when_a_newer_process_of_its_name_lives_elsewhere(make):
    world = make().write()
    world.place()
    edge = world.edge("a")
    own = edge.incarnation
    harmless = [
        beat("a", own, 1),
        beat("a", own - 1, 9),
        beat("a", own + 1, 1, leaving=True),
        beat("a", own + 1, 2, leaving=True),
        beat("a", own + 1, 5),
        beat("a", own + 1, 5),  # a repetition is no sign of life
        b"\xff",
    ]
    for number in range(600):
        world.log.append(HEARTBEATS, 0, b"b", beat("b", own + 5, number))
    for _ in range(400):
        for value in harmless:
            world.log.append(HEARTBEATS, 0, b"a", value)
        world.clock.advance(0.05)
        edge.step()
    found = ""
    for number in range(400):
        world.log.append(HEARTBEATS, 0, b"a", beat("a", own + 1, 6 + number))
        try:
            world.clock.advance(0.05)
            edge.step()
        except ReplacedError as error:
            found = str(error)
            break
    assert re.fullmatch(
        f"edge 'a': a newer process of it has taken over.* pid 7, incarnation {own + 1}; .* {own}", found
    )


def test_of_two_processes_of_one_edge_the_newer_goes_on_and_the_older_says_why_it_ends(make):
    world = make(when_behind="send").write()
    world.place()
    clock = SystemClock()
    log = MemoryLog(clock, {TUPLES: SLOTS, PLAN: 1, DEAD_LETTERS: 1, HEARTBEATS: 1})
    log.append(PLAN, 0, b"placement", world.log.records(PLAN)[0].value)
    ended: dict[str, object] = {}

    def process(name: str) -> None:
        try:
            ended[name] = run(world.settings, "a", log=log.client(name), clock=clock)
        except ReplacedError as error:
            ended[name] = error

    threads = [threading.Thread(target=process, args=(name,)) for name in ("older", "newer")]
    threads[0].start()
    deadline = time.monotonic() + 30
    while not log.records(TUPLES) and time.monotonic() < deadline:
        time.sleep(0.02)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert isinstance(ended["older"], ReplacedError)
    assert f"host {socket.gethostname()}, pid {os.getpid()}" in str(ended["older"])
    assert ended["newer"] == 0
    batches = [(record.partition, LogRecord.FromString(record.value or b"").batch) for record in log.records(TUPLES)]
    first, second = sorted({batch.incarnation for _, batch in batches})
    steps = steps_of(batches)
    assert steps == list(range(steps[0], steps[0] + 25))
    assert {batch.step for _, batch in batches if batch.incarnation == second}
    beats = [Heartbeat.FromString(record.value or b"") for record in log.records(HEARTBEATS)]
    assert {beat.incarnation for beat in beats if beat.leaving} == {second}, "the edge lives on when the older ends"
    assert first in {beat.incarnation for beat in beats}
