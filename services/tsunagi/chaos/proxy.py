"""Delays or drops the packets of one container's Kafka connections, by a TCP proxy and packet filter rules.

It runs in a helper container that shares the target's network and may administer it. It needs only Python's standard
library:

    python3 proxy.py client|server delay MILLISECONDS JITTER SECONDS
    python3 proxy.py client|server loss SHARE SECONDS
    python3 proxy.py clean

`client` disturbs the connections that the container opens to a broker, `server` those that a broker accepts. Kafka's
clients follow the addresses that brokers advertise. So the packet filter redirects connections wherever they go, and
resets those that were open before. When this program ends (by time, signal or error), it removes the rules. If it is
killed by SIGKILL, `clean` removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

PORTS = os.environ.get("TSUNAGI_CHAOS_PORTS", "9092,19092")
"""The ports on which brokers listen. The default is that of the compose files: 9092 is for the other containers, 19092
for clients outside."""

PROXY_PORT = 29092
"""The port on which the proxy listens. No broker of the compose files uses it."""
PROXY_GROUP = 10099
"""The group of the proxy's process, which nobody else has. The rules leave the connections of this group alone, or the
proxy would be redirected to itself. A group serves better than a user, because perhaps only root may run Python."""

CHAIN = "TSUNAGI-CHAOS"
"""The names of the chains of rules begin with this, so that `clean` finds them."""
_ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST of linux/netfilter_ipv4.h
_ENDING = (signal.SIGTERM, signal.SIGINT)
"""The signals by which this program is asked to end."""
_CHUNK_BYTES = 65_536
"""Most bytes that the proxy reads at once from a connection."""
_MOST_CHUNKS = 64
"""Most chunks of one direction that the proxy holds back. Then it stops reading, so its memory has a limit."""
_RESET = struct.pack("ii", 1, 0)
"""The value of SO_LINGER that makes closing a socket reset its connection."""
_HOOKS = (("nat", "OUTPUT"), ("nat", "PREROUTING"), ("filter", "OUTPUT"), ("filter", "INPUT"))
"""The tables and built-in chains of iptables into which `rules` may put a rule. `clean` looks at all of them."""


def rules(side: str, kind: str, share: float) -> list[tuple[str, str, list[str]]]:
    """Return the rules of a fault, each as (table, built-in chain, arguments of iptables).

    Args:
        side: client | server.
        kind: delay | loss.
        share: the share of packets that are dropped, for loss.
    """
    to_broker = ["-p", "tcp", "-m", "multiport", "--dports", PORTS]
    from_broker = ["-p", "tcp", "-m", "multiport", "--sports", PORTS]
    if kind == "loss":
        drop = ["-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"]
        away, back = (to_broker, from_broker) if side == "client" else (from_broker, to_broker)
        return [("filter", "OUTPUT", [*away, *drop]), ("filter", "INPUT", [*back, *drop])]
    redirect = ["-j", "REDIRECT", "--to-ports", str(PROXY_PORT)]
    reset = ["-j", "REJECT", "--reject-with", "tcp-reset"]
    if side == "client":
        others = ["-m", "owner", "!", "--gid-owner", str(PROXY_GROUP)]
        return [
            ("nat", "OUTPUT", [*to_broker, *others, *redirect]),
            ("filter", "OUTPUT", [*to_broker, *others, *reset]),
        ]
    outside = ["!", "-i", "lo"]
    return [
        ("nat", "PREROUTING", [*outside, *to_broker, *redirect]),
        ("filter", "INPUT", [*outside, *to_broker, *reset]),
    ]


def _iptables(table: str, *arguments: str, check: bool = True) -> bool:
    done = subprocess.run(
        ["/usr/sbin/iptables", "-w", "5", "-t", table, *arguments], capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"iptables -t {table} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.returncode == 0


def clean() -> None:
    """Remove every rule that this program has set, if there are any.

    Raises:
        RuntimeError: a rule cannot be removed.
    """
    for table, hook in _HOOKS:
        name = f"{CHAIN}-{hook}"
        while _iptables(table, "-D", hook, "-j", name, check=False):
            pass
        _iptables(table, "-F", name, check=False)
        _iptables(table, "-X", name, check=False)
        if _iptables(table, "-S", name, check=False):
            raise RuntimeError(f"the rules {name} of table {table} cannot be removed")


@contextlib.contextmanager
def ruled(side: str, kind: str, share: float) -> Iterator[None]:
    """Set the rules, and remove them when the block ends."""
    clean()
    try:
        for table, hook, rule in rules(side, kind, share):
            name = f"{CHAIN}-{hook}"
            _iptables(table, "-N", name)
            _iptables(table, "-A", name, *rule)
            _iptables(table, "-I", hook, "-j", name)
        yield
    finally:
        clean()


class Delay:
    """Holds the chunks of connections back, in order, each for a random time around a fixed one.

    Args:
        milliseconds: the fixed time.
        jitter_ms: how far the time of a chunk may be from it, in milliseconds.
    """

    def __init__(self, milliseconds: float, jitter_ms: float) -> None:
        self._low, self._high = max(0.0, milliseconds - jitter_ms) / 1e3, (milliseconds + jitter_ms) / 1e3

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection to its original destination, with the delay in both directions."""
        taken: socket.socket = writer.get_extra_info("socket")
        try:
            where = taken.getsockopt(socket.SOL_IP, _ORIGINAL_DESTINATION, 16)
            port, address = struct.unpack_from("!2xH4s", where)
            there, to_there = await asyncio.open_connection(socket.inet_ntoa(address), port)
        except OSError:
            writer.close()
            return
        ways = [asyncio.ensure_future(self._way(reader, to_there)), asyncio.ensure_future(self._way(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, to_there):
                with contextlib.suppress(OSError):
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.transport.abort()

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST_CHUNKS)
        reading = asyncio.ensure_future(self._read(reader, queue))
        try:
            while True:
                due, chunk = await queue.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()

    async def _read(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = await reader.read(_CHUNK_BYTES)
            except OSError:
                chunk = b""
            await queue.put((time.monotonic() + random.uniform(self._low, self._high), chunk))


def proxy(milliseconds: float, jitter_ms: float) -> None:
    """Serve connections until this process is killed."""

    async def run() -> None:
        server = await asyncio.start_server(Delay(milliseconds, jitter_ms).serve, "0.0.0.0", PROXY_PORT)  # noqa: S104
        async with server:
            sys.stdout.write("listening\n")
            sys.stdout.flush()
            await server.serve_forever()

    asyncio.run(run())


def main(arguments: list[str]) -> int:
    """Do what the command line says, and return the exit code."""
    if arguments == ["clean"]:
        clean()
        return 0
    if arguments[:1] == ["serve"]:
        proxy(float(arguments[1]), float(arguments[2]))
        return 0
    side, kind, *numbers = arguments
    # The signals are blocked and waited for, because a signal must not interrupt the removal of the rules.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    child = None
    try:
        if kind == "delay":
            child = subprocess.Popen(
                [sys.executable, __file__, "serve", numbers[0], numbers[1]],
                group=PROXY_GROUP,
                stdout=subprocess.PIPE,
                text=True,
            )
            if child.stdout is None or child.stdout.readline() != "listening\n":
                raise RuntimeError("the proxy does not listen")
        with ruled(side, kind, float(numbers[0]) if kind == "loss" else 0.0):
            sys.stdout.write(f"set {time.time_ns() // 1000}\n")
            sys.stdout.flush()
            signal.sigtimedwait(_ENDING, float(numbers[-1]))
    finally:
        if child is not None:
            child.kill()
            child.wait()
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
