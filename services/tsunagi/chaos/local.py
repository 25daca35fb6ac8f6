"""Sets faults on processes of this machine, as `tsunagi.chaos.containers` does on containers."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tsunagi.chaos.cut import able, clean, cut_off, join
from tsunagi.chaos.plan import Round
from tsunagi.chaos.targets import ChaosError, Unit
from tsunagi.local.up import System, local_broker, worker_names
from tsunagi.runtime.birth import born
from tsunagi.runtime.settings import Settings
from tsunagi.system import processes
from tsunagi.system.processes import Process

DOCKER_RESTART_S = 0.1
"""Time before a process that died is started again, in seconds. Docker waits as long before its first restart, so the
figures of processes and containers can be compared."""

_ROLES = {"worker": "worker", "edge": "edge", "spark": "spark", "scaler": "scaler", "broker": "kafka"}
"""The roles in pid files, and the roles by which a plan names them."""


class LocalDriver:
    """Disturbs the processes that `tsunagi up` has started with this configuration.

    Raises:
        ChaosError: none of these processes runs.
    """

    faults: tuple[str, ...] = ("kill", "pause", "restart", "partition") if able() else ("kill", "pause", "restart")

    def __init__(self, settings: Settings, config: Path | None) -> None:
        self._settings = settings
        self._config = config
        self._set: tuple[str, Process] | None = None
        units = self.units()
        if able():
            clean(settings.state, (unit.node for unit in units))
        if not units:
            raise ChaosError(f"{settings.state}: no process of ours runs; `tsunagi up` starts them")

    def units(self) -> list[Unit]:
        started = worker_names(self._settings)
        units = []
        for item in processes.list_processes(self._settings.state):
            alive = processes.alive(item)
            if item.role == "worker" and item.node not in started and not alive:
                continue  # the scaler launched this worker, and launches another one in its place
            if item.role in _ROLES and item.node != "kafka":
                units.append(Unit(item.node, _ROLES[item.role], "" if alive else "dead"))
        broker = local_broker(self._settings)
        if broker is not None and broker.pid is not None:
            units.append(Unit("kafka", "kafka"))
        return units

    def apply(self, plan: Round, node: str) -> int:
        process = self._find(node)
        self._set = (plan.fault, process)
        at_us = time.time_ns() // 1000
        if plan.fault == "kill":
            hit = processes.kill(process)
        elif plan.fault == "pause":
            hit = processes.send_signal(process, signal.SIGSTOP, session=True)
        elif plan.fault == "partition":
            hit = processes.alive(process)
            if hit:
                cut_off(self._settings.state, process.node)
        else:
            hit = processes.alive(process)
            processes.terminate([process])
        if not hit:
            self._set = None
            raise ChaosError(f"{node} (pid {process.pid}) had died before it was disturbed")
        return at_us

    def undo(self) -> None:
        if self._set is None:
            return
        fault, process = self._set
        if fault == "partition":
            join(self._settings.state, process.node)
        elif fault == "pause":
            processes.send_signal(process, signal.SIGCONT, session=True)
        else:
            time.sleep(DOCKER_RESTART_S)
            self._start(process)
        self._set = None

    def close(self) -> None:
        self.undo()

    def _find(self, node: str) -> Process:
        if node == "kafka":
            broker = local_broker(self._settings)
            if broker is None or broker.pid is None:
                raise ChaosError("kafka: the broker is no process that `tsunagi up` has started here")
            return Process("kafka", "broker", broker.pid, born(broker.pid))
        found = processes.find(self._settings.state, node)
        if found is None:
            raise ChaosError(f"{self._settings.state}: no process of the name {node}")
        return found

    def _start(self, process: Process) -> None:
        """Start a process again as `tsunagi up` does: it starts all that is missing."""
        system = System(self._settings, self._config, lambda _: None)
        if process.role == "broker":
            system.start_broker()
        elif process.role == "edge":
            system.start_edges([process.node])
        else:
            system.start_workers()
