from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY

from tsunagi.runtime.auth import SignedLog, Verifier, authenticated, forgery, sign
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.keys import CONTROL, EDGE, KEY_BYTES, Keys, derive, fingerprint, read_keys
from tsunagi.runtime.log import ACKS, CONTEXTS, HEARTBEATS, PLAN, RECOVERED, TUPLES, Position, Record
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import (
    VERSION,
    Ack,
    Assignment,
    Context,
    EdgeOut,
    Heartbeat,
    Level0Ack,
    LogRecord,
    Ownership,
    Plan,
    SlotBeat,
    TupleBatch,
)
from tsunagi.runtime.settings import ConfigError, KafkaSettings, SecuritySettings, Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.slot.parsing import parse

MASTER = bytes(range(32))
OTHER = bytes(range(1, 33))
BATCH = LogRecord(version=VERSION, batch=TupleBatch(edge="edge-1", step=7)).SerializeToString()
OUT = LogRecord(version=VERSION, edge_out=EdgeOut(epoch=1, edge="edge-2", from_step=9)).SerializeToString()


def edge_keys(name: str, master: bytes = MASTER) -> Keys:
    return Keys(edge=name, edge_key=derive(master, EDGE + name))


def world() -> MemoryLog:
    return MemoryLog(ManualClock(), {TUPLES: 2, HEARTBEATS: 1, PLAN: 1, ACKS: 1, CONTEXTS: 2, RECOVERED: 2})


def through(
    writer: Keys | None, topic: str, key: bytes | None, value: bytes | None, *, masters: tuple[bytes, ...] = (MASTER,)
) -> Record:
    """Write a record and return it as a verifying reader gives it."""
    log = world()
    producer = (SignedLog(log, writer) if writer is not None else log).producer()
    producer.send(topic, 0, key, value)
    producer.flush(0.0)
    reader = SignedLog(log, Keys(masters=masters)).reader()
    reader.assign([Position(topic, 0, 0)])
    (record,) = reader.read(10, 0.0)
    return record


def written(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_record_tells_who_wrote_it_and_parses_as_before() -> None:
    of_edge = through(edge_keys("edge-1"), TUPLES, b"edge-1", BATCH)
    assert of_edge.signer == "edge/edge-1"
    message, reason, _ = parse(of_edge)
    assert (reason, message is not None and message.batch.step) == ("", 7)
    control = through(Keys(masters=(MASTER,)), TUPLES, b"!gw-1", OUT)
    assert control.signer == CONTROL
    message, reason, _ = parse(control)
    assert message is not None
    assert (reason, message.edge_out.from_step, message.serial > 0) == ("", 9, True)


def test_an_edge_verifies_nothing_and_without_auth_nothing_changes() -> None:
    log = world()
    assert authenticated(log, Settings()) is log
    producer = log.producer()
    producer.send(TUPLES, 0, b"edge-1", BATCH)
    producer.flush(0.0)
    assert [record.value for record in log.records(TUPLES, 0)] == [BATCH]
    reader = SignedLog(log, edge_keys("edge-1")).reader()
    reader.assign([Position(TUPLES, 0, 0)])
    assert [record.signer for record in reader.read(10, 0.0)] == [None]
    assert fingerprint(Settings()) == ""


@pytest.mark.parametrize("topic", [RECOVERED])
def test_other_topics_are_left_alone(topic: str) -> None:
    record = through(Keys(masters=(MASTER,)), topic, b"k", b"v")
    assert (record.value, record.signer) == (b"v", None)


@pytest.mark.parametrize(
    ("writer", "key", "value"),
    [
        (None, b"edge-1", BATCH),  # no hash at all
        (edge_keys("edge-2"), b"edge-1", BATCH),  # another edge's batch under its name
        (edge_keys("edge-2"), b"edge-2", BATCH),  # another edge's batch under one's own
        (edge_keys("edge-1"), b"!gw-1", OUT),  # a control record
        (edge_keys("edge-1"), b"edge-1", OUT),
        (edge_keys("edge-1", OTHER), b"edge-1", BATCH),  # a key of another installation
        (Keys(masters=(MASTER,)), b"edge-1", BATCH),  # control speaks for no edge
        (edge_keys("edge-1"), None, BATCH),
        (edge_keys("edge-1"), b"\xff\xfe", BATCH),
    ],
)
def test_forged_records_of_tuples_are_dead_letters(writer: Keys | None, key: bytes | None, value: bytes) -> None:
    message, reason, detail = parse(through(writer, TUPLES, key, value))
    assert (message, reason) == (None, "forged")
    assert "expected" in detail


def test_every_part_of_the_record_is_covered() -> None:
    verifier = Verifier(Keys(masters=(MASTER,)), "a.")
    secret = derive(MASTER, EDGE + "edge-1")
    value = sign(secret, "a.", TUPLES, 1, b"edge-1", BATCH)
    good = Record(TUPLES, 1, 0, 0, b"edge-1", value)
    assert verifier.signer(good) == "edge/edge-1"
    assert verifier.signer(Record(TUPLES, 0, 0, 0, b"edge-1", value)) == ""
    assert verifier.signer(Record(HEARTBEATS, 1, 0, 0, b"edge-1", value)) == ""
    assert Verifier(Keys(masters=(MASTER,)), "b.").signer(good) == ""
    for place in range(len(value)):
        changed = bytearray(value)
        changed[place] ^= 1
        assert verifier.signer(Record(TUPLES, 1, 0, 0, b"edge-1", bytes(changed))) == "", place
    for end in range(len(value)):
        assert verifier.signer(Record(TUPLES, 1, 0, 0, b"edge-1", value[:end])) == ""
    assert verifier.signer(Record(TUPLES, 1, 0, 0, b"edge-1", value + b"\0")) == ""
    assert verifier.signer(Record(TUPLES, 1, 0, 0, b"edge-1", None)) == ""


def test_key_and_body_cannot_be_shifted_against_each_other() -> None:
    verifier = Verifier(Keys(masters=(MASTER,)))
    value = sign(derive(MASTER, CONTROL), "", PLAN, 0, b"ab", b"c")
    assert verifier.signer(Record(PLAN, 0, 0, 0, b"ab", value)) == CONTROL
    assert verifier.signer(Record(PLAN, 0, 0, 0, b"a", b"b" + value)) == ""
    none = sign(derive(MASTER, CONTROL), "", PLAN, 0, None, b"c")
    assert verifier.signer(Record(PLAN, 0, 0, 0, b"", none)) == ""


@pytest.mark.parametrize(
    ("writer", "beat", "ok"),
    [
        (edge_keys("edge-1"), Heartbeat(node="edge-1", role="edge"), True),
        (Keys(masters=(MASTER,)), Heartbeat(node="edge-1", role="worker"), True),
        (edge_keys("edge-1"), Heartbeat(node="edge-1", role="worker"), False),
        (edge_keys("edge-1"), Heartbeat(node="edge-2", role="edge"), False),
        (edge_keys("edge-1"), Heartbeat(node="edge-1", role="edge", slots=[SlotBeat(role="primary")]), False),
        (None, Heartbeat(node="edge-1", role="edge"), False),
    ],
)
def test_heartbeats(writer: Keys | None, beat: Heartbeat, *, ok: bool) -> None:
    record = through(writer, HEARTBEATS, b"edge-1", beat.SerializeToString())
    found = read_message(Heartbeat, record, structlog.stdlib.get_logger())
    assert (found is not None) == ok


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (PLAN, Plan(version=VERSION, assignment=Assignment(slot=1))),
        (ACKS, Ack(version=VERSION, level0=Level0Ack(slot=1))),
        (CONTEXTS, Context(version=VERSION)),
    ],
)
def test_what_only_control_may_write(topic: str, message: Any) -> None:
    logger, kind = structlog.stdlib.get_logger(), type(message)
    value = message.SerializeToString()
    labels = {"topic": topic, "reason": "forged"}
    before = REGISTRY.get_sample_value("tsunagi_dead_letters_total", labels) or 0.0
    assert read_message(kind, through(Keys(masters=(MASTER,)), topic, b"k", value), logger) is not None
    for writer in (None, edge_keys("edge-1"), Keys(masters=(OTHER,))):
        assert read_message(kind, through(writer, topic, b"edge-1", value), logger) is None
    assert REGISTRY.get_sample_value("tsunagi_dead_letters_total", labels) == before + 3


def test_a_flood_of_forged_records_says_one_line() -> None:
    plan = Plan(version=VERSION, assignment=Assignment(slot=1))
    record = through(None, PLAN, b"placement", plan.SerializeToString())
    with structlog.testing.capture_logs() as said:
        for _ in range(100):
            read_message(Plan, record, structlog.stdlib.get_logger())
    assert len(said) <= 1


def test_rotation_old_records_hold_while_the_old_key_is_listed() -> None:
    old = through(edge_keys("edge-1"), TUPLES, b"edge-1", BATCH, masters=(OTHER, MASTER))
    new = through(edge_keys("edge-1", OTHER), TUPLES, b"edge-1", BATCH, masters=(OTHER, MASTER))
    assert old.signer == new.signer == "edge/edge-1"
    assert through(edge_keys("edge-1"), TUPLES, b"edge-1", BATCH, masters=(OTHER,)).signer == ""
    assert Keys(masters=(OTHER, MASTER)).signing() == derive(OTHER, CONTROL)


def test_serials_count_up_over_all_producers_of_a_process() -> None:
    log = world()
    signed = SignedLog(log, Keys(masters=(MASTER,)))
    for producer in (signed.producer(), signed.producer(durable=False), signed.producer()):
        producer.send(TUPLES, 0, b"!gw-1", OUT)
        producer.flush(0.0)
    serials = [LogRecord.FromString(record.value or b"").serial for record in log.records(TUPLES, 0)]
    assert len(set(serials)) == 3
    assert serials == sorted(serials)


def test_key_files(tmp_path: Path) -> None:
    assert read_keys(written(tmp_path, f"master {MASTER.hex()}\n")) == Keys(masters=(MASTER,))
    both = f"master {MASTER.hex()}\n\nmaster {OTHER.hex()}\n"
    assert read_keys(written(tmp_path, both, 0o640)) == Keys(masters=(MASTER, OTHER))
    assert read_keys(written(tmp_path, f"edge edge-1 {OTHER.hex()}\n")) == Keys(edge="edge-1", edge_key=OTHER)


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (f"master {MASTER.hex()}\n", 0o644, "mode 0644, expected 0600"),
        (f"master {MASTER.hex()}\n", 0o620, "mode 0620"),
        ("", 0o600, "found 0 master and 0 edge keys"),
        (f"master {MASTER.hex()}\nedge e {OTHER.hex()}\n", 0o600, "found 1 master and 1 edge keys"),
        (f"master {MASTER.hex()[:-2]}\n", 0o600, f"line 1: found a key of {KEY_BYTES - 1} bytes, expected {KEY_BYTES}"),
        ("master xyz\n", 0o600, "not hexadecimal"),
        (MASTER.hex(), 0o600, "line 1: expected `master HEX`"),
    ],
)
def test_key_files_that_cannot_be_used(tmp_path: Path, text: str, mode: int, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_keys(written(tmp_path, text, mode))
    assert says in str(error.value)
    assert "key_file" in str(error.value)
    assert MASTER.hex()[:10] not in str(error.value)


def test_a_key_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"edge edge-2 {OTHER.hex()}\n")
    settings = Settings(security=SecuritySettings(auth="hmac", key_file=str(path)))
    with pytest.raises(ConfigError, match="found the key of edge 'edge-2', expected the key of edge 'edge-1'"):
        authenticated(world(), settings, edge="edge-1")
    with pytest.raises(ConfigError, match="expected master keys"):
        authenticated(world(), settings)
    with pytest.raises(ConfigError, match="No such file"):
        authenticated(world(), Settings(security=SecuritySettings(auth="hmac", key_file=str(tmp_path / "none"))))
    with pytest.raises(ValueError, match="needs key_file"):
        SecuritySettings(auth="hmac")


def test_the_fingerprint_is_of_the_set_of_keys_and_tells_none(tmp_path: Path) -> None:
    def of(*masters: bytes) -> str:
        text = "".join(f"master {master.hex()}\n" for master in masters)
        return fingerprint(Settings(security=SecuritySettings(auth="hmac", key_file=str(written(tmp_path, text)))))

    assert of(MASTER, OTHER) == of(OTHER, MASTER)
    assert len({of(MASTER), of(OTHER), of(MASTER, OTHER), ""}) == 4
    assert of(MASTER) not in derive(MASTER, CONTROL).hex()


def test_the_prefix_tells_two_installations_apart(tmp_path: Path) -> None:
    path = written(tmp_path, f"master {MASTER.hex()}\n")
    log = world()
    for prefix in ("a.", "b."):
        kafka = KafkaSettings(prefix=prefix)
        signed = authenticated(log, Settings(kafka=kafka, security=SecuritySettings(auth="hmac", key_file=str(path))))
        producer = signed.producer()
        producer.send(PLAN, 0, b"k", b"v")
        producer.flush(0.0)
    reader = authenticated(
        log, Settings(kafka=KafkaSettings(prefix="a."), security=SecuritySettings(auth="hmac", key_file=str(path)))
    )
    following = reader.reader()
    following.assign([Position(PLAN, 0, 0)])
    assert [record.signer for record in following.read(10, 0.0)] == [CONTROL, ""]


def test_nobody_checks_when_nobody_signed() -> None:
    claim = LogRecord(version=VERSION, ownership=Ownership(epoch=1, node="n"))
    assert forgery(Record(TUPLES, 0, 0, 0, b"", b""), claim) == ""


def test_keys_do_not_show_themselves() -> None:
    assert MASTER.hex() not in repr(Keys(masters=(MASTER,)))
    assert str(MASTER) not in f"{Keys(masters=(MASTER,))} {edge_keys('e')}"
