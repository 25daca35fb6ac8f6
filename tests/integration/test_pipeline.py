"""Pipelines in Python on a real broker, with Spark: what the README shows, and an operator that fails on a reading."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tsunagi.runtime.settings import KafkaSettings
from tsunagi.system import processes

README = Path(__file__).parents[2] / "README.md"
PATIENCE_S = 600.0

FAILING = """\
import json
import tsunagi as ts


class NotSeven(ts.Operator):
    def process(self, frame):
        if (frame.mean == 7).any():
            raise ZeroDivisionError("seven")
        return [frame]


pipeline = ts.Pipeline([{"a": n} for n in range(20)], [NotSeven], query={"mode": "tuples"})

if __name__ == "__main__":
    with pipeline.run() as results:
        print(json.dumps([[row.value for row in results], results.counts]))
"""

ASKING = """\
import json
import tsunagi as ts

rows = [{"a": n % 7, "b": n} for n in range(60)]
pipeline = ts.Pipeline(rows, steps={"window": 1, "slide": 1}).query(
    "CREATE QUERY means AS SELECT sensor, AVG(value) AS mean FROM readings [RANGE 1 SECOND] GROUP BY sensor"
)

if __name__ == "__main__":
    print(json.dumps([[row["sensor"], row["mean"]] for row in pipeline.run(memory=True).query("means")]))
"""


@pytest.fixture
def environment(tmp_path: Path, kafka_settings: KafkaSettings) -> dict[str, str]:
    """What a script needs to run on the shared broker; rows come ten times as fast."""
    return os.environ | {
        "TSUNAGI_STATE": str(tmp_path / "run"),
        "TSUNAGI_SPARK__CHECKPOINT": str(tmp_path / "checkpoint"),
        "TSUNAGI_RECOVERY__STORE": str(tmp_path / "models"),
        "TSUNAGI_STEPS__INTERVAL_S": "0.1",
        "TSUNAGI_KAFKA__SERVERS": kafka_settings.servers,
        "TSUNAGI_KAFKA__PREFIX": kafka_settings.prefix,
    }


def run(script: Path, environment: dict[str, str]) -> str:
    """Run a script to its end; nothing that it started is left."""
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    state = Path(environment["TSUNAGI_STATE"])
    assert [process.node for process in processes.list_processes(state) if processes.alive(process)] == []
    return done.stdout


def test_the_example_of_the_readme_gives_on_kafka_what_it_gives_in_memory(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (code,) = re.findall(r"```python\n(import tsunagi.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "plant.py").write_text(code)
    (tmp_path / "on_kafka.py").write_text(code.replace("run(memory=True)", "run()"))
    in_memory, on_kafka = (run(tmp_path / name, environment).splitlines() for name in ("plant.py", "on_kafka.py"))
    # Where it is replayed as if it happened now, only the times differ.
    assert [line.split()[2:] for line in on_kafka] == [line.split()[2:] for line in in_memory]
    assert len(on_kafka) == 110
    assert on_kafka == sorted(on_kafka)


def test_a_reading_that_an_operator_fails_on_is_set_aside_and_counted(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "plant.py").write_text(FAILING)
    values, counts = json.loads(run(tmp_path / "plant.py", environment))
    assert values == [float(number) for number in range(20) if number != 7]
    assert counts == {"dead-letters": 1}
    logged: list[Any] = [
        line for log in (tmp_path / "run" / "logs").glob("*.log") for line in log.read_text().splitlines()
    ]
    assert any("operator plant:NotSeven: step" in line and "ZeroDivisionError: seven" in line for line in logged)


def test_a_query_gives_on_kafka_what_it_gives_in_memory(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "memory.py").write_text(ASKING)
    (tmp_path / "kafka.py").write_text(ASKING.replace("run(memory=True)", "run()"))
    in_memory, on_kafka = (json.loads(run(tmp_path / name, environment)) for name in ("memory.py", "kafka.py"))
    assert len(in_memory) > 100
    assert on_kafka == in_memory
