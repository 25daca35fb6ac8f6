"""Runs a pipeline on Kafka: starts the services as processes of this machine, and yields their results."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tsunagi.edge.position import PositionFile
from tsunagi.local.fleet import Fleet
from tsunagi.local.up import System, died
from tsunagi.query.outputs import open_query
from tsunagi.query.results import QueryBlock, QueryRow
from tsunagi.results import Results
from tsunagi.runtime.log import TUPLES
from tsunagi.runtime.results import Row
from tsunagi.system import processes

_LOOK_S = 0.1
"""Time between two looks at what the edges have published, in seconds. It is short, so it hardly delays the results."""


def is_played(state: Path) -> bool:
    """Return whether an edge has published anything from this state directory."""
    return any((state / "edges").glob("*/position.json"))


class RunningResults(Results):
    """The results of a system that is started for them, and stopped when they end or are closed.

    Args:
        ends: whether the source has an end. If it has, the results end with it.
    """

    def __init__(self, system: System, *, ends: bool) -> None:
        self._system = system
        self._ends = ends
        self._published = -1  # the newest step that an edge is known to have published
        self._own_broker = True  # if the start of the broker fails, the broker is stopped too
        try:
            with _import_path():
                self._start()
        except BaseException:
            system.stop(broker=self._own_broker)
            raise

    def _start(self) -> None:
        system = self._system
        self._own_broker = system.start_broker()
        system.make_topics()
        nodes = system.start_workers()
        system.wait_ready(nodes)
        system.wait_consuming()
        super().__init__(system.settings, follow=True, from_now=True)
        self._edges = system.start_edges()
        atexit.register(self.close)  # a caller that does not read to the end may forget to close

    def close(self) -> None:
        if not self._closed:
            atexit.unregister(self.close)
            try:
                super().close()
            finally:
                self._system.stop(broker=self._own_broker)

    def _read(self, *, follow: bool, groups: Sequence[str]) -> Iterator[Row]:
        steps = self.settings.query.mode == "steps"
        try:
            if not self._ends:
                yield from super()._read(follow=follow, groups=groups)
            elif steps:
                for block in self._reader.merged(follow=True, stopping=self._is_over):
                    if not self._is_of_source(block.step):
                        return
                    yield from self._of(block)
            else:
                for block in self._reader.blocks(follow=True, stopping=self._is_processed):
                    yield from self._of(block)
                for block in self._reader.blocks():
                    yield from self._of(block)
        finally:
            self.close()

    def query(self, name: str) -> Iterator[QueryRow]:
        """Return the rows of a query. They end when the source ends, and then the system is stopped."""
        try:
            with open_query(self._log, self.settings, self._followed.table, (name,), at=self._at) as found:
                for block in found.blocks(follow=True, stopping=self._is_answered):
                    yield from self._of_source(block)
                for block in found.blocks():
                    yield from self._of_source(block)
        finally:
            self.close()

    def _of_source(self, block: QueryBlock) -> Iterator[QueryRow]:
        every = not self._ends or self.settings.query.mode == "tuples"
        return (row for row in block.rows if every or self._is_of_source(row.step))

    def _is_answered(self) -> bool:
        """Return whether all that the edges sent has been answered, by the slots or by the Spark job."""
        if self.settings.query.mode == "tuples":
            return self._is_processed()
        if self._closed or not self._ends or not self._have_ended():
            return self._closed
        fleet = Fleet(self._log)
        try:
            fleet.update(_LOOK_S)
            newest = self._newest_step()
            beats = [beat.message.spark for beat in fleet.beats.values() if beat.message.role == "spark"]
            return newest < 0 or any(beat.frontier > newest for beat in beats)
        finally:
            fleet.close()

    def _have_ended(self) -> bool:
        """Return whether all edges have sent everything.

        Raises:
            ProcessError: an edge has died before its source had ended; the message has the end of its log.
        """
        state = self.settings.state
        found = {edge: processes.find(state, edge) for edge in self._edges}
        ended = [edge for edge, process in found.items() if process is None or not processes.alive(process)]
        for edge in ended:
            if not any("source finished" in line for line in processes.tail(state, edge, 20)):
                raise processes.ProcessError(died(state, edge))
        return len(ended) == len(found)

    def _newest_step(self) -> int:
        """Return the newest step that an edge has published; -1 if there is none."""
        positions = (PositionFile(self.settings.state, edge).load() for edge in self._edges)
        return max((position.step for position in positions if position is not None), default=-1)

    def _is_of_source(self, step: int) -> bool:
        """Return whether an edge has published this step.

        When all edges have ended, the slots close further steps by themselves. Those do not belong to the results.
        """
        while step > self._published:
            ended = self._have_ended()  # asked first, since the newest step is then the last one
            self._published = self._newest_step()
            if ended:
                break
            time.sleep(_LOOK_S if step > self._published else 0.0)
        return step <= self._published

    def _is_over(self) -> bool:
        """Return whether there is nothing to wait for: this was closed, or no edge had a whole window to send."""
        return self._closed or (self._published < 0 and self._have_ended() and self._newest_step() < 0)

    def _is_processed(self) -> bool:
        """Return whether the owners of the slots have written the outputs of everything that the edges sent."""
        if self._closed or not self._have_ended():
            return self._closed
        fleet, reader = Fleet(self._log), self._log.reader()
        try:
            ends = {slot: reader.range(TUPLES, slot)[1] for slot in range(self.settings.slots.count)}
            fleet.update(_LOOK_S)
            done = {(slot, node): fleet.acked(slot, node) for slot, level, node in fleet.acks if level == "level0"}
            return all(
                max((offset for (at, _), offset in done.items() if at == slot), default=0) >= end
                for slot, end in ends.items()
            )
        finally:
            fleet.close()
            reader.close()


@contextlib.contextmanager
def _import_path() -> Iterator[None]:
    """Let the started processes import what this process can import, such as the modules of the user's operators."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(str(Path(entry).absolute()) for entry in sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
