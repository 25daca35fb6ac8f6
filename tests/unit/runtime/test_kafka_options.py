from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.runtime.kafka_client import client_options
from tsunagi.runtime.log import LATE, TUPLES
from tsunagi.runtime.settings import ConfigError, KafkaSettings, Settings, load
from tsunagi.runtime.topics import topic_layout


def test_plain_is_as_it_was() -> None:
    options = client_options(KafkaSettings())
    assert not any(name.startswith(("security", "ssl", "sasl")) for name in options)


@pytest.mark.parametrize(
    ("security", "protocol"), [("tls", "ssl"), ("sasl_plaintext", "sasl_plaintext"), ("sasl_tls", "sasl_ssl")]
)
def test_each_kind_of_security_has_its_protocol(security: str, protocol: str, tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("s3cr3t\n")
    (tmp_path / "ca.pem").write_text("x")
    named = {"username": "u", "password_file": str(tmp_path / "pw")} if "sasl" in security else {}
    options = client_options(KafkaSettings(security=security, ca_file=str(tmp_path / "ca.pem"), **named))
    assert options["security.protocol"] == protocol
    assert options["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert options.get("sasl.password") == ("s3cr3t" if named else None)
    assert options.get("sasl.mechanism") == ("SCRAM-SHA-512" if named else None)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SECURITY": "sasl_tls"}, "needs username and password_file"),
        ({"SECURITY": "sasl_tls", "USERNAME": "u"}, "needs username and password_file"),
        ({"PASSWORD": "a", "PASSWORD_FILE": "b"}, "both given"),
        ({"SECURITY": "ssl"}, "kafka.security"),
        ({"MAX_MESSAGE_BYTES": "0"}, "kafka.max_message_bytes"),
    ],
)
def test_what_cannot_be_is_named(
    environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(f"TSUNAGI_KAFKA__{name}", value)
    with pytest.raises(ConfigError, match=says):
        load()


def test_a_password_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    kafka = KafkaSettings(security="sasl_tls", username="u", password_file=str(tmp_path / "pw"))
    with pytest.raises(ConfigError, match=r"pw \(\[kafka\] password_file\): No such file"):
        client_options(kafka)
    (tmp_path / "pw").write_text("\n")
    with pytest.raises(ConfigError, match="found nothing"):
        client_options(kafka)
    with pytest.raises(ConfigError, match="ca_file"):
        client_options(KafkaSettings(security="tls", ca_file=str(tmp_path / "none")))


def test_the_size_of_a_batch_is_limited_where_edges_write(tmp_path: Path) -> None:
    layout = topic_layout(Settings(kafka=KafkaSettings(max_message_bytes=12345)))
    assert layout[TUPLES][1]["max.message.bytes"] == "12345"
    # What becomes of a batch of that size must fit: `late` repeats all of it.
    assert "max.message.bytes" not in layout[LATE][1]


def test_what_is_past_its_time_is_soon_in_a_closed_segment() -> None:
    for retention_s, segment_s in ((7 * 86400.0, 86400), (600.0, 120), (60.0, 60)):
        layout = topic_layout(Settings(kafka=KafkaSettings(retention_s=retention_s)))
        assert layout[TUPLES][1]["segment.ms"] == str(segment_s * 1000)


def test_the_broker_flushes_if_it_is_asked_to_all_topics_but_heartbeats() -> None:
    plain, flushed = topic_layout(Settings()), topic_layout(Settings(kafka=KafkaSettings(flush_messages=7)))
    for topic, (partitions, config) in flushed.items():
        added = {} if topic == "heartbeats" else {"flush.messages": "7"}
        assert (partitions, config) == (plain[topic][0], plain[topic][1] | added)
