"""A secure broker, and an attacker with a real edge's credentials: results unchanged, attempts refused and counted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import pytest
import structlog
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from prometheus_client import REGISTRY

import tsunagi.runtime.kafka
from deploy.secure.make import make
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.local.topics import make_rights, make_topics
from tsunagi.replay.slots import replay_slot
from tsunagi.runtime.acls import needed
from tsunagi.runtime.auth import authenticated, sign
from tsunagi.runtime.clock import SystemClock
from tsunagi.runtime.columns import floats, pack_floats, pack_sensors, sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.keys import derive, read_keys
from tsunagi.runtime.log import (
    ACKS,
    CONTEXTS,
    DEAD_LETTERS,
    HEARTBEATS,
    PLAN,
    RECOVERED,
    RESULTS,
    TOPICS,
    TUPLES,
    LogError,
    Position,
    Producer,
    Reader,
)
from tsunagi.runtime.messages import (
    VERSION,
    Ack,
    Assignment,
    DeadLetter,
    EdgeOut,
    Heartbeat,
    Level1Ack,
    LogRecord,
    Ownership,
    Plan,
    Punctuation,
    Recovered,
    TupleBatch,
)
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import (
    ConfigError,
    KafkaSettings,
    ScalerSettings,
    SecuritySettings,
    Settings,
    SlotsSettings,
    StepsSettings,
)
from tsunagi.scaler.scaler import Scaler as ScalerService
from tsunagi.system.topics import read_partition, tool_log
from tsunagi.worker.host import ReplicaHost

EDGES = ("edge-1", "edge-2")
SENSORS = {"edge-1": [0, 1], "edge-2": [2, 3]}
STEPS = StepsSettings(interval_s=0.1, window=10, slide=2, grace_s=1.0, max_skew_s=0.2)
WILD = 1e6
PATIENCE_S = 60.0
_S = TypeVar("_S")
_logger = structlog.stdlib.get_logger()


def value(sensor: int, step: int) -> float:
    return sensor + (step % 100) / 100


@dataclass
class Secure:
    """A secure broker with its secrets; `as_user` gives the settings of one user."""

    broker: Broker
    secrets: Path
    table: Path

    def as_user(self, user: str, **changes: object) -> Settings:
        edge = user in EDGES
        kafka = KafkaSettings(
            servers=self.broker.servers,
            security="sasl_tls",
            username=user,
            password_file=str(self.secrets / f"password-{user}"),
            ca_file=str(self.secrets / "ca.pem"),
            topics="create" if user == "admin" else "check",
        ).model_copy(update=changes)
        security = SecuritySettings(auth="hmac", key_file=str(self.secrets / (f"key-{user}" if edge else "key-master")))
        return Settings(
            kafka=kafka,
            security=security,
            sensors=self.table,
            steps=STEPS,
            slots=SlotsSettings(count=1),
            scaler=ScalerSettings(workers=1, launcher="none"),
        )

    def denied(self) -> str:
        path = self.broker.directory / "authorizer.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    root = tmp_path_factory.mktemp("secure")
    make(root / "secrets", EDGES)
    table = root / "sensors.csv"
    rows = [f"s{sensor},{edge}\n" for edge in EDGES for sensor in SENSORS[edge]]
    table.write_text("sensor,edge\n" + "".join(rows))
    broker = Broker(root / "kafka", free_port(), secure=root / "secrets")
    made = Secure(broker, root / "secrets", table)
    broker.start()
    try:
        broker.wait_ready()
        make_topics(made.as_user("admin"))
        make_rights(made.as_user("admin"), lambda _line: None, acls=True, users=None)
        yield made
    finally:
        broker.stop()


def fate(producer: Producer, topic: str, partition: int, key: bytes, value: bytes) -> str:
    """Send a record and return what became of it: "" = the broker has it."""
    heard: list[str] = []
    try:
        producer.send(topic, partition, key, value, lambda error, _: heard.append("" if error is None else str(error)))
    except LogError as error:
        return str(error)
    try:
        assert producer.flush(PATIENCE_S) == 0
    except LogError as error:
        return heard[0] if heard else str(error)
    return heard[0]


def counted(topic: str) -> float:
    return REGISTRY.get_sample_value("tsunagi_dead_letters_total", {"topic": topic, "reason": "forged"}) or 0.0


def _patiently(start: Callable[[], _S]) -> _S:
    """Start a service as whoever runs it does: again, when the broker did not answer in time."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return start()
        except LogError:
            if time.monotonic() > deadline:
                raise


@dataclass
class Rig:
    """One worker, the scaler and two honest edges, turn by turn, on the broker."""

    secure: Secure
    next_step: int = 0
    first_step: int = 0
    sent: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        gateway, scaler = self.secure.as_user("gateway"), self.secure.as_user("scaler")
        table = read_sensors(self.secure.table)
        self.log = tool_log(self.secure.as_user("tools"), "test")
        self.clock = SystemClock()
        logs = [KafkaLog(settings.kafka, client_id=name) for settings, name in ((gateway, "gw-1"), (scaler, "scaler"))]
        logs[0].ensure_topics(gateway, needed("gateway"))
        logs[1].ensure_topics(scaler, needed("scaler"))
        self.scaler = _patiently(
            lambda: ScalerService(scaler, table, authenticated(logs[1], scaler), self.clock, _logger)
        )
        self.scaler.start()
        self.host = _patiently(
            lambda: ReplicaHost(gateway, "gw-1", table, authenticated(logs[0], gateway), self.clock, _logger)
        )
        self.host.start()
        self.edges = {}
        for edge in EDGES:
            settings = self.secure.as_user(edge)
            log = authenticated(KafkaLog(settings.kafka, client_id=edge), settings, edge=edge)
            self.edges[edge] = log.producer()
        return self

    def __exit__(self, *_: object) -> None:
        for producer in self.edges.values():
            producer.close()
        self.host.close()
        self.scaler.close()

    @property
    def step_now(self) -> int:
        return time.time_ns() // 1000 // STEPS.slide_us

    def turn(self) -> None:
        """Do what is due."""
        self.scaler.step()
        self.host.step()
        if not self.first_step:
            self.first_step = self.next_step = self.step_now
        while self.next_step <= self.step_now:
            for edge in EDGES:
                batch = TupleBatch(
                    edge=edge,
                    incarnation=1,
                    step=self.next_step,
                    event_time_us=self.next_step * STEPS.slide_us,
                    sensor=pack_sensors(SENSORS[edge]),
                    value=pack_floats([value(sensor, self.next_step) for sensor in SENSORS[edge]]),
                )
                record = LogRecord(version=VERSION, batch=batch)
                self.edges[edge].send(TUPLES, 0, edge.encode(), record.SerializeToString())
            self.next_step += 1
        for producer in self.edges.values():
            producer.poll()

    def turns(self, steps: int) -> None:
        """Go on for so many steps."""
        until = self.next_step + steps
        while self.next_step < until:
            self.turn()

    def until_owned(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.host.replicas.get(0) is None or self.host.replicas[0].role != "primary":
            assert time.monotonic() < deadline, "nobody owns the slot"
            self.turn()

    def settle(self) -> None:
        """Let everything sent be processed."""
        for producer in self.edges.values():
            assert producer.flush(PATIENCE_S) == 0
        deadline = time.monotonic() + PATIENCE_S
        replica = self.host.replicas[0]
        while replica.lag or len(replica.pending):
            assert time.monotonic() < deadline, "the worker does not come to the end"
            self.scaler.step()
            self.host.step()
        self.host.step()

    def check_outputs(self) -> int:
        """Check every output against what the honest edges sent; return how many there are."""
        steps = []
        for record in read_partition(self.log, RECOVERED, 0):
            message = Recovered.FromString(record.value or b"")
            steps.append(message.step)
            if message.step < self.first_step:
                continue  # before the first batch
            assert sensors(message.sensor).tolist() == [0, 1, 2, 3], message.step
            expected = [value(sensor, message.step) for sensor in range(4)]
            assert floats(message.mean).tolist() == expected, message.step
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        return len(steps)


class Attacker:
    """Has all that an edge has, and writes what it likes."""

    def __init__(self, secure: Secure, edge: str) -> None:
        self.name = edge.encode()
        self.forged = 0
        settings = secure.as_user(edge)
        log = KafkaLog(settings.kafka, client_id="attacker")
        self.raw = log.producer()
        self._signed = authenticated(log, settings, edge=edge)
        self.signing = self._signed.producer()

    def once(self) -> Producer:
        """Return a producer for one attempt that may be refused: a refusal ends it."""
        return self._signed.producer()

    def attack_tuples(self, step: int) -> None:
        """Append EdgeOut, Punctuation, Ownership and another edge's batch, with and without one's own hash."""
        victim = TupleBatch(
            edge="edge-2",
            incarnation=1 << 62,
            step=step + 1,
            event_time_us=(step + 1) * STEPS.slide_us,
            sensor=pack_sensors(SENSORS["edge-2"]),
            value=pack_floats([WILD] * 2),
        )
        bodies = [
            LogRecord(version=VERSION, edge_out=EdgeOut(epoch=1, edge="edge-2", from_step=step)),
            LogRecord(version=VERSION, punctuation=Punctuation(epoch=1, step=step + 50)),
            LogRecord(version=VERSION, ownership=Ownership(epoch=2, node="evil", generation=1)),
            LogRecord(version=VERSION, batch=victim),
        ]
        for body in bodies:
            for producer in (self.raw, self.signing):
                for key in (self.name, b"edge-2", b"!gw-1"):
                    assert fate(producer, TUPLES, 0, key, body.SerializeToString()) == ""
                    self.forged += 1

    def others(self) -> dict[str, bytes]:
        """Return what it would write elsewhere, by topic: take the slot, trim the log, kill the owner by rumour."""
        plan = Plan(version=VERSION, assignment=Assignment(slot=0, owner="evil", secondary="evil", serial=1 << 40))
        ack = Ack(version=VERSION, level1=Level1Ack(slot=0, node="evil", epoch=1 << 40, offset=1 << 40))
        return {PLAN: plan.SerializeToString(), ACKS: ack.SerializeToString()}


def test_what_an_edge_forges_changes_no_result_and_is_counted(secure: Secure) -> None:
    attacker = Attacker(secure, "edge-1")
    with Rig(secure) as rig:
        rig.until_owned()
        rig.turns(5)
        for _ in range(5):
            attacker.attack_tuples(rig.next_step - 1)
            rig.turns(2)
        # The broker refuses what an edge has no business with.
        for topic in (*attacker.others(), CONTEXTS, RECOVERED, RESULTS):
            said = fate(attacker.once(), topic, 0, b"0", attacker.others().get(topic, b"x"))
            assert "TOPIC_AUTHORIZATION_FAILED" in said or "Topic authorization failed" in said, (topic, said)
        # An edge may write heartbeats: a worker's from it is refused by whoever reads it.
        before = counted(HEARTBEATS)
        for name in (b"gw-1", attacker.name):
            beat = Heartbeat(version=VERSION, node="gw-1", role="worker", incarnation=1 << 62, leaving=True)
            assert fate(attacker.signing, HEARTBEATS, 0, name, beat.SerializeToString()) == ""
        rig.turns(3)
        assert counted(HEARTBEATS) >= before + 2
        # Were the access lists lost, the readers would still know.
        _allow(secure, "edge-1", ACKS, PLAN)
        before_plan, before_acks = counted(PLAN), counted(ACKS)
        for topic, record in attacker.others().items():
            assert _eventually(attacker.once, topic, record)
        rig.turns(5)
        assert counted(PLAN) > before_plan
        assert counted(ACKS) > before_acks
        rig.settle()
        replica = rig.host.replicas[0]
        assert (replica.epoch, replica.owner, replica.role) == (1, "gw-1", "primary")
        assert rig.check_outputs() > 15
        tuples = read_partition(rig.log, TUPLES, 0)
        recovered = read_partition(rig.log, RECOVERED, 0)
        letters = [DeadLetter.FromString(item.value or b"") for item in read_partition(rig.log, DEAD_LETTERS, 0)]
    result = replay_slot(tuples, recovered, Path())
    assert (result.differing, result.unreadable) == (0, 0), result.differences
    assert result.compared > 15
    assert sum(letter.reason == "forged" for letter in letters) == attacker.forged == 120
    denied = [line for line in secure.denied().splitlines() if "Principal = User:edge-1 is Denied" in line]
    for topic in (PLAN, ACKS):
        assert any(f"Topic:LITERAL:{topic} " in line for line in denied), topic


def _allow(secure: Secure, user: str, *granted: str) -> None:
    admin = KafkaLog(secure.as_user("admin").kafka).admin()
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        for topic in granted
    ]
    for future in admin.create_acls(bindings).values():
        future.result(timeout=PATIENCE_S)


def _eventually(make: Callable[[], Producer], topic: str, record: bytes) -> bool:
    """Send until the broker takes it: a new list, and what the client knows of it, take a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while fate(make(), topic, 0, b"0", record):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize("user", ["edge-2", "gateway", "scaler", "learner", "sink", "spark", "tools"])
def test_every_user_has_what_it_needs_and_no_more(secure: Secure, user: str) -> None:
    role = "edge" if user in EDGES else user
    log = KafkaLog(secure.as_user(user).kafka, client_id=user)
    assert {topic for topic in TOPICS if log.partitions(topic)} == set(needed(role))
    log.ensure_topics(secure.as_user(user), needed(role))


def test_an_edge_cannot_read_what_others_write(secure: Secure) -> None:
    reader = KafkaLog(secure.as_user("edge-2").kafka, client_id="edge-2").reader()
    reader.assign([Position(TUPLES, 0, 0)])
    with pytest.raises(LogError, match=r"(?i)authorization"):
        _read_on(reader)


def _read_on(reader: Reader) -> None:
    for _ in range(100):
        reader.read(10, 0.2)


@pytest.mark.parametrize("how", ["no password", "wrong password", "plaintext", "no certificate"])
def test_who_cannot_show_who_it_is_stays_outside(
    secure: Secure, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tsunagi.runtime.kafka, "_ADMIN_S", 5.0)  # nobody answers, ever
    kafka = secure.as_user("gateway").kafka
    if how == "no password":
        kafka = kafka.model_copy(update={"security": "tls", "username": ""})
    elif how == "wrong password":
        wrong = tmp_path / "password"
        shutil.copyfile(secure.secrets / "password-tools", wrong)
        kafka = kafka.model_copy(update={"password_file": str(wrong)})
    elif how == "plaintext":
        kafka = KafkaSettings(servers=kafka.servers)
    else:
        kafka = kafka.model_copy(update={"ca_file": ""})
    quiet = kafka.model_copy(update={"options": {"log_level": 0}})
    with pytest.raises(LogError):
        KafkaLog(quiet, client_id="stranger").partitions(TUPLES)


def test_a_file_that_is_not_there_is_named(secure: Secure) -> None:
    kafka = secure.as_user("gateway").kafka
    for key in ("password_file", "ca_file"):
        with pytest.raises(ConfigError, match=key):
            KafkaLog(kafka.model_copy(update={key: "/nowhere"})).producer()


def test_no_secret_is_in_what_the_broker_or_we_write_down(secure: Secure) -> None:
    secrets = [path.read_text().split()[-1] for path in secure.secrets.glob("password-*")]
    secrets += [path.read_text().split()[-1] for path in secure.secrets.glob("key-*")]
    files = [path for path in secure.broker.directory.glob("*") if path.is_file()]
    assert any(path.name == "broker.log" for path in files)
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not any(secret in text for secret in secrets), path.name
    shown = repr(secure.as_user("gateway"))
    assert not any(secret in shown for secret in secrets)


def test_users_and_rights_may_be_made_again(secure: Secure) -> None:
    said: list[str] = []
    make_rights(secure.as_user("admin"), said.append, acls=True, users=secure.secrets)
    assert any(line.startswith("access control: 0 lists made") for line in said)
    assert KafkaLog(secure.as_user("tools").kafka).partitions(TUPLES) == 1


def test_too_large_a_batch_is_refused_by_the_broker(secure: Secure) -> None:
    settings = secure.as_user("edge-2")
    producer = KafkaLog(settings.kafka, client_id="edge-2").producer()
    assert "large" in fate(producer, TUPLES, 0, b"edge-2", b"x" * (settings.kafka.max_message_bytes + 1)).lower()


def test_the_master_key_signs_what_the_edges_key_cannot(secure: Secure) -> None:
    """The attack above is one that works with the right key: it is the key that keeps it out."""
    master = read_keys(secure.secrets / "key-master").masters[0]
    body = LogRecord(version=VERSION, punctuation=Punctuation(epoch=1, step=1), serial=1).SerializeToString()
    value = sign(derive(master, "control"), "", TUPLES, 0, b"!gw-1", body)
    admin = KafkaLog(secure.as_user("gateway").kafka, client_id="gw").producer()
    assert fate(admin, TUPLES, 0, b"!gw-1", value) == ""
    log = tool_log(secure.as_user("tools"), "test")
    assert read_partition(log, TUPLES, 0)[-1].signer == "control"
