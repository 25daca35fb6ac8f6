"""Starts and stops workers as containers, through the API of Docker Engine (unix socket or TCP).

The labels of containers are the only record of what runs. So a scaler that is restarted adopts the containers of the
one before it; containers that have ended are removed. The image is not pulled: if it is missing, an error says so.

`[scaler.containers]` configures a worker, or names a container of the same compose project that it is to be like
(`like`). Then there is one place for the configuration, and secrets, read-only files and logs are as in that container.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, ImageNotFound, NotFound
from docker.models.containers import Container

from tsunagi.runtime.settings import Settings, SizeSettings
from tsunagi.scaler.launcher import LauncherError

TIMEOUT_S = 20
"""Longest wait for an answer of the daemon, in seconds: to start a container on a busy machine takes some."""
STOP_S = 10
"""Docker kills a worker that has not stopped this many seconds after it was asked to."""
NANO = 1_000_000_000
"""Docker gives shares of a CPU in billionths."""

PROJECT, NODE, TYPE, ROLE = "tsunagi.project", "tsunagi.node", "tsunagi.type", "tsunagi.role"
"""Labels of a worker's container: the system it belongs to, its node name, its type, its role."""
COMPOSE_PROJECT = "com.docker.compose.project"
"""Label in which Docker Compose keeps a container's project."""

ENDED = ("exited", "dead", "created")
"""States of a container that does not run. The state "created" remains when a start was refused."""


class DockerLauncher:
    """Starts, adopts and stops the containers of one system.

    Raises:
        LauncherError: the daemon does not answer, or the image is missing.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._containers = settings.scaler.containers
        url, image = self._containers.url, self._containers.image
        scheme, _, path = url.partition("://")
        if scheme == "unix" and not Path(path).is_socket():
            raise LauncherError(f"[scaler.containers] url: found no socket {path}, expected Docker Engine's")
        try:
            self._client = docker.DockerClient(base_url=url, timeout=TIMEOUT_S)
        except DockerException as error:
            raise LauncherError(f"[scaler.containers] url: {url} does not answer: {error}") from None
        if self._containers.like:
            return  # compose starts containers in any order: it is looked up at each launch
        try:
            self._client.images.get(image)
        except ImageNotFound:
            self._client.close()
            raise LauncherError(f"[scaler.containers] image: found no image {image!r} at {url}") from None

    def launch(self, name: str, kind: str) -> None:
        """Create and start a container.

        Raises:
            LauncherError: there is no container that the worker could be like.
            DockerException: the daemon refuses to start it.
        """
        project = self._containers.project
        size = self._settings.scaler.sizes.get(kind, SizeSettings())
        container = self._client.containers.create(
            command=["gateway", "run", "--node", name],
            name=f"{project}-{name}",
            labels={PROJECT: project, NODE: name, TYPE: kind, ROLE: "gateway"},
            nano_cpus=round(size.cpus * NANO),
            mem_limit=size.memory_bytes,
            init=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            **(self._like() if self._containers.like else self._as_told()),
        )
        try:
            container.start()
        except DockerException:
            container.remove(force=True)
            raise

    def running(self) -> Mapping[str, str]:
        found = {}
        for container in self._list():
            if container.status in ENDED:
                self._remove(container)
            else:
                found[container.labels[NODE]] = container.labels[TYPE]
        return found

    def stop(self, name: str) -> None:
        """Stop and remove a container; Docker kills it if it has not stopped after `STOP_S`."""
        for container in self._list():
            if container.labels[NODE] == name:
                container.stop(timeout=STOP_S)
                self._remove(container)

    def close(self) -> None:
        self._client.close()

    def _as_told(self) -> dict[str, Any]:
        wanted = self._containers
        return {
            "image": wanted.image,
            "environment": dict(wanted.environment),
            "volumes": list(wanted.volumes),
            "network": wanted.network or None,
        }

    def _like(self) -> dict[str, Any]:
        """Return the configuration of the container that workers are to be like."""
        project, node = self._containers.project, self._containers.like
        label = [f"{COMPOSE_PROJECT}={project}", f"{NODE}={node}"]
        found = self._client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
        if not found:
            raise LauncherError(
                f"[scaler.containers] like: found no container of a node {node!r} in project {project!r}"
            )
        config, host = found[0].attrs["Config"], found[0].attrs["HostConfig"]
        return {
            "image": config["Image"],
            "environment": config["Env"],
            "volumes": host["Binds"] or [],
            "mounts": host.get("Mounts") or [],
            "network": host["NetworkMode"],
            "read_only": host["ReadonlyRootfs"],
            "tmpfs": host.get("Tmpfs") or {},
            "log_config": host["LogConfig"],
        }

    def _list(self) -> list[Container]:
        label = [f"{PROJECT}={self._containers.project}", TYPE]
        return list(self._client.containers.list(all=True, filters={"label": label}, ignore_removed=True))

    def _remove(self, container: Container) -> None:
        try:
            container.remove(force=True)
        except NotFound:
            return  # somebody else has removed it
