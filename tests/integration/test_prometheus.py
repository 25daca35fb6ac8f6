"""A real Prometheus beside real services on a real broker: it finds them, loses them, and says so.

Rules and configuration are those of deploy/prometheus, but every interval is a second and no `for` is minutes. Waits
are for conditions, with a limit that only a broken system reaches; each test leaves the system as it found it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.local.topics import make_topics
from tsunagi.runtime import metrics
from tsunagi.runtime.health import HealthServer
from tsunagi.runtime.settings import Settings

SOURCES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
PATIENCE_S = 300.0
ROWS = 20_000
SENSORS = 6
FAILURES = '{__name__=~"prometheus_sd_(http|refresh)_failures_total"}'
SCRAPES = 'count_over_time(up{job="tsunagi"}[1h])'


def binary(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(
            f"{name} is not on the PATH: these tests need it (Debian: apt-get install prometheus)", pytrace=False
        )
    return found


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        [binary("promtool"), *arguments],
        cwd=SOURCES / "rules",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_configuration_and_rules_are_valid() -> None:
    assert "2 rule files found" in promtool("check", "config", "../prometheus.yml")


def test_the_rules_say_what_their_tests_expect() -> None:
    files = sorted(path.name for path in (SOURCES / "rules").glob("*_test.yml"))
    assert files == ["alerts_test.yml", "recording_test.yml"]
    assert promtool("test", "rules", *files).count("SUCCESS") == len(files)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SCALER", "scaler"),
        ("SCALER", "http://scaler:9100"),
        ("KAFKA_NODES", "kafka kafka-2"),
        ("KAFKA_NODES", ""),
        ("ALERTMANAGER", "alertmanager"),
        ("ALERTMANAGER", "http://alertmanager:9093"),
        ("PROMETHEUS_RETENTION", "15"),
        ("PROMETHEUS_RETENTION_SIZE", "much"),
    ],
)
def test_an_address_or_limit_that_is_none_is_named(variable: str, value: str) -> None:
    started = subprocess.run(
        [SOURCES / "start"], env={**os.environ, variable: value or ","}, capture_output=True, text=True, check=False
    )
    assert started.returncode == 2
    assert started.stderr.startswith(f"{variable}: found '{value or ','}', expected ")


class World:
    """Scaler, workers and an edge as processes, the broker's exporter in this one, and Prometheus."""

    def __init__(self, path: Path, servers: str) -> None:
        self.path = path
        self.scaler_port = free_port()
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        names = [f"s{number}" for number in range(SENSORS)]
        (path / "sensors.csv").write_text("sensor,edge\n" + "".join(f"{name},a\n" for name in names))
        rows = [",".join(names), *(",".join([str(number % 50)] * SENSORS) for number in range(ROWS))]
        (path / "data.csv").write_text("\n".join(rows) + "\n")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TSUNAGI_")},
            "TSUNAGI_STATE": str(path / "run"),
            "TSUNAGI_SENSORS": str(path / "sensors.csv"),
            "TSUNAGI_KAFKA__SERVERS": servers,
            "TSUNAGI_KAFKA__PREFIX": "prometheus.",
            "TSUNAGI_SLOTS__COUNT": "1",
            "TSUNAGI_SOURCE__PATH": str(path / "data.csv"),
            "TSUNAGI_STEPS__INTERVAL_S": "0.1",
            "TSUNAGI_SCALER__LAUNCHER": "none",
            "TSUNAGI_SCALER__WORKERS": "2",
        }
        kafka = {"servers": servers, "prefix": "prometheus."}
        make_topics(Settings.model_validate({"kafka": kafka, "slots": {"count": 1}}))
        # The broker's metrics alone: other tests have left theirs in this process.
        registry = CollectorRegistry()
        for metric in metrics.SECTIONS["Kafka"]:
            registry.register(metric)
        self.exporter = HealthServer("127.0.0.1", 0, lambda: (True, ""), registry=registry)

    # ---- services

    def start(self, name: str, *command: str, **more: str) -> None:
        with (self.path / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tsunagi.cli", *command],
                env={**self.environment, **more},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start_scaler(self) -> None:
        self.start("scaler", "scaler", "run", TSUNAGI_METRICS__PORT=str(self.scaler_port))

    def start_worker(self, name: str, **more: str) -> None:
        self.start(name, "gateway", "run", "--node", name, **more)

    def start_edge(self) -> None:
        self.start("a", "edge", "run", "--edge", "a")

    def end(self, name: str, number: signal.Signals) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(timeout=PATIENCE_S)

    # ---- Prometheus

    def start_prometheus(self) -> None:
        config = self.path / "prometheus"
        shutil.copytree(SOURCES, config)
        main = config / "prometheus.yml"
        main.write_text(re.sub(r"(interval|timeout): \d+s", r"\1: 1s", main.read_text()))
        alerts = config / "rules" / "alerts.yml"
        alerts.write_text(re.sub(r"for: (\d+m|30s)", "for: 5s", alerts.read_text()))
        binary("prometheus")
        environment = {
            **self.environment,
            "SCALER": f"127.0.0.1:{self.scaler_port}",
            "KAFKA_NODES": f"127.0.0.1:{self.exporter.port}",
            "PROMETHEUS_CONFIG": str(config),
            "PROMETHEUS_DATA": str(self.path / "data"),
            "PROMETHEUS_LISTEN": f"127.0.0.1:{self.port}",
        }
        with (self.path / "prometheus.log").open("ab") as log:
            self.processes["prometheus"] = subprocess.Popen(
                [config / "start"], env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def ask(self, path: str, **arguments: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None  # it is starting
            raise  # the question is wrong
        except OSError:
            return None

    def found(self) -> dict[str, str]:
        """Node -> health of its target."""
        targets = self.ask("targets", state="active")
        return {target["labels"]["node"]: target["health"] for target in targets["activeTargets"]} if targets else {}

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        answer = self.ask("query", query=expression)
        return [(item["metric"], float(item["value"][1])) for item in answer["result"]] if answer else []

    def firing(self) -> dict[str, dict[str, Any]]:
        """Name of each alert that fires -> the alert (of several one)."""
        answer = self.ask("alerts")
        alerts = answer["alerts"] if answer else []
        return {alert["labels"]["alertname"]: alert for alert in alerts if alert["state"] == "firing"}

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited {PATIENCE_S:.0f} s for {what}\n{self.state()}")
            time.sleep(0.2)

    def state(self) -> str:
        lines = [f"targets: {self.found()}", f"firing: {sorted(self.firing())}"]
        for log in sorted(self.path.glob("*.log")):
            lines += [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join(lines)

    def wait_quiet(self) -> None:
        """Wait until the slot flows under two workers and no alert fires."""
        self.wait(lambda: self.query("tsunagi_slot_protected == 1"), "a ready secondary")
        self.wait(lambda: self.query("tsunagi_slot_silence_seconds < 5"), "outputs")
        self.wait(lambda: not self.firing().keys() - {"TsunagiSparkBehind"}, "quiet")  # no Spark runs here

    def close(self) -> None:
        for name in list(self.processes):
            self.end(name, signal.SIGKILL)
        self.exporter.close()


@pytest.fixture(scope="module")
def world(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("prometheus"), broker.servers)
    metrics.KAFKA_UP.set(1)
    metrics.KAFKA_DISK_TOTAL_BYTES.set(100e9)
    metrics.KAFKA_DISK_FREE_BYTES.set(60e9)
    try:
        made.start_prometheus()
        made.start_scaler()
        made.start_worker("gw-1")
        made.start_worker("gw-2")
        made.start_edge()
        made.wait_quiet()
        yield made
    finally:
        made.close()
        for gauge in (metrics.KAFKA_UP, metrics.KAFKA_DISK_TOTAL_BYTES, metrics.KAFKA_DISK_FREE_BYTES):
            gauge.set(0)


def test_services_are_found_by_their_heartbeats_and_scraped(world: World) -> None:
    expected = {"gw-1", "gw-2", "a", "scaler", "127.0.0.1", "prometheus"}
    world.wait(lambda: world.found() == dict.fromkeys(expected, "up"), f"the targets {expected}")
    roles = {metric["node"]: metric["role"] for metric, _ in world.query('up{job="tsunagi"}')}
    assert roles == {"gw-1": "worker", "gw-2": "worker", "a": "edge"}
    heard = {metric["node"]: metric["role"] for metric, _ in world.query("tsunagi_heartbeat_age_seconds < 5")}
    assert heard == {**roles, "scaler": "scaler"}, "the scaler tells of nodes by their own names"
    world.wait(lambda: world.query("tsunagi:outputs:rate1m > 0"), "a recorded rate")
    world.wait(lambda: world.query('tsunagi_values_total{quality="unmodelled"} > 0'), "values")
    world.wait(lambda: world.query("tsunagi_slot_level1_position > 0"), "a resume point")
    world.wait(lambda: world.query("tsunagi_slot_resume_age_seconds < 60"), "its age")
    assert [value for _, value in world.query('tsunagi_step_seconds{job="scaler"}')] == [0.2]


def test_a_dead_worker_is_named_its_slot_unprotected_until_another_one_comes(world: World) -> None:
    role = 'tsunagi_slot_role{tsunagi_slot_role="standby"} == 1'
    world.wait(lambda: len(world.query(role)) == 1, "one standby")
    standby = world.query(role)[0][0]["node"]
    world.end(standby, signal.SIGKILL)
    world.wait(
        lambda: {"TsunagiNodeDown", "TsunagiSlotUnprotected", "TsunagiWorkersMissing"} <= world.firing().keys(),
        "alerts",
    )
    alerts = world.firing()
    assert alerts["TsunagiNodeDown"]["labels"]["node"] == standby
    assert alerts["TsunagiNodeDown"]["annotations"]["summary"] == f"Node {standby} (worker) is down"
    assert alerts["TsunagiSlotUnprotected"]["labels"]["slot"] == "0"
    assert world.found()[standby] == "down"
    world.start_worker("gw-3")
    world.wait(lambda: world.found().get("gw-3") == "up", "the new worker")
    world.wait(lambda: "TsunagiSlotUnprotected" not in world.firing(), "protection")
    assert "TsunagiNodeDown" in world.firing()  # it is still dead
    world.start_worker(standby)
    world.wait(lambda: world.found().get(standby) == "up", "its return")
    world.end("gw-3", signal.SIGTERM)
    world.wait(lambda: "gw-3" not in world.found(), "its end")
    world.wait_quiet()


def test_a_node_that_leaves_in_good_order_is_no_alert(world: World) -> None:
    world.end("a", signal.SIGTERM)
    world.wait(lambda: "a" not in world.found(), "the edge to go")
    world.wait(lambda: "TsunagiEdgeOut" in world.firing(), "its slot to say so")
    assert not {"TsunagiNodeDown", "TsunagiNodeSilent"} & world.firing().keys()
    assert world.query('tsunagi_heartbeat_age_seconds{node="a"}') == []
    world.start_edge()
    world.wait(lambda: world.found().get("a") == "up", "its return")
    world.wait_quiet()


def test_a_node_whose_metrics_cannot_be_read_is_no_dead_node(world: World) -> None:
    world.end("gw-2", signal.SIGTERM)
    world.start_worker("gw-2", TSUNAGI_METRICS__ADVERTISE="127.0.0.2")  # it listens at 127.0.0.1
    world.wait(lambda: "TsunagiNodeUnreachable" in world.firing(), "the alert")
    assert world.firing()["TsunagiNodeUnreachable"]["labels"]["node"] == "gw-2"
    assert "TsunagiNodeDown" not in world.firing()
    world.end("gw-2", signal.SIGTERM)
    world.start_worker("gw-2")
    world.wait(lambda: world.found().get("gw-2") == "up", "its return")
    world.wait_quiet()


def total(world: World, expression: str) -> float:
    return sum(value for _, value in world.query(expression))


def test_without_the_scaler_the_last_list_stays_and_the_alert_says_so(world: World) -> None:
    before = world.found()
    world.end("scaler", signal.SIGKILL)
    world.wait(lambda: "TsunagiScalerDown" in world.firing(), "the alert")
    failed, scraped = total(world, FAILURES), total(world, SCRAPES)
    # Several turns of discovery fail, and every node is still asked.
    world.wait(lambda: total(world, FAILURES) > failed + 2, "failures of discovery")
    world.wait(lambda: total(world, SCRAPES) > scraped + 6, "scrapes")
    assert world.found() == {**before, "scaler": "down"}
    world.start_scaler()
    world.wait_quiet()


def test_a_disk_that_fills_is_an_alert(world: World) -> None:
    metrics.KAFKA_DISK_FREE_BYTES.set(12e9)
    world.wait(lambda: "TsunagiBrokerDiskLow" in world.firing(), "the alert")
    assert world.firing()["TsunagiBrokerDiskLow"]["annotations"]["summary"] == "The disk of 127.0.0.1 has 12% left"
    metrics.KAFKA_DISK_FREE_BYTES.set(60e9)
    world.wait_quiet()
