from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tsunagi.broker import checks
from tsunagi.broker.checks import BrokerError, cause, check_data, check_disk, check_port, free_port, usable_java
from tsunagi.jars.java import JavaError

META = "#comment\ncluster.id=abc\ndirectory.id=xyz\nnode.id=1\nversion=1\n"


def data(directory: Path, meta: str = META, cluster: str = "abc\n") -> Path:
    (directory / "data").mkdir()
    (directory / "data" / "meta.properties").write_text(meta, encoding="utf-8")
    (directory / "cluster-id").write_text(cluster, encoding="utf-8")
    return directory / "data" / "meta.properties"


def test_good_or_fresh_directory_passes(tmp_path: Path) -> None:
    check_data(tmp_path)
    data(tmp_path)
    check_data(tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda meta: meta.unlink(), "damaged: {meta} is missing"),
        (lambda meta: meta.write_bytes(b"\xff\xfe\x00"), "damaged: {meta} cannot be read"),
        (lambda meta: meta.write_text(""), "damaged: {meta} has no version"),
        (lambda meta: meta.write_text(META.replace("node.id=1", "node.id=")), "damaged: {meta} has no node.id"),
        (lambda meta: meta.write_text(META.replace("node.id=1", "node.id=7")), "says node.id = 7, expected 1"),
        (lambda meta: meta.write_text(META.replace("abc", "def")), "of another cluster: {meta} says def"),
        (lambda meta: (meta.parents[1] / "cluster-id").unlink(), "cluster-id is missing"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    meta = data(tmp_path)
    damage(meta)
    with pytest.raises(BrokerError) as caught:
        check_data(tmp_path)
    assert said.format(meta=meta) in str(caught.value)
    assert "restore it, or remove the directory" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_full_disk_names_directory_and_space(tmp_path: Path) -> None:
    check_disk(tmp_path, 1)
    with pytest.raises(BrokerError, match=rf"the disk of {tmp_path} is full: \d+ MB free, expected \d+ MB or more"):
        check_disk(tmp_path, 10**18)


def test_port_in_use_is_named_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"port {port} .* in use; .*\[kafka\] in tsunagi.toml"):
            check_port(port)
        assert free_port(port) != port
    check_port(port)
    assert free_port(port) == port
    assert free_port(port, avoid=port) != port


def test_a_free_port_is_none_that_a_client_may_be_given() -> None:
    first = checks._first_outgoing()
    assert all(free_port() < (first or 65_536) for _ in range(100))


def test_impossible_port_is_refused() -> None:
    with pytest.raises(BrokerError, match="expected 1 to 65535"):
        check_port(70_000)


def test_missing_java_and_missing_jars_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise JavaError("Java is missing: install Java 17")

    monkeypatch.setattr(checks, "find_java", none)
    with pytest.raises(BrokerError, match="the broker cannot start: Java is missing: install Java 17"):
        usable_java(tmp_path)
    monkeypatch.setattr(checks, "find_java", lambda: "java")
    with pytest.raises(BrokerError, match=f"no Kafka jars in {tmp_path}; run `make setup`"):
        usable_java(tmp_path)
    (tmp_path / "kafka_2.13-4.3.0.jar").touch()
    assert usable_java(tmp_path) == "java"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("ERROR java.io.IOException: No space left on device", "the disk of /b is full"),
        ("java.net.BindException: Address already in use", "port 9 (or the controller's, 10) is in use"),
        ("KafkaException: Failed to acquire lock on file .lock in data", "another broker uses /b/data"),
        ("org.apache.kafka.common.errors.CorruptRecordException", "/b/data is damaged"),
        ("java.io.IOException: Input/output error", "input/output errors"),
        ("INFO all is well", "its log tells more"),
    ],
)
def test_cause_of_death_is_read_from_the_log(log: str, said: str) -> None:
    assert said in cause(log, directory=Path("/b"), port=9, controller_port=10)


def test_a_disk_without_room_for_the_last_words_is_full_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    cut = "ERROR Error while appending records to tuples-0 in dir /b/da"
    assert "the disk of /b is full" in cause(cut, directory=Path("/b"), port=9, controller_port=10)
