"""`make up` and `make down`: starts and stops the compose project with nothing but a checkout and a Docker engine.

It needs only Python's standard library, since it runs before anything is installed. Beyond ``docker compose up`` it
makes the base image where none can be pulled, names wrong variables and ports in use before anything starts, and waits
until ordered results flow. Run it as ``python3 -m deploy.compose up|down|stop|status``; with ``--project FOLDER`` for
the fleet of a folder that `tsunagi init` has made.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from deploy.variables import ComposeError, default_of, directory_of, read_env, refuse_unknown, say

ROOT = Path(__file__).resolve().parents[1]
"""The checkout that this file is part of."""
PROFILES = ("alerts", "cluster", "elastic", "grafana", "ha", "mqtt", "official", "secure")
"""Compose profiles that may be named; docker-compose.yml and deploy/compose.*.yml define them."""
LOCAL_BASE = "tsunagi-base:bookworm"
"""Tag of the base image that `make base-image` makes on this machine."""
BASE_VARIABLE = "BASE_IMAGE"
"""Variable of `.env` that names the base image."""
OVERRIDE = "compose.override.yml"
"""The file over docker-compose.yml that a project folder has."""
RESULTS_S = 300
"""Longest wait for the first ordered result, in seconds: on a slow machine JVMs and a cold Spark take minutes."""

_HA = {
    "TSUNAGI_KAFKA_NODES": "kafka,kafka-2,kafka-3",
    "TSUNAGI_KAFKA_SERVERS": "kafka:9092,kafka-2:9092,kafka-3:9092",
    "TSUNAGI_REPLICATION": "3",
}
"""What the profile ha sets: three brokers, and a copy of each record on all of them."""
_OFFICIAL = {
    "KAFKA_IMAGE": "apache/kafka:4.3.0",
    "PROMETHEUS_IMAGE": "prom/prometheus:v2.53.5",
    "ALERTMANAGER_IMAGE": "prom/alertmanager:v0.27.0",
    "MOSQUITTO_IMAGE": "eclipse-mosquitto:2.0.21",
}
"""What the profile official sets: the images of the makers of Kafka, Prometheus, Alertmanager and Mosquitto."""
_IMPLIED = {
    "alerts": {"TSUNAGI_ALERTMANAGER": "alertmanager:9093"},
    "ha": _HA,
    "cluster": {"TSUNAGI_SPARK_MASTER": "spark://spark-master:7077"},
    "mqtt": {"TSUNAGI_EDGE_SOURCE": "mqtt"},
    "official": _OFFICIAL,
}
"""Variables that a profile sets, unless the user has set them."""
_FILES = {name: f"deploy/compose.{name}.yml" for name in ("secure", "elastic", "official")}
"""The file that a profile adds to docker-compose.yml."""
_SOCKET = Path("/var/run/docker.sock")
"""Socket of the Docker engine. The group that owns it is given to the scaler, which starts workers through it."""
_BUILT = ("topics", "edge-1", "kafka", "spark", "prometheus")
"""Services whose images are built here; the other services share one of these images."""
_OPTIONAL = {"mqtt": "mosquitto", "alerts": "alertmanager"}
"""Services that a profile adds, and whose images may have to be built or pulled for it."""
_IMAGES = {"topics": "services", "edge-1": "edge", "alertmanager": "prometheus"}
"""What follows `tsunagi-` in the name of a service's image, where it is not the service's name."""
_PORTS = {
    "TSUNAGI_PORT_KAFKA": ("9092", ""),
    "TSUNAGI_PORT_KAFKA_2": ("9192", "ha"),
    "TSUNAGI_PORT_KAFKA_3": ("9292", "ha"),
    "TSUNAGI_PORT_PROMETHEUS": ("9090", ""),
    "TSUNAGI_PORT_ALERTMANAGER": ("9093", "alerts"),
    "TSUNAGI_PORT_CONSOLE": ("8470", ""),
    "TSUNAGI_PORT_MQTT": ("1883", "mqtt"),
    "TSUNAGI_PORT_GRAFANA": ("3000", "grafana"),
}
"""Variables that name a published port, each with its default and the profile that uses it ("" = always used)."""


class Project:
    """The compose project of this checkout.

    Args:
        root: directory of the checkout.
        profiles: compose profiles to start.
        env: environment variables; they count more than those of `.env`.
        folder: project folder of another fleet, with `.env` and compose file of its own; None = the shipped fleet.
        operators: directory of the user's own modules, for every service.
    """

    def __init__(
        self,
        root: Path,
        profiles: tuple[str, ...],
        env: dict[str, str],
        folder: Path | None = None,
        operators: Path | None = None,
    ) -> None:
        self.root = root
        self.folder = folder
        self.directory = folder or root
        self.file = read_env(self.directory / ".env")
        # A profile starts services; what the other services must know of it is set here, unless the user has set it.
        implied = {name: value for profile in profiles for name, value in _IMPLIED.get(profile, {}).items()}
        files = [_FILES[profile] for profile in profiles if profile in _FILES]
        if folder is not None:
            own = folder / "operators"
            implied |= {"TSUNAGI_OPERATORS": str(own)} if own.is_dir() else {}
            implied |= {"TSUNAGI_MQTT_HOST": "mosquitto"} if "mqtt" in profiles else {}
            implied["COMPOSE_PROJECT_NAME"] = re.sub(r"[^a-z0-9_-]+", "-", folder.name.lower()).strip("-_") or "plant"
        elif files:
            implied["COMPOSE_FILE"] = ":".join(["docker-compose.yml", *files])
        self.env = implied | self.file | env
        if folder is not None:
            self._use_folder(folder, files)
        if operators is not None:
            self.env["TSUNAGI_OPERATORS"] = str(operators)
        listed = (name for name in self.env.get("COMPOSE_PROFILES", "").split(",") if name)
        self.profiles = tuple(dict.fromkeys((*listed, *profiles)))
        self.env["COMPOSE_PROFILES"] = ",".join(self.profiles)
        named = self.env.get("COMPOSE_FILE", "").split(":")
        added = (profile for profile, file in _FILES.items() if file in named)
        self.profiles = tuple(dict.fromkeys((*self.profiles, *added)))
        if "elastic" in self.profiles and _SOCKET.exists():
            self.env.setdefault("TSUNAGI_DOCKER_GROUP", str(_SOCKET.stat().st_gid))
        self.env.setdefault("COMPOSE_PROJECT_NAME", "tsunagi")
        self._compose: list[str] | None = None

    def _use_folder(self, folder: Path, files: list[str]) -> None:
        """Name the folder and the compose files: ours, the folder's, those of profiles, and then the user's own."""
        given = [part for part in self.file.get("COMPOSE_FILE", "").split(":") if part]
        # What a profile says of a service, such as who starts workers, counts more than the folder's file.
        ours = [
            str(self.root / "docker-compose.yml"),
            str(folder / OVERRIDE),
            *(str(self.root / file) for file in files),
        ]
        own = [part for part in given if part not in ours and Path(part).name not in {"docker-compose.yml", OVERRIDE}]
        self.env |= {"COMPOSE_FILE": ":".join([*ours, *own]), "TSUNAGI_PROJECT": str(folder)}

    @property
    def name(self) -> str:
        """The project's name."""
        return self.env["COMPOSE_PROJECT_NAME"]

    def check(self) -> None:
        """Check that the project can be started.

        Raises:
            ComposeError: there is no engine or no compose, a profile or variable is unknown, or a port is in use.
        """
        self.check_engine()
        for profile in self.profiles:
            if profile not in PROFILES:
                raise ComposeError(f"profile {profile!r}: expected one of {', '.join(PROFILES)}")
        if self.folder is not None and "secure" in self.profiles:
            raise ComposeError(
                "profile 'secure': found PROJECT, expected the shipped fleet: it has secrets for its edges alone"
            )
        known = set(read_env(self.root / ".env.example"))
        refuse_unknown(str(self.directory / ".env"), self.file, known)
        refuse_unknown("environment", [name for name in self.env if name.startswith("TSUNAGI_")], known)
        self._check_ports()

    def check_engine(self) -> None:
        """Check that a Docker engine answers and that compose is installed."""
        if shutil.which("docker") is None:
            raise ComposeError("docker is missing; on Debian: apt-get install docker.io docker-compose")
        done = self._run(["docker", "info", "--format", "{{.ServerVersion}}"])
        if done.returncode != 0 or not done.stdout.strip():
            raise ComposeError(
                f"the Docker engine does not answer: {(done.stderr or done.stdout).strip().splitlines()[-1]}\n"
                "start it (systemctl start docker, or dockerd as root), and be root or in the group docker"
            )

    def _check_ports(self) -> None:
        taken_by_us = self._own_ports()
        address = self.env.get("TSUNAGI_BIND", "127.0.0.1")
        for variable, (default, profile) in _PORTS.items():
            if profile and profile not in self.profiles:
                continue
            text = self.env.get(variable, default)
            if not text.isdigit() or int(text) > 65535:
                raise ComposeError(f"{variable}: found {text!r}, expected a port, 1 to 65535, or 0 for any")
            if int(text) in {0, *taken_by_us}:
                continue
            with contextlib.closing(socket.socket()) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, int(text)))
                except OSError as error:
                    raise ComposeError(
                        f"port {text} on {address} cannot be used: {error.strerror}; "
                        f"stop what uses it, or set {variable} in .env to another port"
                    ) from None

    def _own_ports(self) -> set[int]:
        listed = self._run(
            ["docker", "ps", "--filter", f"label=com.docker.compose.project={self.name}", "--format", "{{.Ports}}"]
        )
        ports = set()
        for part in listed.stdout.replace("\n", ",").split(","):
            outside = part.partition("->")[0].rpartition(":")[2].strip()
            if outside.isdigit():
                ports.add(int(outside))
        return ports

    def ensure_base(self) -> None:
        """Make sure that the base image is here: pull it, or make it.

        Raises:
            ComposeError: it can neither be pulled nor made.
        """
        wanted = self.env.get(BASE_VARIABLE, default_of(self.root, BASE_VARIABLE))
        if self._has_image(wanted):
            return
        if wanted != LOCAL_BASE:
            if self._has_image(LOCAL_BASE) and BASE_VARIABLE not in self.env:
                self.env[BASE_VARIABLE] = LOCAL_BASE
                return
            say(f"up: pulling {wanted}")
            if self._run(["docker", "pull", "--quiet", wanted]).returncode == 0:
                return
            if BASE_VARIABLE in self.env:
                raise ComposeError(f"{BASE_VARIABLE} = {wanted}: cannot be pulled; see `make base-image`")
            say(f"up: {wanted} cannot be pulled here")
        if subprocess.run([str(self.root / "deploy/base/make.sh"), LOCAL_BASE], check=False).returncode != 0:
            raise ComposeError("there is no base image to build on (see above)")
        self.env[BASE_VARIABLE] = LOCAL_BASE

    def _has_image(self, name: str) -> bool:
        return self._run(["docker", "image", "inspect", name]).returncode == 0

    def build(self) -> None:
        """Build the images; layers that have not changed are kept. An image that a variable names is pulled instead.

        Raises:
            ComposeError: a build failed; its last lines are shown. Or an image cannot be pulled.
        """
        self._build_helper()
        built = set[str]()
        for name in (*_BUILT, *(name for profile, name in _OPTIONAL.items() if profile in self.profiles)):
            started = time.monotonic()
            variable = f"{name.upper()}_IMAGE"
            ours = f"tsunagi-{_IMAGES.get(name, name)}"
            if variable in _OFFICIAL and (image := self.env.get(variable, ours)) != ours:
                if not self._has_image(image) and self._run(["docker", "pull", "--quiet", image]).returncode != 0:
                    raise ComposeError(f"{variable} = {image}: cannot be pulled; without it {ours} is built")
                continue
            # A project folder has its compose file only when there is an image to write it.
            command = [*self.command(), "--file", str(self.root / "docker-compose.yml"), "build", name]
            if ours not in built and (done := self._run(command)).returncode != 0:
                tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
                raise ComposeError(f"the image of {name} could not be built:\n{tail}")
            built.add(ours)
            say(f"up: image {ours} ({time.monotonic() - started:.0f} s)")

    def write_files(self) -> None:
        """Write the compose file of the project folder, by `tsunagi plan` in a container; an `.env` there stays.

        Raises:
            ComposeError: the folder's settings or sensors cannot be used; the message is that of the command.
        """
        folder = self.folder
        if folder is None:
            return
        mounts = ["--volume", f"{folder}:/project:ro", "--workdir", "/project"]
        command = ["docker", "run", "--rm", "--network", "none", *mounts, "tsunagi-services", "plan", "--compose"]
        done = self._run(command)
        if done.returncode != 0:
            raise ComposeError(f"{folder}: {(done.stderr or done.stdout).strip()}")
        files = json.loads(done.stdout)
        try:
            (folder / OVERRIDE).write_text(files[OVERRIDE], encoding="utf-8")
            if not (folder / ".env").exists():
                text = files[".env"].replace("{name}", self.name).replace("{checkout}", str(self.root))
                own = f"TSUNAGI_OPERATORS={folder}/operators\n" if (folder / "operators").is_dir() else ""
                (folder / ".env").write_text(text.replace("{folder}", str(folder)) + own, encoding="utf-8")
        except OSError as error:
            raise ComposeError(f"{error.filename}: cannot be written: {error.strerror}") from None
        self.env = read_env(folder / ".env") | self.env
        say(f"up: {folder / OVERRIDE}")

    def _build_helper(self) -> None:
        """Build the image of the helper of `tsunagi chaos`, which is not a service."""
        base = self.env.get(BASE_VARIABLE, default_of(self.root, BASE_VARIABLE))
        file = [
            "--file",
            "deploy/netfault/Dockerfile",
            "--tag",
            "tsunagi-netfault",
            "--build-arg",
            f"BASE_IMAGE={base}",
        ]
        started = time.monotonic()
        done = self._run(["docker", "build", "--network=host", *file, "."])
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
            raise ComposeError(f"the image of netfault could not be built:\n{tail}")
        say(f"up: image tsunagi-netfault ({time.monotonic() - started:.0f} s)")

    def make_secrets(self) -> None:
        """Make the keys, certificates and passwords that are missing, in a container that runs as the services' user.

        Raises:
            ComposeError: they could not be made.
        """
        directory = Path(self.env.get("TSUNAGI_SECRETS", default_of(self.root, "TSUNAGI_SECRETS")))
        directory = directory if directory.is_absolute() else self.root / directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        edges = ",".join(f"edge-{number}" for number in range(1, 5))
        command = ["docker", "run", "--rm", "--network", "none", "--user", "0", "--volume", f"{directory}:/secrets"]
        tool = ["--entrypoint", "python3", "tsunagi-kafka", "-m", "deploy.secure.make"]
        done = self._run([*command, *tool, "--out", "/secrets", "--edges", edges])
        if done.returncode != 0:
            raise ComposeError(f"the secrets could not be made:\n{(done.stderr or done.stdout).strip()}")
        say(f"up: secrets in {directory}")

    def start(self) -> None:
        """Start every service, in the order that health checks ask for.

        Raises:
            ComposeError: compose failed, or a service that others wait for is not healthy.
        """
        done = self._compose_run(["up", "--detach", "--remove-orphans"], stream=True)
        if done.returncode != 0:
            raise ComposeError("\n".join([f"{self.command()[0]} up failed (see above)", *self._unwell()]))

    def wait(self) -> None:
        """Wait until a new ordered result comes out.

        Raises:
            ComposeError: none came in time; the message says which containers are not healthy.
        """
        done = self._compose_run(["run", "--rm", "-T", "tools", "wait", "--timeout", str(RESULTS_S)], stream=True)
        if done.returncode != 0:
            raise ComposeError("\n".join(["no ordered result came", *self._unwell()]))

    def stop(self, *, remove: bool) -> None:
        """Stop everything; with `remove`, also remove containers, networks and volumes."""
        self.check_engine()
        self._check_files()
        self._stop_launched()
        self._stop(["down", "--volumes", "--remove-orphans"] if remove else ["stop"])

    def _check_files(self) -> None:
        if self.folder is not None and not (self.folder / OVERRIDE).exists():
            raise ComposeError(f"{self.folder / OVERRIDE}: no such file; `make up PROJECT={self.folder}` writes it")

    def _stop(self, command: list[str]) -> None:
        profiles = [part for profile in (*PROFILES, "tools") for part in ("--profile", profile)]
        done = subprocess.run([*self.command(), *profiles, *command], cwd=self.directory, env=self.env, check=False)
        if done.returncode != 0:
            raise ComposeError(f"{' '.join(command)} failed (see above)")

    def _stop_launched(self) -> None:
        """Remove the workers that the scaler has started: compose does not know them."""
        self._stop(["stop", "scaler"])  # the scaler comes first, or it would replace them
        listed = ["docker", "ps", "--all", "--quiet", "--filter", f"label=tsunagi.project={self.name}"]
        found = self._run(listed).stdout.split()
        if found:
            self._run(["docker", "stop", "--time", "10", *found])
            self._run(["docker", "rm", "--force", *found])
            say(f"removed {len(found)} workers that the scaler had started")

    def status(self) -> None:
        """Print the state of the containers, then slots and their owners."""
        self._check_files()
        self._compose_run(["ps"], stream=True)
        self._compose_run(["run", "--rm", "-T", "tools", "status"], stream=True)

    def _unwell(self) -> list[str]:
        """Return a line for each container that is not healthy or has ended, with the last lines of its log."""
        listed = self._run(
            ["docker", "ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={self.name}"]
        ).stdout.split()
        lines = []
        for container in self._inspect(listed):
            state = container["State"]
            name = container["Config"]["Labels"].get("com.docker.compose.service", container["Name"])
            health = state.get("Health", {}).get("Status", "")
            ended = state["Status"] == "exited" and state["ExitCode"] == 0
            if (state["Status"] == "running" and health in {"", "healthy"}) or ended:
                continue
            log = self._run(["docker", "logs", "--tail", "3", container["Id"]])
            tail = [f"    {line:.200}" for line in (log.stdout + log.stderr).splitlines()]
            lines += [f"  {name}: {state['Status']} {health} (exit code {state['ExitCode']})".rstrip(), *tail]
        return lines

    def _inspect(self, names: list[str]) -> list[dict[str, Any]]:
        if not names:
            return []
        found: list[dict[str, Any]] = json.loads(self._run(["docker", "inspect", *names]).stdout)
        return found

    def command(self) -> list[str]:
        """Return the command that calls compose on this machine.

        Raises:
            ComposeError: compose is not installed.
        """
        if self._compose is None:
            if self._run(["docker", "compose", "version"]).returncode == 0:
                self._compose = ["docker", "compose"]
            elif shutil.which("docker-compose"):
                self._compose = ["docker-compose"]
            else:
                raise ComposeError("Docker Compose is missing; on Debian: apt-get install docker-compose")
        return self._compose

    def _compose_run(self, arguments: list[str], *, stream: bool = False) -> subprocess.CompletedProcess[str]:
        command = [*self.command(), *arguments]
        if stream:
            return subprocess.run(command, cwd=self.directory, env=self.env, text=True, check=False)
        return self._run(command, self.directory)

    def _run(self, command: list[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=directory or self.root,
            env=self.env,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )


def up(project: Project) -> None:
    """Build the images, start the services, and wait until results flow."""
    started = time.monotonic()
    project.check()
    project.ensure_base()
    project.build()
    project.write_files()
    built = time.monotonic()
    if "secure" in project.profiles:
        project.make_secrets()
    project.start()
    project.wait()
    say(f"up: results flow after {time.monotonic() - started:.0f} s ({built - started:.0f} s of them for the images)")
    host = project.env.get("TSUNAGI_BIND", "127.0.0.1")
    compose = f"{' '.join(project.command())} -p {project.name}"
    which = ""
    if project.folder is not None:
        compose = f"cd '{project.folder}'; {' '.join(project.command())}"  # its `.env` names the compose files
        which = f" PROJECT='{project.folder}'"
    say(f"  console         http://{host}:{project.env.get('TSUNAGI_PORT_CONSOLE', '8470')}")
    say(f"  Prometheus      http://{host}:{project.env.get('TSUNAGI_PORT_PROMETHEUS', '9090')}/alerts")
    for profile, name in (("alerts", "Alertmanager"), ("grafana", "Grafana")):
        if profile in project.profiles:
            variable = f"TSUNAGI_PORT_{name.upper()}"
            say(f"  {name:<16}http://{host}:{project.env.get(variable, _PORTS[variable][0])}")
    port = project.env.get("TSUNAGI_PORT_KAFKA", "9092")
    if port != "0":
        say(f"  Kafka           {host}:{port}")
    say(f"  who owns what   {compose} run --rm tools status")
    say(f"  results         {compose} run --rm tools results --follow")
    if project.folder is None:
        say("  make it suffer  make chaos")
    say(f"  stop it         make stop{which} (keeps the data), make down{which} (removes everything)")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m deploy.compose", description=__doc__)
    parser.add_argument("command", choices=("up", "build", "secrets", "down", "stop", "status"))
    parser.add_argument("--profile", action="append", default=[], help=f"one of {', '.join(PROFILES)}; may be repeated")
    parser.add_argument("--project", metavar="FOLDER", help="run the fleet of a folder that `tsunagi init` has made")
    parser.add_argument("--operators", metavar="FOLDER", help="modules of your own, for workers, edges and Spark")
    given = parser.parse_args(arguments)
    profiles = tuple(name for text in given.profile for name in text.split(",") if name)
    try:
        folder = directory_of("PROJECT", given.project, "tsunagi.toml")
        project = Project(ROOT, profiles, dict(os.environ), folder, directory_of("OPERATORS", given.operators))
        if given.command == "up":
            up(project)
        elif given.command == "build":
            project.check_engine()
            project.ensure_base()
            project.build()
        elif given.command == "secrets":
            project.check_engine()
            project.make_secrets()
        elif given.command == "status":
            project.check_engine()
            project.status()
        else:
            project.stop(remove=given.command == "down")
    except ComposeError as error:
        sys.stderr.write(f"{given.command}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
