from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tsunagi.runtime.health import ALIVE, MOST_HELD, HealthError, HealthServer, identity


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


def test_the_path_alive_says_who_is_there_and_keeps_a_number_of_connections(state: State) -> None:
    running = HealthServer("127.0.0.1", 0, state.ready, alive=identity("gw-1", 7))
    held = []
    try:
        for _ in range(MOST_HELD):
            line = socket.create_connection(("127.0.0.1", running.port), timeout=5)
            held.append(line)
            line.sendall(f"GET {ALIVE} HTTP/1.0\r\n\r\n".encode())
            found = b""
            while b"gw-1 7\n" not in found:
                found += line.recv(1000)
            assert found.startswith(b"HTTP/1.0 200")
        assert get(running, ALIVE) == (503, f"{MOST_HELD} connections are kept already\n")
        assert get(running, "/healthz") == (200, "ok\n")
        held.pop().close()
        status = 503
        while status == 503:  # until the server has noticed
            line = socket.create_connection(("127.0.0.1", running.port), timeout=5)
            line.sendall(f"GET {ALIVE} HTTP/1.0\r\n\r\n".encode())
            status = int(line.recv(1000).split()[1])
            held.append(line)
        assert status == 200
    finally:
        for line in held:
            line.close()
        running.close()


def test_a_service_without_a_name_has_no_path_alive(server: HealthServer) -> None:
    assert get(server, ALIVE)[0] == 404
