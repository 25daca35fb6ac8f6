"""A compose project of the tests' own, under another name and on other ports than the user's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.compose import Project
from tsunagi.broker.checks import free_port

ROOT = Path(__file__).resolve().parents[2]
NAME = "tsunagi-test"
UP_S = 1200


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that nobody listens on."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


@dataclass
class ComposeProject:
    """A project that `deploy.compose` starts and removes.

    Attributes:
        name: of the project.
        servers: the broker's address for clients on this machine.
        prometheus: base URL of its Prometheus.
        env: what its commands run with.
        folder, operators: the project folder of another fleet, and a directory of operators; None = the checkout's.
    """

    name: str = NAME
    profiles: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)
    servers: str = ""
    prometheus: str = ""
    console: str = ""
    env: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    operators: Path | None = None

    def __post_init__(self) -> None:
        kafka, kafka_2, kafka_3, prometheus, alertmanager, console, mqtt = free_ports(7)
        self.servers = f"127.0.0.1:{kafka}"
        self.prometheus = f"http://127.0.0.1:{prometheus}"
        self.console = f"http://127.0.0.1:{console}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TSUNAGI_", "COMPOSE_"))}
        self.env = kept | {
            "COMPOSE_PROJECT_NAME": self.name,
            "TSUNAGI_PORT_KAFKA": str(kafka),
            "TSUNAGI_PORT_KAFKA_2": str(kafka_2),
            "TSUNAGI_PORT_KAFKA_3": str(kafka_3),
            "TSUNAGI_PORT_PROMETHEUS": str(prometheus),
            "TSUNAGI_PORT_ALERTMANAGER": str(alertmanager),
            "TSUNAGI_PORT_CONSOLE": str(console),
            "TSUNAGI_PORT_MQTT": str(mqtt),
            **self.extra,
        }
        self.env = Project(ROOT, self.profiles, self.env).env  # with what the profiles bring

    def make(self, command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `deploy.compose`; `extra`: further variables."""
        options = [part for profile in self.profiles for part in ("--profile", profile)]
        options += [] if self.folder is None else ["--project", str(self.folder)]
        options += [] if self.operators is None else ["--operators", str(self.operators)]
        return subprocess.run(
            [sys.executable, "-m", "deploy.compose", command, *options],
            cwd=ROOT,
            env=self.env | extra,
            capture_output=True,
            text=True,
            timeout=UP_S,
            check=False,
        )

    def up(self) -> str:
        """Start it, or fail with what it said; return what it said."""
        done = self.make("up")
        assert done.returncode == 0, f"up failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def down(self) -> None:
        """Remove it with its volumes."""
        done = self.make("down")
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def running(self) -> Iterator[ComposeProject]:
        """Start it anew, and remove it in the end, also when it did not come up."""
        self.down()  # what a run that was cut short has left
        try:
            self.up()
            yield self
        finally:
            self.down()

    def tool(self, *arguments: str) -> str:
        """Run a `tsunagi` command in the project's network; return what it printed."""
        done = subprocess.run(
            ["docker-compose", "run", "--rm", "-T", "tools", *arguments],
            cwd=self.folder or ROOT,  # each has an `.env` of its own
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def logs(self, node: str) -> str:
        """Return all that a container has written."""
        done = subprocess.run(
            ["docker", "logs", self.container(node)], capture_output=True, text=True, errors="replace", check=True
        )
        return done.stdout + done.stderr

    def container(self, node: str) -> str:
        """Return the id of a node's container."""
        label = f"label=com.docker.compose.project={self.name}"
        return docker("ps", "--all", "--quiet", "--filter", label, "--filter", f"label=tsunagi.node={node}").split()[0]

    def containers(self) -> list[dict[str, Any]]:
        """Return what Docker says of its containers."""
        return inspected(f"com.docker.compose.project={self.name}")


def inspected(label: str) -> list[dict[str, Any]]:
    """Return what Docker says of each container with a label; one that goes away between list and answer is none."""
    listed = docker("ps", "--all", "--quiet", "--filter", f"label={label}").split()
    if not listed:
        return []
    done = subprocess.run(["docker", "inspect", *listed], capture_output=True, text=True, timeout=300, check=False)
    complaints = [line for line in done.stderr.splitlines() if "No such object" not in line]
    assert not complaints, f"docker inspect {' '.join(listed)}: {done.stderr}"
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def docker(*arguments: str) -> str:
    """Run a docker command; return what it printed."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout
