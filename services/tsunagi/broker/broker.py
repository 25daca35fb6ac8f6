"""One Kafka broker (KRaft, one node) as a process of this machine, for development, the demo and the tests.

One directory holds everything: ``data`` (the log), ``cluster-id``, ``server.properties``, ``broker.log``,
``console.log`` and ``broker.json`` (which process runs it). The broker outlives the process that started it; a later
`Broker` of the same directory finds it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import string
import subprocess
import sys
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tsunagi.broker.checks import (
    CLUSTER_FILE,
    HOST,
    BrokerError,
    cause,
    check_data,
    check_disk,
    check_port,
    free_port,
    usable_java,
)
from tsunagi.broker.configuration import JVM, QUIET_JVM, read_properties, write_properties
from tsunagi.broker.secure import BROKERS, admin_options, format_arguments, read_passwords
from tsunagi.broker.secure import properties as secure_properties
from tsunagi.installation import CACHE
from tsunagi.jars import archive
from tsunagi.runtime.birth import born

READY_S = 180.0
"""Longest wait for the broker's first answer, in seconds. On a busy machine a JVM takes a minute or more to start; a
broker that dies meanwhile is reported at once."""

JARS = CACHE / "jars" / "kafka"
"""Directory into which `tsunagi.jars.fetch` puts the broker's jars."""

ARCHIVE = CACHE / "kafka.jsa"
"""Archive of classes that `tsunagi.broker.archive` makes for a quicker start; it is used if it exists."""

_HERE = Path(__file__).resolve().parent
"""Directory of this module, which also holds the templates of the broker's configuration."""
_TAIL_LINES = 12
"""Lines of the broker's log that an error shows, from its end."""

_STARTED: list[subprocess.Popen[bytes]] = []
"""Broker processes that this process has started. They are kept because a broker may outlive its `Broker` object, and
Python warns of child processes that are dropped while they run."""


@dataclass(frozen=True, slots=True)
class _Running:
    """The content of ``broker.json``: enough to recognise the process."""

    pid: int
    born: str
    port: int
    controller_port: int


class Broker:
    """A broker whose files are in `directory` and that listens on 127.0.0.1:`port`.

    Args:
        directory: made if it is missing; it keeps the data when the broker is restarted.
        port: port for clients; it may differ from that of the last start.
        jars: directory of the jars that `tsunagi.jars.fetch` brought.
        heap_mb: heap of the JVM, in megabytes.
        secure: directory of `deploy.secure.make`. The broker then speaks TLS, asks for SCRAM passwords, and gives
            nobody but `admin` a right before `tsunagi topics --acls` has. Its users are those that have a password in
            this directory when its log is made. None means that whoever reaches the broker may do everything.
        java_options: further options for the broker's JVM; None = it uses the archive of classes, if there is one.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        jars: Path = JARS,
        heap_mb: int = 512,
        secure: Path | None = None,
        java_options: Sequence[str] | None = None,
    ) -> None:
        self.directory = directory.expanduser().resolve()
        self.port = port
        self._secure = None if secure is None else secure.expanduser().resolve()
        self._jars = jars
        self._heap_mb = heap_mb
        self._java_options = java_options
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """The bootstrap servers for its clients."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Id of the broker's process while it runs, whoever started it; else None."""
        process = self._process()
        return None if process is None else process.pid

    def start(self) -> bool:
        """Start the broker in a session of its own, without waiting for it (`wait_ready` does).

        Returns:
            Whether it was started; False if it runs already.

        Raises:
            BrokerError: Java, jars, port, disk or data directory do not allow a start; the message is one line.
        """
        running = self._recorded()
        if running is not None and self.pid is not None:
            if running.port != self.port:
                raise BrokerError(
                    f"the broker of {self.directory} runs already, on port {running.port} (asked for: {self.port})"
                )
            return False
        java = usable_java(self._jars)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BrokerError(f"cannot make the broker's directory {self.directory}: {error.strerror}") from None
        check_disk(self.directory)
        check_data(self.directory)
        check_port(self.port)
        controller_port = free_port(running.controller_port if running else 0, avoid=self.port)
        try:
            self._write_configuration(controller_port)
            if not (self.directory / "data").exists():
                self._format(java)
            self._launch(java, controller_port)
        except OSError as error:
            raise BrokerError(f"cannot write to the broker's directory {self.directory}: {error.strerror}") from None
        return True

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Wait until the broker answers a client.

        Raises:
            BrokerError: it died (the message has the cause, if the log tells it, and the log's last lines), or it did
                not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        access: dict[str, str | int | float | bool] = {} if self._secure is None else {**admin_options(self._secure)}
        options: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.servers,
            "broker.address.family": "v4",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,  # refused connections are expected until the broker listens
        }
        admin = AdminClient(options | access)
        while True:
            if self._process() is None:
                raise BrokerError(self.explain())
            try:
                if admin.list_topics(timeout=1.0).brokers:
                    return
            except KafkaException:
                pass
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"the broker of {self.directory} did not answer on {self.servers} within {timeout_s:g} s\n"
                    f"{self._tail()}"
                )
            time.sleep(0.05)

    def stop(self, timeout_s: float = 20.0) -> None:
        """End the broker in good order by SIGTERM, or by SIGKILL after `timeout_s`; do nothing if it does not run.

        Raises:
            BrokerError: the broker did not end, or nobody can tell which process it is.
        """
        if self._recorded() is None and self._record_path.exists():
            raise BrokerError(
                f"{self._record_path}: damaged, or of another version, so it is not known whether its broker runs; "
                "end the broker by hand and delete the file"
            )
        self._signal(signal.SIGTERM, timeout_s)
        self._signal(signal.SIGKILL, timeout_s)
        if self._process() is not None:
            raise BrokerError(f"the broker of {self.directory} (process {self.pid}) does not end")
        self._record_path.unlink(missing_ok=True)

    def kill(self) -> None:
        """End the broker as a crash would, by SIGKILL; the records that it had acknowledged stay in ``data``."""
        self._signal(signal.SIGKILL, 20.0)

    def explain(self) -> str:
        """Return why the broker does not run: one line with the cause, then the last lines of its log."""
        running = self._recorded()
        why = cause(
            self._since_start(),
            directory=self.directory,
            port=self.port,
            controller_port=running.controller_port if running else 0,
        )
        code = ""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process that is still ending has no exit code yet
                code = f" (exit code {self._child.wait(1.0)})"
        return f"the broker of {self.directory} has died{code}: {why}\n{self._tail()}"

    # ---- the start

    @property
    def _record_path(self) -> Path:
        return self.directory / "broker.json"

    def _write_configuration(self, controller_port: int) -> None:
        template = string.Template((_HERE / "server.properties.template").read_text(encoding="utf-8"))
        text = template.substitute(port=self.port, controller_port=controller_port)
        file = self.directory / "server.properties"
        file.write_text(text, encoding="utf-8")
        if self._secure is not None:
            brokers_port = self.port
            while brokers_port in (self.port, controller_port):
                brokers_port = free_port()
            found = read_properties(file)
            for key in ("listeners", "advertised.listeners"):
                found[key] += f",{BROKERS}://{HOST}:{brokers_port}"
            write_properties(file, found | secure_properties(self._secure))
        shutil.copyfile(_HERE / "log4j2.properties", self.directory / "log4j2.properties")

    def _format(self, java: str) -> None:
        """Make ``data`` under another name and rename it: a format that is cut short must leave nothing like data."""
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        properties = (self.directory / "server.properties").read_text(encoding="utf-8")
        format_file = self.directory / "format.properties"
        format_file.write_text(properties.replace("log.dirs=data", "log.dirs=data.new"), encoding="utf-8")
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        arguments = ("format", "--cluster-id", cluster, "--standalone", "--config", format_file.name)
        users = {} if self._secure is None else read_passwords(self._secure)
        with format_arguments(self.directory, arguments, users) as tool:
            command = [java, *QUIET_JVM, *archive.reading(ARCHIVE), *self._classpath(), *tool]
            done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=120, check=False)
        format_file.unlink()
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()
            raise BrokerError(f"the broker's data directory {self.directory}/data could not be formatted:\n{output}")
        (self.directory / CLUSTER_FILE).write_text(cluster + "\n", encoding="utf-8")
        fresh.rename(self.directory / "data")

    def _launch(self, java: str, controller_port: int) -> None:
        for name in ("broker.log", "console.log"):  # a log must tell only of the start that it belongs to
            path = self.directory / name
            if path.exists():
                path.replace(path.with_suffix(".previous.log"))
        options = archive.reading(ARCHIVE) if self._java_options is None else self._java_options
        command = [java, f"-Xmx{self._heap_mb}m", *JVM, *options, *self._classpath()]
        command += ["kafka.Kafka", "server.properties"]
        with (self.directory / "console.log").open("wb") as console:
            self._child = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"LC_ALL": "C.UTF-8"},
            )
        _STARTED.append(self._child)
        record = {
            "pid": self._child.pid,
            "born": born(self._child.pid),
            "port": self.port,
            "controller_port": controller_port,
        }
        fresh = self._record_path.with_suffix(".new")
        fresh.write_text(json.dumps(record) + "\n", encoding="utf-8")
        fresh.replace(self._record_path)

    def _classpath(self) -> tuple[str, str]:
        return "-cp", f"{self._jars}/*"

    # ---- the process

    def _recorded(self) -> _Running | None:
        try:
            record = json.loads(self._record_path.read_text(encoding="utf-8"))
            return _Running(**{name: record[name] for name in ("pid", "born", "port", "controller_port")})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _process(self) -> psutil.Process | None:
        """Return the broker's process, and never another process that has got its id since."""
        child = self._child
        ended = child is not None and child.poll() is not None  # `poll` also removes the zombie
        running = self._recorded()
        if running is None:
            return None
        ours = child is not None and child.pid == running.pid
        same = not ended if ours else born(running.pid) == running.born != ""
        try:
            return psutil.Process(running.pid) if same else None
        except psutil.NoSuchProcess:
            return None

    def _signal(self, number: signal.Signals, timeout_s: float) -> None:
        process = self._process()
        if process is None:
            return
        try:
            process.send_signal(number)
            if self._child is not None and self._child.pid == process.pid:
                self._child.wait(timeout_s)
            else:
                process.wait(timeout_s)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.TimeoutExpired, subprocess.TimeoutExpired):
            pass

    # ---- its log

    def _since_start(self) -> str:
        texts = []
        for name in ("console.log", "broker.log"):
            try:
                texts.append((self.directory / name).read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
        return "\n".join(texts)

    def _tail(self) -> str:
        for name in ("broker.log", "console.log"):
            path = self.directory / name
            try:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            if lines:
                return "\n".join([f"{path}, last lines:", *(f"  {line:.300}" for line in lines[-_TAIL_LINES:])])
        return "it left no log"


def main(arguments: list[str] | None = None) -> int:
    """``run``: run the broker until a signal or its death. ``start``: leave it running. ``stop``: end it."""
    parser = argparse.ArgumentParser(prog="python -m tsunagi.broker.broker", description=__doc__)
    parser.add_argument("command", choices=("run", "start", "stop"))
    parser.add_argument(
        "--port", type=int, default=9092, help="port of the clients on 127.0.0.1 (default: %(default)s)"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("out/run/kafka"), help="the broker's directory (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    broker = Broker(given.dir, given.port)
    try:
        if given.command == "stop":
            broker.stop()
            return 0
        broker.start()
        broker.wait_ready()
        sys.stdout.write(f"broker ready on {broker.servers}, process {broker.pid}, directory {broker.directory}\n")
        sys.stdout.flush()
        return _hold(broker) if given.command == "run" else 0
    except BrokerError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _hold(broker: Broker) -> int:
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    while not asked.wait(0.5):
        if broker.pid is None:
            raise BrokerError(broker.explain())
    broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
