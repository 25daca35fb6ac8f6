"""The broker as the only process tree of a container: configures and starts it, and serves its health and metrics.

The environment configures it:

=====================  ==============================================================================================
``KAFKA_NODE``         this broker's name in the network, one of ``KAFKA_NODES``; default ``kafka``
``KAFKA_NODES``        all brokers, in the order of their node ids, comma-separated; default ``kafka``
``KAFKA_EXTERNAL``     host:port under which clients outside the network reach this broker; default ``127.0.0.1:9092``
``KAFKA_HEAP_MB``      the JVM's heap; default 512
``KAFKA_SECRETS``      directory with ca.pem, kafka.pem and password-admin (docs/howto/security.md): TLS, SCRAM and
                       access rules; empty = none of them, which is the default
=====================  ==============================================================================================

``/var/lib/kafka`` holds the data over restarts. Clients in the network use port 9092, those outside 19092 (published as
the port of ``KAFKA_EXTERNAL``), the brokers among themselves 9093; 9100 serves /metrics, /healthz and /readyz.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tsunagi.broker.checks import BrokerError, cause, check_disk, usable_java
from tsunagi.broker.configuration import JVM, QUIET_JVM, read_properties, write_properties
from tsunagi.broker.secure import BROKERS, format_arguments, read_passwords
from tsunagi.broker.secure import properties as secure_properties
from tsunagi.installation import CACHE
from tsunagi.runtime import metrics
from tsunagi.runtime.health import HealthServer

DIRECTORY = Path("/var/lib/kafka")
"""Directory of the broker's data in the container; a volume keeps it over restarts."""
JARS = CACHE / "jars" / "kafka"
"""Directory of the broker's jars in the image."""
CLIENT_PORT, CONTROLLER_PORT, BROKER_PORT, EXTERNAL_PORT, HEALTH_PORT = 9092, 9093, 9094, 19092, 9100
"""Ports for: clients in the network; the controllers; the brokers among themselves; clients outside; health and
metrics."""
CLUSTER = "dHN1bmFnaS1jbHVzdGVyMQ"
"""Id of every cluster that is made from this image. Brokers on fresh volumes must agree on one id without asking each
other."""

_LOOK_S = 5.0
"""Time between two measurements of disk and log for the metrics, in seconds."""
_STOP_S = 20.0
"""The broker has this many seconds to end in good order. Docker kills the container only later (stop_grace_period)."""


@dataclass(frozen=True, slots=True)
class Container:
    """What the environment says about this broker.

    Attributes:
        node: name of this broker.
        nodes: names of all brokers; a broker's node id is its place here, from 1.
        external: host:port under which clients outside the network reach this broker.
        heap_mb: heap of the JVM, in megabytes.
        secrets: directory of the secrets of a secure broker; None for an open one.
    """

    node: str
    nodes: tuple[str, ...]
    external: str
    heap_mb: int
    secrets: Path | None

    @property
    def node_id(self) -> int:
        """Node id of this broker, from 1."""
        return self.nodes.index(self.node) + 1

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Container:
        """Read the configuration from the environment.

        Raises:
            BrokerError: a variable is wrong; the message names it, what was found and what was expected.
        """
        nodes = tuple(name.strip() for name in environment.get("KAFKA_NODES", "kafka").split(",") if name.strip())
        node = environment.get("KAFKA_NODE", "kafka")
        if node not in nodes:
            raise BrokerError(
                f"KAFKA_NODE: found {node!r}, expected one of KAFKA_NODES = {','.join(nodes)}; the profile ha needs "
                "TSUNAGI_KAFKA_NODES=kafka,kafka-2,kafka-3 in .env"
            )
        if len(nodes) not in {1, 3, 5}:
            raise BrokerError(f"KAFKA_NODES: found {len(nodes)} brokers, expected 1, 3 or 5 (they vote)")
        external = environment.get("KAFKA_EXTERNAL", "127.0.0.1:9092")
        host, _, port = external.rpartition(":")
        if not host or not port.isdigit():
            raise BrokerError(f"KAFKA_EXTERNAL: found {external!r}, expected host:port")
        heap = environment.get("KAFKA_HEAP_MB", "512")
        if not heap.isdigit() or int(heap) < 128:
            raise BrokerError(f"KAFKA_HEAP_MB: found {heap!r}, expected a number of megabytes, 128 or more")
        secrets = environment.get("KAFKA_SECRETS", "")
        return cls(node, nodes, external, int(heap), Path(secrets) if secrets else None)

    def properties(self) -> dict[str, str]:
        """Return the broker's configuration: `server.properties.template` with the addresses of this container.

        Raises:
            BrokerError: a file of the secrets is missing.
        """
        found = read_properties()
        copies = str(min(3, len(self.nodes)))
        in_sync = "2" if len(self.nodes) > 1 else "1"
        found |= {
            "node.id": str(self.node_id),
            "listeners": f"CLIENTS://0.0.0.0:{CLIENT_PORT},EXTERNAL://0.0.0.0:{EXTERNAL_PORT},"
            f"CONTROLLER://0.0.0.0:{CONTROLLER_PORT}",
            "advertised.listeners": f"CLIENTS://{self.node}:{CLIENT_PORT},EXTERNAL://{self.external},"
            f"CONTROLLER://{self.node}:{CONTROLLER_PORT}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,EXTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": ",".join(
                f"{number}@{name}:{CONTROLLER_PORT}" for number, name in enumerate(self.nodes, 1)
            ),
            "log.dirs": "data",
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
        }
        found.pop("controller.quorum.bootstrap.servers", None)  # the voters are listed in the configuration instead
        if self.secrets is not None:
            found["listeners"] += f",{BROKERS}://0.0.0.0:{BROKER_PORT}"
            found["advertised.listeners"] += f",{BROKERS}://{self.node}:{BROKER_PORT}"
            found |= secure_properties(self.secrets, ("CLIENTS", "EXTERNAL"))
        return found


class BrokerProcess:
    """The Java process of the broker, and what health checks and metrics say about it."""

    def __init__(self, container: Container, directory: Path = DIRECTORY) -> None:
        self._container = container
        self._directory = directory
        self._java = usable_java(JARS)
        self._child: subprocess.Popen[bytes] | None = None
        self._denied = 0
        self._denied_at = 0
        self._stopping = False

    def start(self) -> None:
        """Format the data directory if it is new, and start the broker.

        Raises:
            BrokerError: the disk, the data or the configuration do not allow a start.
        """
        directory = self._directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            check_disk(directory)
            self._check_voters()
            write_properties(directory / "server.properties", self._container.properties())
            shutil.copyfile(Path(__file__).with_name("log4j2.properties"), directory / "log4j2.properties")
            if not (directory / "data" / "meta.properties").exists():
                self._format()
            (directory / "broker.log").unlink(missing_ok=True)  # a log must tell only of the start that it belongs to
        except OSError as error:
            raise BrokerError(f"cannot write to {directory}: {error.strerror}; is the volume of user 10001?") from None
        # The whole heap is taken at the start: it would be within half an hour anyway, and would look like a leak.
        heap = [f"-Xms{self._container.heap_mb}m", f"-Xmx{self._container.heap_mb}m", "-XX:+AlwaysPreTouch"]
        command = [self._java, *heap, *JVM, "-cp", f"{JARS}/*", "kafka.Kafka"]
        self._child = subprocess.Popen([*command, "server.properties"], cwd=directory, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        """End the broker in good order, or by SIGKILL after `_STOP_S`."""
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGINT: make `hold` end the broker."""
        self._stopping = True

    def ready(self) -> tuple[bool, str]:
        """Return whether clients can connect, and why not."""
        if self._child is None or self._child.poll() is not None:
            return False, "the broker has ended"
        try:
            socket.create_connection(("127.0.0.1", CLIENT_PORT), timeout=1.0).close()
        except OSError as error:
            return False, f"the broker does not listen yet: {error}"
        return True, "ready"

    def hold(self) -> int:
        """Measure for the metrics until the broker ends or is asked to stop; return the exit code."""
        assert self._child is not None  # noqa: S101 - `start` comes first; for the type checker
        looked_s = 0.0
        while self._child.poll() is None and not self._stopping:
            if time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                self._measure()
            time.sleep(0.2)
        if self._stopping:
            self.stop()
            return 0
        log = self._directory / "broker.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        why = cause(text, directory=self._directory, port=CLIENT_PORT, controller_port=CONTROLLER_PORT)
        tail = "\n".join(text.splitlines()[-12:])
        sys.stderr.write(f"the broker has died (exit code {self._child.returncode}): {why}\n{tail}\n")
        return 1

    def _measure(self) -> None:
        metrics.KAFKA_UP.set(self.ready()[0])
        usage = shutil.disk_usage(self._directory)
        metrics.KAFKA_DISK_FREE_BYTES.set(usage.free)
        metrics.KAFKA_DISK_TOTAL_BYTES.set(usage.total)
        sizes: dict[str, int] = {}
        for partition in (self._directory / "data").glob("*-*"):
            topic = partition.name.rpartition("-")[0]
            sizes[topic] = sizes.get(topic, 0) + _size_bytes(partition)
        for topic, size in sizes.items():
            metrics.KAFKA_LOG_BYTES.labels(topic).set(size)
        self._count_denied()

    def _count_denied(self) -> None:
        """Count from the authorizer's log what it has refused since the last look."""
        path = self._directory / "authorizer.log"
        try:
            size = path.stat().st_size
            if size < self._denied_at:  # the log was rolled over
                self._denied_at = 0
            with path.open("rb") as log:
                log.seek(self._denied_at)
                fresh = log.read()
        except OSError:
            return
        whole, _, _ = fresh.rpartition(b"\n")
        self._denied_at += len(whole) + 1 if whole else 0
        metrics.KAFKA_DENIED.inc(
            sum(b"is Denied" in line or b"Denied operation" in line for line in whole.split(b"\n"))
        )

    def _format(self) -> None:
        secrets = self._container.secrets
        users = {} if secrets is None else read_passwords(secrets)
        arguments = ("format", "--cluster-id", CLUSTER, "--ignore-formatted", "--config", "server.properties")
        with format_arguments(self._directory, arguments, users) as tool:
            command = [self._java, *QUIET_JVM, "-cp", f"{JARS}/*", *tool]
            done = subprocess.run(
                command, cwd=self._directory, capture_output=True, text=True, timeout=120, check=False
            )
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()
            raise BrokerError(f"{self._directory}/data could not be formatted:\n{output}")

    def _check_voters(self) -> None:
        """Raise a `BrokerError` for data of a cluster of another size: its controllers could not agree."""
        path = self._directory / "nodes"
        wanted = ",".join(self._container.nodes)
        found = path.read_text(encoding="utf-8").strip() if path.exists() else wanted
        if found != wanted:
            raise BrokerError(
                f"{self._directory} has the log of the brokers {found}, but KAFKA_NODES says {wanted}; put the former "
                "value back, or remove the volumes (`make down`) to begin with an empty log"
            )
        path.write_text(wanted + "\n", encoding="utf-8")


def _size_bytes(directory: Path) -> int:
    total = 0
    for file in directory.glob("*"):
        try:
            total += file.stat().st_blocks * 512  # indexes are sparse files
        except OSError:  # deleted meanwhile
            continue
    return total


def main() -> int:
    """Run the broker until a signal comes or it dies; return the exit code."""
    try:
        server = BrokerProcess(Container.read(os.environ))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.ask_to_stop)
        health = HealthServer("0.0.0.0", HEALTH_PORT, server.ready)  # noqa: S104 - the container's own network
        try:
            server.start()
            return server.hold()
        finally:
            server.stop()
            health.close()
    except BrokerError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
