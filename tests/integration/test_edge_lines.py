"""Edges on lines from TCP clients or from standard input, as processes."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Callable

from tests.integration.edges import SLIDE_US, LiveWorld, further, line, until
from tsunagi.broker.checks import free_port


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def send(self, sensor: str, time_us: int, value: float) -> None:
        self.socket.sendall(line(sensor, time_us, value) + b"\n")

    def reset(self) -> None:
        """Go away in the middle of a line, and rudely."""
        self.socket.sendall(b'{"sensor": "s0", "ti')
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def test_many_tcp_clients_send_lines_and_go_as_they_like(make_live: Callable[..., LiveWorld]) -> None:
    port = free_port()
    world = make_live(kind="lines", lines__listen=f"127.0.0.1:{port}", lines__max_clients=8, max_bytes=1000)
    process = world.start()
    until(lambda: "listening for lines" in world.said())
    clients = [Client(port) for _ in range(3)]
    turn = iter(range(1 << 30))
    world.keep_sending(lambda *reading: clients[next(turn) % len(clients)].send(*reading))  # noqa: PLW0108 - a turn each
    until(further(world))
    for _ in range(20):  # more than may be connected at a time
        Client(port).reset()
    until(further(world))
    world.stop_sending()
    for client in clients:
        client.socket.close()
    long = Client(port)
    long.socket.sendall(b"y" * 50_000 + b"\n")
    until(lambda: len(world.letters("too-long")) == 1)
    assert world.letters("too-long")[0].value == b"y" * 1001
    long.socket.close()
    assert process.poll() is None
    process.terminate()
    assert process.wait(30) == 0
    assert {letter.reason for letter in world.letters()} <= {"too-long", "unreadable", "reading-late"}


def test_standard_input_is_read_to_its_end_and_the_edge_ends_with_it(make_live: Callable[..., LiveWorld]) -> None:
    world = make_live(kind="lines")
    process = world.start(stdin=subprocess.PIPE)
    until(lambda: "source connected" in world.said())
    pipe = process.stdin
    assert pipe is not None

    def send(sensor: str, time_us: int, value: float) -> None:
        pipe.write(line(sensor, time_us, value) + b"\n")
        pipe.flush()

    world.keep_sending(send)
    until(further(world))
    world.stop_sending()
    pipe.close()
    assert process.wait(60) == 0
    world.check()
    last_us = max(time_us for _, time_us in world.sent)
    assert max(batch.step for _, batch in world.batches()) >= -(-last_us // SLIDE_US)
