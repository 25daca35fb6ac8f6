"""An edge runs on small machines: what it does not need, it does not load, and its install does not bring."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = {
    "docker",
    "matplotlib",
    "numpy.random",
    "pandas",
    "psutil",
    "pulp",
    "pyarrow",
    "pygments",
    "pyspark",
    "requests",
    "rich",
    "scipy",
    "sqlglot",
    "tsunagi.local",
    "tsunagi.recovery",
    "tsunagi.slot",
    "tsunagi.worker",
}
"""Packages and modules of which each would add megabytes to every edge."""
RUN = """
import json, sys
from tsunagi import cli
cli._prepare_process()
import tsunagi.edge.process, tsunagi.runtime.deaths
from tsunagi.edge.service import EdgeService
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import CONTEXTS, RECOVERED, TOPICS, TUPLES
from tsunagi.runtime.logging_setup import configure
from tsunagi.runtime.settings import load
own = set(sys.modules)
from tsunagi.runtime.testing import MemoryLog
clock = ManualClock(1_700_000_000_000_000)
log = MemoryLog(clock, dict.fromkeys(TOPICS, 1) | dict.fromkeys((TUPLES, RECOVERED, CONTEXTS), 2))
before = set(sys.modules)
edge = EdgeService(load(), "a", log.client("a"), clock, configure("edge"))
edge.step()
edge.close()
print(json.dumps(sorted(own | (set(sys.modules) - before))))
"""
"""What the command does until the first turn of the edge's loop. The log in memory is the test's and is not counted."""


@pytest.mark.parametrize("kind", ["csv", "kafka", "lines", "mqtt"])
def test_an_edge_loads_nothing_heavy(kind: str, tmp_path: Path) -> None:
    (tmp_path / "sensors.csv").write_text("sensor,edge\ns0,a\n")
    (tmp_path / "readings.csv").write_text("s0\n1\n")
    (tmp_path / "overview.sql").write_text(
        "CREATE QUERY means AS SELECT AVG(value) AS m FROM readings [RANGE 5 SECONDS];"
    )
    (tmp_path / "tsunagi.toml").write_text(
        f'state = "run"\nsensors = "sensors.csv"\n[query]\nfiles = ["overview.sql"]\n[kafka]\nservers = "127.0.0.1:9"\n'
        f'[source]\nkind = "{kind}"\npath = "readings.csv"\n[source.kafka]\ntopic = "t"\n'
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TSUNAGI_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "tsunagi.edge.service" in loaded
    assert loaded & HEAVY == set()
    lock = re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "deploy/edge/requirements.lock").read_text(), re.MULTILINE)
    distributions = importlib.metadata.packages_distributions()
    # paho-mqtt takes pysocks where it is there, as here, where what drives a browser brings it.
    brought = {*lock, "setuptools", "tsunagi-stream", "pysocks"}
    # Of a namespace, such as google, several distributions have modules: one of them at least is the edge's.
    owners = [{name.lower().replace("_", "-") for name in distributions.get(module, [])} for module in loaded]
    assert [names for names in owners if names and not names & brought] == [], "the base install does not bring these"
