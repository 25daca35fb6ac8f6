"""A standalone Spark cluster that a test starts, and parts of which it kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark

from tests.spark.driver import wait_until
from tsunagi.broker.checks import free_port
from tsunagi.installation import import_path

HOST = "127.0.0.1"


class Cluster:
    """A master and its workers, as processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"spark://{HOST}:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.master = self._start("master.Master", "--port", str(self.port), "--webui-port", "0")
        wait_until(lambda: f"at {self.url}" in self.log("master.Master"), "the master")

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker of one core."""
        name = f"work-{len(self.processes)}"
        options = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(self.directory / name))
        return self._start("worker.Worker", *options, self.url)

    def log(self, kind: str) -> str:
        """Return what processes of a kind have said."""
        return (self.directory / f"{kind}.log").read_text(encoding="utf-8", errors="replace")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a worker, its executors and their Python workers with SIGKILL, as when its machine goes."""
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in family:
            child.kill()
        process.wait(10)

    def close(self) -> None:
        """End them all."""
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{kind}", "--host", HOST]
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": import_path(None),
            "SPARK_LOCAL_IP": HOST,
        }
        with (self.directory / f"{kind}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=self.directory,
            )
        self.processes.append(process)
        return process
