"""Short-lived helper containers: they disturb a container's network from inside it, or kill where we cannot reach."""

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
LABEL = "tsunagi.chaos"
TARGET_LABEL = "tsunagi.chaos.target"
_SET_S = 20.0
_KILL = "import os, sys, time; print('set', time.time_ns() // 1000, flush=True); os.kill(int(sys.argv[1]), 9)"


class Helper:
    """Starts and removes helpers of one project; there is at most one that disturbs."""

    def __init__(self, client: DockerClient, project: str) -> None:
        self._client = client
        self._project = project

    def disturb(self, plan: Round, container: Container, *, server: bool) -> int:
        """Delay or lose what the target says to its broker (or, `server`, a broker to its clients), from now on.

        The helper ends by itself when the fault's time is over, even if nobody takes it back.

        Raises:
            ChaosError: the image is missing, or the rules could not be set; nothing is left of them then.
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
        """Kill a process of the engine's machine; return when.

        Raises:
            ChaosError: it could not be.
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
        """Remove all helpers, and the rules of those that could not do it themselves."""
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
            return  # the target does not run: its network, and the rules in it, are gone
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
