"""A real InfluxDB that a test starts, kills and stops."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.sinks import Ledger
from tsunagi.broker.checks import free_port

PATIENCE_S = 120.0
DATABASE = "plant"


USER = "plant"


class Influx:
    """InfluxDB 1 as a process of the test's own, with its data in a directory.

    Args:
        password: of its only user, `USER`; "" = it asks nobody for a name.
    """

    def __init__(self, directory: Path, password: str = "") -> None:
        found = shutil.which("influxd")
        if found is None:
            pytest.fail(
                "influxd is not there: these tests need InfluxDB 1 (Debian: apt-get install influxdb)", pytrace=False
            )
        self._program: str = found
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._client = httpx2.Client(base_url=self.url, timeout=PATIENCE_S)
        self._password = password
        self._environment = os.environ | {
            "INFLUXDB_REPORTING_DISABLED": "true",
            "INFLUXDB_BIND_ADDRESS": f"127.0.0.1:{free_port()}",
            "INFLUXDB_HTTP_BIND_ADDRESS": f"127.0.0.1:{self.port}",
            "INFLUXDB_META_DIR": str(directory / "meta"),
            "INFLUXDB_DATA_DIR": str(directory / "data"),
            "INFLUXDB_DATA_WAL_DIR": str(directory / "wal"),
            "INFLUXDB_MONITOR_STORE_ENABLED": "false",
            "INFLUXDB_HTTP_AUTH_ENABLED": "true" if password else "false",
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, "-config", os.devnull], stdout=output, stderr=output, env=self._environment
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._client.get("/ping").is_success:
                    break
            except httpx2.TransportError:
                pass
            assert self._process.poll() is None, (self._directory / "log").read_text()
            assert time.monotonic() < deadline, "InfluxDB does not answer"
            time.sleep(0.05)
        if self._password and self._client.auth is None:
            self.ask(f"CREATE USER {USER} WITH PASSWORD '{self._password}' WITH ALL PRIVILEGES")
            self._client.auth = (USER, self._password)

    def change(self, password: str) -> None:
        """Give its user another password."""
        self.ask(f"SET PASSWORD FOR {USER} = '{password}'")
        self._client.auth = (USER, password)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._client.close()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the points that a query finds, by columns; times are microseconds since 1970."""
        answer = self._client.post("/query", params={"db": DATABASE, "epoch": "u", "q": query}).json()
        return [
            dict(zip(series["columns"], values, strict=True))
            for result in answer["results"]
            for series in result.get("series", ())
            for values in series["values"]
        ]

    def readings(self) -> dict[tuple[datetime, str], Ledger]:
        """Return the points of `readings` by (time, sensor); one that has a truth is `corrected`."""
        points = self.ask("SELECT * FROM readings")
        found = {}
        for point in points:
            value, bound, quality = point["value"], point["bound"], point["quality"]
            if (truth := point.get("truth")) is not None:
                value, bound, quality = truth, 0.0, "corrected"
            at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=point["time"])
            found[at, point["sensor"]] = Ledger(value, bound, quality, point["q1"], point["step"])
        assert len(found) == len(points)
        return found
