from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tsunagi.project.containers import OVERRIDE, VARIABLES, container_files, service_names, variables_text
from tsunagi.project.sizing import FleetSize, Machine, plan
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import ConfigError, Settings

ROOT = Path(__file__).parents[3]
MQTT = {"kind": "mqtt", "mqtt": {"host": "broker.local", "topic": "plant/#"}}


def files(edges: tuple[str, ...] = ("hall-1", "2.Ost"), **tables: Any) -> dict[str, str]:
    table = SensorTable(tuple(Sensor(number, f"s{number}", edge) for number, edge in enumerate(edges)))
    settings = Settings(**{"sensors": "sensors.csv", "source": MQTT} | tables)
    return container_files(settings, table, plan(FleetSize.of(table, settings), Machine(2, 8000), settings.slots.count))


def test_names_of_services_are_plain_and_stay_distinct() -> None:
    odd = ["Halle Süd", "halle/sud", "halle-süd", "日本", "中国", "edge-1", "a" * 100, "a" * 99 + "b", "spark"]
    found = service_names(odd, {"edge-1"})
    assert list(found) == odd
    assert len(set(found.values())) == len(odd)
    assert all(re.fullmatch(r"edge(-[a-z0-9]+)*", name) for name in found.values())
    assert found["edge-1"] == "edge-1-2"


def test_an_edge_has_its_real_name_and_the_demo_does_not_run() -> None:
    text = files()[OVERRIDE]
    assert 'command: [edge, run, --edge, "2.Ost"]' in text
    assert 'tsunagi.node: "2.Ost"' in text
    assert text.count("profiles: [demo]") == 4
    assert 'model: {command: ["true"]}' in text


def test_every_service_that_reads_settings_has_the_folder() -> None:
    """Those of docker-compose.yml stand in the file, but for brokers, what watches them, and the demo's."""
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    services = set(
        re.findall(r"(?m)^  ([a-z0-9-]+):", compose[compose.index("\nservices:") : compose.index("\nvolumes:")])
    )
    ours = set(re.findall(r"(?m)^  ([a-z0-9-]+):", files()[OVERRIDE].split("\nservices:")[1]))
    assert services - ours == {"kafka", "kafka-2", "kafka-3", "mosquitto", "prometheus", "alertmanager", "grafana"}


def test_no_edge_gets_the_name_of_another_service() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    services = re.findall(r"(?m)^  ([a-z0-9-]+):", compose[compose.index("\nservices:") : compose.index("\nvolumes:")])
    demo = [name for name in services if name.startswith("edge")]
    assert demo == ["edge-1", "edge-2", "edge-3", "edge-4"]
    assert not set(service_names(services, demo).values()) & set(services)


def test_a_fleet_that_learns_has_the_learner() -> None:
    assert "command: [learner, run]" in files(recovery={"learn": True})[OVERRIDE]
    assert "learner" not in files()[OVERRIDE]


def test_each_sink_is_a_container_that_reaches_what_this_machine_has() -> None:
    sinks = [
        {"name": "history", "kind": "postgres", "postgres": {"password_file": "pg"}},
        {"name": "points", "kind": "influxdb", "influxdb": {"url": "http://localhost:8086"}},
        {"name": "far", "kind": "influxdb", "influxdb": {"url": "http://db.example.org:8086"}},
        {"name": "files", "kind": "lake", "lake": {"directory": "lake"}},
    ]
    found = yaml.safe_load(files(sinks=sinks)[OVERRIDE])
    sink = found["services"]["sink-history"]
    assert sink["command"] == ["sink", "run", "--sink", "history", "--node", "sink-history"]
    assert "lake:/lake" in sink["volumes"]
    assert "lake" in found["volumes"]
    tables = {item["name"]: item for item in json.loads(sink["environment"]["TSUNAGI_SINKS"])}
    assert tables["history"]["postgres"] == {"password_file": "pg", "host": "host.docker.internal"}
    assert tables["points"]["influxdb"]["url"] == "http://host.docker.internal:8086"
    assert tables["far"]["influxdb"]["url"] == "http://db.example.org:8086"
    assert tables["files"]["lake"]["directory"] == "/lake"
    assert Settings(sinks=list(tables.values())).sinks[0].postgres.host == "host.docker.internal"
    assert "sink" not in files()[OVERRIDE]


def test_localhost_is_the_machine_that_containers_run_on() -> None:
    text = files(source=MQTT | {"mqtt": {"host": "localhost"}})[OVERRIDE]
    assert 'TSUNAGI_SOURCE__MQTT__HOST: "${TSUNAGI_MQTT_HOST:-host.docker.internal}"' in text
    assert 'TSUNAGI_SOURCE__MQTT__HOST: "${TSUNAGI_MQTT_HOST:-broker.local}"' in files()[OVERRIDE]


def test_a_broker_of_ones_own_takes_the_place_of_ours() -> None:
    found = files(kafka={"servers": "kafka-a:9093,kafka-b:9093", "replication": 3})
    assert 'TSUNAGI_KAFKA__SERVERS: "kafka-a:9093,kafka-b:9093"' in found[OVERRIDE]
    assert "</dev/tcp/kafka-a/9093" in found[OVERRIDE]
    assert "TSUNAGI_PORT_KAFKA=0" in found[VARIABLES]
    own = files()
    assert "/dev/tcp" not in own[OVERRIDE]
    assert "${TSUNAGI_KAFKA_SERVERS:-kafka:9092}" in own[OVERRIDE]


def test_files_outside_the_folder_are_mounted_where_they_are() -> None:
    kafka = {"servers": "k:9", "options": {"ssl.ca.location": "/etc/ssl/own ca.pem"}}
    text = files(kafka=kafka, source=MQTT | {"mqtt": {"topic": "/plant/{sensor}"}})[OVERRIDE]
    assert 'source: "/etc/ssl/own ca.pem", target: "/etc/ssl/own ca.pem"' in text
    assert 'source: "/plant' not in text, "a topic is no file"


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            {"source": {"kind": "csv", "path": "../history.csv"}},
            r"\[source\.path\]: found '\.\./history\.csv', expected",
        ),
        ({"source": {"kind": "lines"}}, r'\[source\] kind: found "lines"'),
        (
            {"source": {"kind": "kafka", "kafka": {"topic": "t", "servers": "localhost:9092"}}},
            r"\[source\.kafka\] servers: found 'localhost:9092', expected a broker that containers reach",
        ),
        ({"source": {"kind": "kafka", "kafka": {"topic": "t"}}}, r"\[kafka\] servers: found '127\.0\.0\.1:9092'"),
    ],
)
def test_what_cannot_run_in_containers_is_named(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        files(**tables)


def test_an_edge_cannot_have_a_workers_name() -> None:
    with pytest.raises(ConfigError, match="found 'gateway-1', expected a name that no worker has"):
        files(("gateway-1",))


def test_more_slots_bring_more_workers() -> None:
    edges = tuple(f"e{number % 3}" for number in range(3000))
    text = files(edges, steps={"interval_s": 0.002, "window": 1, "slide": 1}, slots={"count": 6})[OVERRIDE]
    assert "command: [gateway, run, --node, gateway-3]" in text
    assert "command: [secondary, run, --node, secondary-3]" in text


def test_variables_name_folder_and_checkout() -> None:
    text = variables_text(files()[VARIABLES], Path("/src"), Path("/home/me/Werk Süd"))
    assert "COMPOSE_PROJECT_NAME=werk-s-d\n" in text
    assert "COMPOSE_FILE=/src/docker-compose.yml:/home/me/Werk Süd/compose.override.yml\n" in text
    assert "TSUNAGI_PROJECT=/home/me/Werk Süd\n" in text
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    assert all(re.search(rf"(?m)^#?{line.partition('=')[0]}=", example) for line in text.splitlines() if "=" in line)
