"""The faults of the demo: real SIGKILLs. Each hits the owner that the slot's log names, and the evidence is kept."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tsunagi.audit.evidence import Kill, SlotLog
from tsunagi.local.fleet import Fleet
from tsunagi.runtime.log import TUPLES, Log, Position
from tsunagi.system import processes

_READ_RECORDS = 2000
"""Most records that are read at once."""
_WAIT_S = 10.0
"""Longest wait for records of a slot's log, in seconds. While edges send, a batch comes with every step."""


class FaultError(RuntimeError):
    """A fault could not be set as planned: there was nothing to kill, or no tuples were in flight."""


class SlotWatch:
    """Follows a slot's log: who owns it, and where it ends.

    Attributes:
        owner, epoch: the owner and its term, by the Ownership records that count.
        end: the offset after the last record that was read.
        newest_us: when that record was appended, in microseconds since 1970.
        batches: how many batches were read.
    """

    def __init__(self, log: Log, slot: int) -> None:
        self._reader = log.reader()
        self._slot = slot
        self._log = SlotLog(slot)
        self.owner = ""
        self.epoch = 0
        self.end = 0
        self.newest_us = 0
        self.batches = 0
        self._reader.assign([Position(TUPLES, slot, self._reader.range(TUPLES, slot)[0])])

    def update(self, timeout_s: float = 0.0) -> None:
        """Read what is new. Wait up to `timeout_s` seconds for the first record."""
        for record in self._reader.read(_READ_RECORDS, timeout_s):
            self.end, self.newest_us = record.offset + 1, record.appended_us
            self._log.take(record)
        self.batches = len(self._log.batches)
        if self._log.owners:
            self.epoch, self.owner = self._log.owners[-1].epoch, self._log.owners[-1].node

    def catch_up(self) -> None:
        """Read up to the present end of the log, for `_WAIT_S` at most."""
        end = self._reader.range(TUPLES, self._slot)[1]
        deadline = time.monotonic() + _WAIT_S
        while self.end < end and time.monotonic() < deadline:
            self.update(0.1)

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


def kill_edge(state: Path, edge: str) -> Kill:
    """Kill an edge's process.

    Raises:
        FaultError: the edge does not run.
    """
    process = processes.find(state, edge)
    at_us = time.time_ns() // 1000
    if process is None or not processes.kill(process):
        raise FaultError(f"{edge}: no process of that name runs, so it cannot be killed")
    return Kill("edge", edge, process.pid, at_us)


def kill_owner(state: Path, watch: SlotWatch, fleet: Fleet, slot: int) -> Kill:
    """Kill the owner of a slot at the moment when its log has a new batch, so that tuples are in flight.

    Raises:
        FaultError: the slot has no owner, or its owner is no process of this system, or no batch comes into the log.
    """
    watch.catch_up()
    fleet.update()
    deadline = time.monotonic() + _WAIT_S
    before = watch.batches
    while watch.batches == before:
        if time.monotonic() > deadline:
            raise FaultError(f"slot {slot}: nothing came into its log for {_WAIT_S:g} s, so nothing could be in flight")
        watch.update(0.05)
        fleet.update()
    owner, epoch = watch.owner, watch.epoch
    process = processes.find(state, owner) if owner else None
    if process is None:
        raise FaultError(
            f"slot {slot}: its log names {owner or 'nobody'} as the owner, and no process of that name is known"
        )
    at_us = time.time_ns() // 1000
    if not processes.send_signal(process, signal.SIGKILL):
        raise FaultError(f"slot {slot}: its owner {owner} (pid {process.pid}) had died before it was killed")
    beat = fleet.beats.get(owner)
    if beat is not None and beat.message.pid != process.pid:
        raise FaultError(f"{owner}: its heartbeats come from pid {beat.message.pid}, its pid file says {process.pid}")
    return Kill(
        what="owner",
        node=owner,
        pid=process.pid,
        at_us=at_us,
        slot=slot,
        epoch=epoch,
        owner=owner,
        log_end=watch.end,
        acked=fleet.acked(slot, owner),
        newest_us=watch.newest_us,
    )
