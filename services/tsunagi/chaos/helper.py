"""Starts short-lived helper containers.

A helper disturbs the network of another container from the inside, or kills a process that this machine cannot reach.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from docker import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container

from tsunagi.chaos.plan import Round
from tsunagi.chaos.targets import ChaosError

IMAGE = "tsunagi-netfault"
"""The image of the helpers. It has `tsunagi.chaos.proxy` and iptables."""
LABEL = "tsunagi.chaos"
"""The label by which helpers are found again. Its value is the name of the project."""
TARGET_LABEL = "tsunagi.chaos.target"
"""The label of a helper with the id of the container that it disturbs."""
_SET_S = 20.0
"""Longest time until a helper says that its fault is set, in seconds. On a busy machine a container starts slowly."""
_KILL = "import os, sys, time; print('set', time.time_ns() // 1000, flush=True); os.kill(int(sys.argv[1]), 9)"
"""The program of a helper that kills. It prints the time first, as `tsunagi.chaos.proxy` does."""


class Helper:
    """Starts and removes the helpers of one project. At most one helper disturbs at a time."""

    def __init__(self, client: DockerClient, project: str) -> None:
        self._client = client
        self._project = project

    def disturb(self, plan: Round, container: Container, *, server: bool) -> int:
        """Delay or drop the packets of a container's Kafka connections from now on.

        The helper ends by itself when the time of the fault is over, even if nobody takes the fault back.

        Args:
            plan: the fault, its strength and its length.
            container: the target.
            server: whether the target is a broker, so that the connections from its clients are disturbed. Otherwise
                its own connections to brokers are.

        Returns:
            When the fault was set, in microseconds since 1970.

        Raises:
            ChaosError: the image is missing, or the rules could not be set. No rule is left then.
        """
        numbers = [plan.loss] if plan.fault == "loss" else [plan.delay_ms, plan.jitter_ms]
        command = ["server" if server else "client", plan.fault, *map(str, numbers), str(plan.seconds)]
        helper = self._run(
            command,
            network_mode=f"container:{container.id}",
            cap_add=["NET_ADMIN"],
            labels={LABEL: self._project, TARGET_LABEL: str(container.id)},
        )
        return self._set_at(helper, f"{plan.fault} of {container.name}")

    def kill(self, pid: int) -> int:
        """Kill a process of the machine on which the Docker engine runs.

        Returns:
            When it was killed, in microseconds since 1970.

        Raises:
            ChaosError: the helper could not be started, or did not kill.
        """
        helper = self._run(
            [str(pid)], entrypoint=["python3", "-c", _KILL], pid_mode="host", labels={LABEL: self._project}
        )
        try:
            return self._set_at(helper, f"SIGKILL to pid {pid}")
        finally:
            helper.remove(force=True)

    def left(self) -> bool:
        """Return whether helpers are still there."""
        return bool(self._helpers())

    def remove(self) -> None:
        """Remove all helpers, and the rules of those helpers that could not remove them themselves."""
        for helper in self._helpers():
            target = helper.labels.get(TARGET_LABEL, "")
            with contextlib.suppress(APIError):
                helper.stop(timeout=5)
            with contextlib.suppress(NotFound):
                helper.reload()
                clean = helper.attrs["State"]["ExitCode"] == 0
                helper.remove(force=True)
                if target and not clean:
                    self._clean(target)

    def _clean(self, target: str) -> None:
        try:
            helper = self._run(
                ["clean"], network_mode=f"container:{target}", cap_add=["NET_ADMIN"], labels={LABEL: self._project}
            )
        except ChaosError:
            return  # the target does not run, so its network and the rules in it are gone
        helper.wait(timeout=30)
        helper.remove(force=True)

    def _helpers(self) -> list[Container]:
        return self._client.containers.list(
            all=True, ignore_removed=True, filters={"label": f"{LABEL}={self._project}"}
        )

    def _run(self, command: list[str], **options: Any) -> Container:  # noqa: ANN401 - the library's own
        try:
            return self._client.containers.run(IMAGE, command, detach=True, **options)
        except ImageNotFound:
            raise ChaosError(
                f"no image {IMAGE}: docker build --network=host -f deploy/netfault/Dockerfile -t {IMAGE} . "
                "(where no registry is reached: --build-arg BASE_IMAGE=tsunagi-base:bookworm)"
            ) from None
        except DockerException as error:
            raise ChaosError(f"the helper could not be started: {error}") from error

    def _set_at(self, helper: Container, what: str) -> int:
        deadline = time.monotonic() + _SET_S
        while time.monotonic() < deadline:
            said = helper.logs().decode("utf-8", "replace")
            for line in said.splitlines():
                word, _, moment = line.partition(" ")
                if word == "set":
                    return int(moment)
            helper.reload()
            if helper.status == "exited":
                break
            time.sleep(0.05)
        last = helper.logs().decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ChaosError(f"{what}: the helper did not set it: {' '.join(last) or 'it said nothing'}")
