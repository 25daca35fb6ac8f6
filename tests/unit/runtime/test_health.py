from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tsunagi.runtime.health import HealthError, HealthServer


class State:
    def __init__(self) -> None:
        self.answer: tuple[bool, str] | Exception = (True, "")

    def ready(self) -> tuple[bool, str]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Iterator[HealthServer]:
    registry = CollectorRegistry()
    Gauge("tsunagi_test", "A test.", registry=registry).set(4)
    running = HealthServer("127.0.0.1", 0, state.ready, registry=registry)
    yield running
    running.close()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_metrics_show_the_registry(server: HealthServer) -> None:
    status, body = get(server, "/metrics?name=x")
    assert status == 200
    assert "tsunagi_test 4.0" in body


def test_alive_even_when_not_ready(server: HealthServer, state: State) -> None:
    state.answer = (False, "slot 1: rebuilding")
    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz") == (503, "slot 1: rebuilding\n")


def test_ready_with_and_without_a_reason(server: HealthServer, state: State) -> None:
    assert get(server, "/readyz") == (200, "ready\n")
    state.answer = (True, "idle")
    assert get(server, "/readyz") == (200, "idle\n")
    state.answer = (False, "")
    assert get(server, "/readyz") == (503, "not ready\n")


def test_an_error_in_the_question_is_not_ready(server: HealthServer, state: State) -> None:
    state.answer = RuntimeError("no log")
    assert get(server, "/readyz") == (503, "RuntimeError: no log\n")


def test_unknown_path_says_what_there_is(server: HealthServer) -> None:
    status, body = get(server, "/")
    assert status == 404
    assert "/readyz" in body


def test_a_service_may_answer_further_paths(state: State) -> None:
    running = HealthServer("127.0.0.1", 0, state.ready, pages={"/targets": lambda: ("application/json", b"[]")})
    try:
        assert get(running, "/targets?x=1") == (200, "[]")
        assert "/targets" in get(running, "/nothing")[1]
    finally:
        running.close()


def test_port_in_use_is_a_named_error(server: HealthServer) -> None:
    with pytest.raises(HealthError, match=rf"port = {server.port}: cannot listen there"):
        HealthServer("127.0.0.1", server.port, lambda: (True, ""))


def test_closed_port_is_free_again(state: State) -> None:
    server = HealthServer("127.0.0.1", 0, state.ready)
    port = server.port
    server.close()
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
