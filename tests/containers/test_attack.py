"""The profile `secure`: it runs, and what a thief with an edge's credentials forges changes nothing and is counted."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.project import ROOT, ComposeProject
from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.columns import floats, pack_floats, pack_sensors, sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import ACKS, DEAD_LETTERS, PLAN, RECOVERED, TUPLES, LogError
from tsunagi.runtime.messages import (
    VERSION,
    Ack,
    Assignment,
    DeadLetter,
    EdgeOut,
    Level1Ack,
    LogRecord,
    Plan,
    Recovered,
    TupleBatch,
)
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import KafkaSettings, SecuritySettings, Settings
from tsunagi.system.topics import read_partition, tool_log

WILD = 1e6
FORGED = 20
SLOT = 0


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeProject]:
    secrets = tmp_path_factory.mktemp("secrets")
    extra = {"TSUNAGI_SECRETS": str(secrets)}
    with ComposeProject(name="tsunagi-secure", profiles=("secure",), extra=extra).running() as found:
        yield found


def as_user(project: ComposeProject, user: str) -> Settings:
    secrets = Path(project.env["TSUNAGI_SECRETS"])
    kafka = KafkaSettings(
        servers=project.servers,
        security="sasl_tls",
        username=user,
        password_file=str(secrets / f"password-{user}"),
        ca_file=str(secrets / "ca.pem"),
        topics="check",
    )
    key = secrets / (f"key-{user}" if user.startswith("edge-") else "key-master")
    return Settings(
        kafka=kafka,
        security=SecuritySettings(auth="hmac", key_file=str(key)),
        sensors=ROOT / "data/guangzhou-sensors.csv",
    )


def wild_batch(edge: str, step: int, sensor: list[int]) -> bytes:
    slide_us = 200_000
    batch = TupleBatch(
        edge=edge,
        incarnation=2**62,
        step=step,
        event_time_us=step * slide_us,
        sensor=pack_sensors(sensor),
        value=pack_floats([WILD] * len(sensor)),
    )
    return LogRecord(version=VERSION, batch=batch).SerializeToString()


def refused(project: ComposeProject, topic: str, key: bytes, value: bytes) -> bool:
    """Return whether the broker refuses edge-1 to write a record."""
    source = KafkaLog(as_user(project, "edge-1").kafka, client_id="attack")
    producer = source.producer()
    errors: list[LogError | None] = []
    try:
        producer.send(topic, 0, key, value, lambda error, _: errors.append(error))
        producer.flush(10.0)
    except LogError as error:
        errors.append(error)
    finally:
        producer.close()
        source.close()
    return bool(errors) and errors[0] is not None


def denied(project: ComposeProject) -> float:
    query = f"{project.prometheus}/api/v1/query?query=max(tsunagi_kafka_denied_total)"
    with urllib.request.urlopen(query, timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


def test_what_an_edge_forges_changes_no_result_and_is_counted(secure: ComposeProject) -> None:
    before = json.loads(secure.tool("status", "--json"))
    owners = {slot["slot"]: (slot["owner"], slot["epoch"]) for slot in before["slots"]}
    denied_before = denied(secure)
    settings = as_user(secure, "tools")
    others = [sensor.id for sensor in read_sensors(settings.sensors).of_edge("edge-2")]

    # In `tuples` an edge may write, so the broker takes these; edge-1 even signs them with its own true key.
    thief = as_user(secure, "edge-1")
    signed = authenticated(KafkaLog(thief.kafka, client_id="attack"), thief, edge="edge-1")
    producer = signed.producer()
    step = round(time.time() * 1e6) // 200_000
    out = EdgeOut(epoch=owners[SLOT][1], edge="edge-2", from_step=step)
    for number in range(FORGED):
        producer.send(TUPLES, SLOT, b"edge-2", wild_batch("edge-2", step + number, others))
        producer.send(TUPLES, SLOT, b"edge-1", wild_batch("edge-2", step + number, others))
        producer.send(TUPLES, SLOT, b"!gateway-1", LogRecord(version=VERSION, edge_out=out).SerializeToString())
    assert producer.flush(20.0) == 0
    producer.close()

    # What is not an edge's business the broker refuses.
    plan = Plan(version=VERSION, assignment=Assignment(slot=SLOT, owner="edge-1", serial=2**40))
    ack = Ack(version=VERSION, level1=Level1Ack(slot=SLOT, node="gateway-1", epoch=owners[SLOT][1], offset=2**40))
    assert refused(secure, PLAN, b"assignment/0", plan.SerializeToString())
    assert refused(secure, ACKS, b"0/level1/gateway-1", ack.SerializeToString())

    deadline = time.monotonic() + 120
    forged = 0
    log = tool_log(settings, "attack-reader")
    while time.monotonic() < deadline and (forged < 3 * FORGED or denied(secure) < denied_before + 2):
        time.sleep(2)
        letters = [DeadLetter.FromString(record.value or b"") for record in read_partition(log, DEAD_LETTERS, 0)]
        forged = len({(letter.partition, letter.offset) for letter in letters if letter.reason == "forged"})
    assert forged == 3 * FORGED
    assert denied(secure) >= denied_before + 2

    secure.tool("wait", "--timeout", "60")
    after = json.loads(secure.tool("status", "--json"))
    assert {slot["slot"]: (slot["owner"], slot["epoch"]) for slot in after["slots"]} == owners
    read = exact = 0
    for record in read_partition(log, RECOVERED, SLOT):
        row = Recovered.FromString(record.value or b"")
        if row.step < step + 5 or row.step >= step + FORGED:
            continue
        read += 1
        assert max(floats(row.mean)) < WILD / 2
        quality = dict(zip(sensors(row.sensor).tolist(), row.quality, strict=True))
        exact += sum(quality.get(sensor) == 0 for sensor in others)
    assert read == FORGED - 5
    assert exact > 0, "edge-2 was taken for out"
    secure.tool("replay")


def test_no_secret_is_in_the_environment_or_a_log(secure: ComposeProject) -> None:
    directory = Path(secure.env["TSUNAGI_SECRETS"])
    texts = [
        file.read_text(encoding="ascii").split()[-1]
        for file in directory.iterdir()
        if file.name.startswith(("password-", "key-"))
    ]
    assert len(texts) >= 10
    for container in secure.containers():
        shown = json.dumps(container)
        assert not [text for text in texts if text in shown], container["Name"]
        name = container["Config"]["Labels"]["tsunagi.node"]
        log = secure.logs(name)
        assert not [text for text in texts if text in log], name
