"""Sets faults on containers through the Docker API, but only on those with Tsunagi's labels in the named project."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, NotFound
from docker.models.containers import Container

from tsunagi.chaos.helper import Helper
from tsunagi.chaos.journal import Journal
from tsunagi.chaos.plan import FAULTS, Round
from tsunagi.chaos.targets import ChaosError, Unit

PROJECT_LABEL = "com.docker.compose.project"
"""The label in which Docker Compose writes the project's name."""
NODE_LABEL = "tsunagi.node"
"""The label with the name that a container has in its heartbeats. The compose files and the scaler set it."""
ROLE_LABEL = "tsunagi.role"
"""The label with the role of a container. The compose files and the scaler set it."""
ROLES = frozenset({"edge", "gateway", "secondary", "worker", "scaler", "spark", "kafka"})
"""The roles of containers that may be disturbed. Containers with other roles are left alone."""

AGAIN_S = 15.0
"""How long Docker may take to restart a container that died, in seconds. Then the driver starts it itself."""

SETTLE_S = 3.0
"""Time that the system gets after the faults of a run that was cut short are taken back, in seconds.

A worker that goes on after a pause writes what it had ready then, and others have written the same meanwhile. The
judging must not begin at such a late record."""

_CALL_S = 120
"""Longest time that the Docker engine may take for an answer, in seconds. A busy machine may need long to restart a
container."""
_STOP_S = 10
"""Time that a container has to stop in good order before Docker kills it, in seconds. It is Docker's own default."""
_POLL_S = 0.05
"""Time between two looks at whether a container runs again, in seconds."""
_PERIOD_US = 100_000
"""Period of the limit on processor time, in microseconds. It is the kernel's own default."""


class ContainerDriver:
    """Disturbs the containers of a compose project.

    Args:
        project: the name of the project.
        state: the directory for the journal of the faults that are set.
        tell: called with a line if faults of an earlier run were taken back.

    Raises:
        ChaosError: no Docker engine answers, or the project has no containers of Tsunagi.
    """

    faults: tuple[str, ...] = FAULTS

    def __init__(self, project: str, state: Path, tell: Callable[[str], None]) -> None:
        self._project = project
        self._journal = Journal(state / f"chaos-{project}.json")
        try:
            self._client = docker.from_env(timeout=_CALL_S)
            self._client.ping()
        except DockerException as error:
            raise ChaosError(f"no Docker engine answers: {error}") from None
        self._helper = Helper(self._client, project)
        if not self.units():
            raise ChaosError(
                f"project {project}: no container with the labels {NODE_LABEL} and {PROJECT_LABEL}={project}; "
                "is it up? (--project names another one, --local means processes of this machine)"
            )
        left = self._journal.entries()
        if left or self._helper.left():
            self._helper.remove()
            self.undo()
            tell(
                f"cleaned up after a run that was cut short: {', '.join(e['node'] for e in left.values()) or 'helpers'}"
            )
            time.sleep(SETTLE_S)

    def units(self) -> list[Unit]:
        found = []
        for container in self._containers():
            state = container.attrs["State"]
            health = (state.get("Health") or {}).get("Status", "healthy")
            trouble = "" if health == "healthy" else health
            if state["Status"] != "running":
                trouble = str(state["Status"])
            found.append(Unit(container.labels[NODE_LABEL], container.labels[ROLE_LABEL], trouble))
        return sorted(found, key=lambda unit: unit.node)

    def apply(self, plan: Round, node: str) -> int:
        container = self._find(node)
        act = {
            "kill": self._kill,
            "pause": self._pause,
            "restart": self._restart,
            "partition": self._partition,
            "cpu": self._throttle,
            "delay": self._disturb,
            "loss": self._disturb,
        }[plan.fault]
        try:
            return act(plan, container)
        except (DockerException, OSError) as error:
            with contextlib.suppress(ChaosError):
                self.undo()
            raise ChaosError(f"{plan.fault} of {container.name}: {error}") from error

    def undo(self) -> None:
        for identity, entry in self._journal.entries().items():
            try:
                self._undo(self._client.containers.get(identity), entry)
            except NotFound:
                pass  # the container was removed since, and the fault with it
            except (DockerException, OSError) as error:
                raise ChaosError(f"{entry['fault']} of {entry['node']} could not be taken back: {error}") from error
            self._journal.strike(identity)

    def close(self) -> None:
        try:
            self._helper.remove()
            self.undo()
        finally:
            self._client.close()

    # ---- faults

    def _kill(self, plan: Round, container: Container) -> int:
        """Kill the main process as a crash would: after `docker kill` the engine does not restart a container."""
        self._note(container, plan, started=container.attrs["State"]["StartedAt"])
        pid = int(container.attrs["State"]["Pid"])
        if not _is_here(pid, str(container.id)):
            return self._helper.kill(pid)  # the engine runs on another machine, or on a virtual one
        at_us = _now_us()
        try:
            os.kill(pid, signal.SIGKILL)
        except PermissionError:
            return self._helper.kill(pid)
        return at_us

    def _pause(self, plan: Round, container: Container) -> int:
        self._note(container, plan)
        at_us = _now_us()
        container.pause()
        return at_us

    def _restart(self, plan: Round, container: Container) -> int:
        self._note(container, plan, started=container.attrs["State"]["StartedAt"])
        at_us = _now_us()
        container.restart(timeout=_STOP_S)
        return at_us

    def _partition(self, plan: Round, container: Container) -> int:
        networks = {
            name: {
                "aliases": [alias for alias in found.get("Aliases") or [] if alias != container.short_id],
                "ipv4_address": (found.get("IPAMConfig") or {}).get("IPv4Address"),
            }
            for name, found in container.attrs["NetworkSettings"]["Networks"].items()
        }
        self._note(container, plan, networks=networks)
        at_us = _now_us()
        for name in networks:
            self._client.networks.get(name).disconnect(container)
        return at_us

    def _throttle(self, plan: Round, container: Container) -> int:
        host = container.attrs["HostConfig"]
        nano, quota, period = (int(host.get(key) or 0) for key in ("NanoCpus", "CpuQuota", "CpuPeriod"))
        self._note(container, plan, nano=nano, quota=quota, period=period)
        at_us = _now_us()
        if nano:  # the engine refuses a quota for a container with NanoCpus
            self._update(container, NanoCpus=round(plan.cpus * 1e9))
        else:
            self._update(container, CpuPeriod=_PERIOD_US, CpuQuota=round(plan.cpus * _PERIOD_US))
        return at_us

    def _disturb(self, plan: Round, container: Container) -> int:
        self._note(container, plan)
        return self._helper.disturb(plan, container, server=container.labels[ROLE_LABEL] == "kafka")

    # ---- and back

    def _undo(self, container: Container, entry: dict[str, Any]) -> None:
        fault = entry["fault"]
        if fault in ("kill", "restart"):
            self._run_again(container, entry["started"])
        elif fault == "pause":
            if container.status == "paused":
                container.unpause()
        elif fault == "partition":
            for name, found in entry["networks"].items():
                if name not in container.attrs["NetworkSettings"]["Networks"]:
                    self._client.networks.get(name).connect(
                        container, aliases=found["aliases"], ipv4_address=found["ipv4_address"]
                    )
        elif fault == "cpu":
            if entry["nano"]:
                self._update(container, NanoCpus=entry["nano"])
            else:
                self._update(container, CpuPeriod=entry["period"] or _PERIOD_US, CpuQuota=entry["quota"] or -1)
        else:
            self._helper.remove()

    def _run_again(self, container: Container, started: str) -> None:
        deadline = time.monotonic() + AGAIN_S
        while time.monotonic() < deadline:
            container.reload()
            state = container.attrs["State"]
            if state["Status"] == "running" and state["StartedAt"] != started:
                return
            time.sleep(_POLL_S)
        container.start()

    # ---- engine

    def _containers(self) -> list[Container]:
        labels = [f"{PROJECT_LABEL}={self._project}", NODE_LABEL, ROLE_LABEL]
        try:
            found = self._client.containers.list(all=True, ignore_removed=True, filters={"label": labels})
        except DockerException as error:
            raise ChaosError(f"the Docker engine does not answer: {error}") from error
        return [container for container in found if container.labels[ROLE_LABEL] in ROLES]

    def _find(self, node: str) -> Container:
        for container in self._containers():
            if container.labels[NODE_LABEL] == node:
                return container
        raise ChaosError(f"project {self._project}: no container with the label {NODE_LABEL}={node}")

    def _note(self, container: Container, plan: Round, **more: Any) -> None:  # noqa: ANN401 - whatever JSON takes
        self._journal.note(str(container.id), node=container.labels[NODE_LABEL], fault=plan.fault, **more)

    def _update(self, container: Container, **resources: int) -> None:
        """Change limits of a running container (the library's own call does not know NanoCpus)."""
        api: Any = self._client.api
        answer = api._post_json(api._url("/containers/{0}/update", container.id), data=resources)  # noqa: SLF001
        api._raise_for_status(answer)  # noqa: SLF001


def _is_here(pid: int, identity: str) -> bool:
    """Return whether this machine has a process with that pid, and it belongs to the container."""
    try:
        return identity in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return False


def _now_us() -> int:
    return time.time_ns() // 1000
