"""A real PostgreSQL that a test starts, kills and stops."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tsunagi.broker.checks import free_port

PATIENCE_S = 120.0
USER, DATABASE = "plant", "history"


def binaries() -> Path:
    """Return the directory of PostgreSQL's programs. Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    if there := shutil.which("initdb"):
        return Path(there).resolve().parent
    pytest.fail("initdb is not there: these tests need PostgreSQL (Debian: apt-get install postgresql)", pytrace=False)


class Postgres:
    """A server with its data in a directory. Root starts it as the user `postgres`, since it refuses to be root."""

    def __init__(self, directory: Path, *, owner: str = "postgres") -> None:
        self.directory = directory
        self.port = free_port()
        self._owner: dict[str, Any] = {"user": owner, "group": owner, "extra_groups": []} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        secret = directory.parent / f"{directory.name}-first-password"
        secret.write_text("first\n", encoding="utf-8")
        if self._owner:
            entry = pwd.getpwnam(owner)
            os.chown(directory, entry.pw_uid, entry.pw_gid)
            os.chown(secret, entry.pw_uid, entry.pw_gid)
            for parent in directory.parents:  # pytest's directories are closed to others
                if parent.stat().st_mode & 0o011 != 0o011:
                    parent.chmod(parent.stat().st_mode | 0o011)
        subprocess.run(
            [binaries() / "initdb", "-D", directory, "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", "-N"],
            check=True,
            capture_output=True,
            **self._owner,
        )

    def start(self) -> None:
        """Start it, and wait until it takes connections and has the database."""
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"port={self.port}", "-c", "unix_socket_directories="]
        options += ["-c", "max_connections=20", "-c", "shared_buffers=64MB"]
        with (self.directory.parent / f"{self.directory.name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [binaries() / "postgres", "-D", self.directory, *options], stdout=output, stderr=output, **self._owner
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.session("postgres") as session:
                    if session.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone() is None:
                        session.execute(f"CREATE DATABASE {DATABASE}")
            except psycopg.OperationalError:
                assert self._process.poll() is None, "PostgreSQL has ended"
                assert time.monotonic() < deadline, "PostgreSQL does not answer"
                time.sleep(0.1)
            else:
                return

    def session(self, database: str = DATABASE, password: str = "first") -> psycopg.Connection:
        """Return a connection, whose statements count at once."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, dbname=database, user=USER, password=password, autocommit=True
        )

    def kill(self) -> None:
        """End it as a power cut would: all of its processes."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(timeout=PATIENCE_S)

    def stop(self) -> None:
        """End it in good order, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return [sinks.postgres] for it; the password comes by the environment unless a file is named."""
        return {"host": "127.0.0.1", "port": self.port, "database": DATABASE, "user": USER, "tls": "disable"} | more
