"""What the client library says is told first, then what to do; a cause that it told before is the one that is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.kafka_client import client_options
from tsunagi.runtime.kafka_errors import ADVICE, ConnectionErrors, said
from tsunagi.runtime.log import TUPLES, LogError
from tsunagi.runtime.settings import ConfigError, KafkaSettings


@pytest.mark.parametrize("code", sorted(ADVICE))
def test_what_the_library_said_comes_first_and_then_what_to_do(code: int) -> None:
    told = said(KafkaException(KafkaError(code, "it said this")))
    assert told.startswith("it said this (")
    assert told.endswith(ADVICE[code])


@pytest.mark.parametrize(
    ("code", "text", "advice"),
    [
        (
            KafkaError._TRANSPORT,
            "a:1/bootstrap: Connect to ipv4#1.2.3.4:1 failed: Connection refused",
            "nothing listens",
        ),
        (KafkaError._TRANSPORT, "a:1/1: Connect to ipv4#1.2.3.4:1 failed: Connection refused", "advertised.listeners"),
        (KafkaError._RESOLVE, "kafka:9092/7: Failed to resolve 'kafka:9092': Name or service", "advertised.listeners"),
        (KafkaError._RESOLVE, "[::1]:9/bootstrap: Address family for hostname not supported", "broker.address.family"),
        (KafkaError._TRANSPORT, "ssl://a:1/bootstrap: SSL routines::wrong version number", "[kafka] security"),
        (KafkaError._SSL, "SSL handshake failed: certificate verify failed", "[kafka] ca_file"),
        (KafkaError._TRANSPORT, "Failed to create socket: Too many open files", "ulimit -n"),
    ],
)
def test_the_text_may_tell_more_than_the_code(code: int, text: str, advice: str) -> None:
    assert advice in said(KafkaError(code, f"{text} (after 3ms in state CONNECT)"))
    assert "after 3ms" not in said(KafkaError(code, f"{text} (after 3ms in state CONNECT)"))


def test_a_code_without_advice_is_told_as_it_is() -> None:
    assert said(KafkaError(KafkaError.INVALID_CONFIG, "bad")) == "bad (INVALID_CONFIG)"
    assert said(KafkaException("odd")) == "odd"


def test_the_cause_is_told_only_where_the_question_has_none() -> None:
    errors = ConnectionErrors()
    failed = KafkaException(KafkaError(KafkaError._TRANSPORT, "Failed to get metadata"))
    assert errors.said(failed).startswith("Failed to get metadata")
    errors(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.said(failed).startswith("wrong password")
    denied = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied"))
    assert errors.said(denied).startswith("denied")


@pytest.fixture
def no_broker() -> Iterator[int]:
    """Yield a port on which something answers every client as a web server does."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(64)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def asked(monkeypatch: pytest.MonkeyPatch, settings: KafkaSettings) -> str:
    monkeypatch.setattr("tsunagi.runtime.kafka._ADMIN_S", 0.7)
    log = KafkaLog(settings.model_copy(update={"options": {"log_level": 0} | settings.options}))
    with pytest.raises(LogError) as caught:
        log.partitions(TUPLES)
    log.close()
    return str(caught.value)


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    told = asked(monkeypatch, KafkaSettings(servers="127.0.0.1:1"))
    assert "Connection refused" in told
    assert "does the broker run, and is [kafka] servers its address?" in told


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    told = asked(monkeypatch, KafkaSettings(servers="none.invalid:9092"))
    assert "Failed to resolve 'none.invalid:9092'" in told
    assert "spelt right" in told


def test_what_listens_is_no_broker(monkeypatch: pytest.MonkeyPatch, no_broker: int) -> None:
    assert "what listens there is no Kafka broker" in asked(
        monkeypatch, KafkaSettings(servers=f"127.0.0.1:{no_broker}")
    )
    told = asked(monkeypatch, KafkaSettings(servers=f"127.0.0.1:{no_broker}", security="tls"))
    assert "SSL" in told
    assert "look at [kafka] security and ca_file" in told


def test_options_that_the_library_does_not_take_are_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r'\[kafka\]: No such configuration property: "no\.such"'):
        KafkaLog(KafkaSettings(options={"no.such": 1})).admin()


@pytest.mark.parametrize(("servers", "family"), [("a:1", "v4"), ("[::1]:1", "any"), ("a:1,[fe80::1]:2", "any")])
def test_an_ipv6_address_is_reached(servers: str, family: str) -> None:
    assert client_options(KafkaSettings(servers=servers))["broker.address.family"] == family
