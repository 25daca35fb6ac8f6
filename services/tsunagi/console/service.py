"""The process of the console: follows the log, and serves its pages."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import uvicorn

from tsunagi.console.access import read_users, session_secret
from tsunagi.console.app import make_app
from tsunagi.console.observer import Observer
from tsunagi.runtime import logging_setup
from tsunagi.runtime.acls import needed
from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.health import HealthServer
from tsunagi.runtime.kafka import KafkaLog, wait_for_topics
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.settings import ConsoleSettings, Settings
from tsunagi.system.fleet_table import sensors_in_force
from tsunagi.system.identity import belong
from tsunagi.system.processes import enrol

NODE = "console"
"""The name of all consoles. There may be several, each on an address of its own."""
POLL_S = 0.5
"""Time between two looks at whether the process is to end, in seconds."""
END_S = 1
"""Streams of browsers may take so long to end, in seconds."""


class ConsoleError(ValueError):
    """The console cannot listen on the address that [console] gives."""


def run(settings: Settings, *, chaos: bool = False) -> int:
    """Run the console until it is told to stop; return 0.

    Args:
        chaos: whether processes of this machine may be killed, to see what happens then.

    Raises:
        ConfigError, SensorsError, UsersError: the settings, the sensors table or the file of users cannot be used.
        ConsoleError: the address is in use, or is not one of this machine.
        LogError: the log is lost for good.
    """
    logger = logging_setup.configure("console", level=settings.log_level, node=NODE)
    wanted = settings.console
    users = Path(wanted.users) if wanted.users else None
    if users is not None:
        read_users(users)  # an error in it shows at once
    listening = listen(wanted)
    enrol(settings.state, NODE, "console")
    stop = StopFlag()
    log = KafkaLog(settings.kafka, client_id=NODE)
    signed = authenticated(log, settings)
    found = wait_for_topics(log, settings, stop.is_set, logger, needed("console"))
    if found is None:
        return 0
    settings = found
    belong(settings, signed)
    observer = Observer(settings, signed, sensors_in_force(signed, settings), logger)
    health = HealthServer(settings.metrics.host, settings.metrics.port, lambda: ready(observer))
    app = make_app(observer, users, session_secret(settings.state), names_of(wanted), stop.is_set, chaos=chaos)
    config = uvicorn.Config(
        app,
        log_config=None,
        proxy_headers=False,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=END_S,
    )
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="console-web", daemon=True)
    observer.start()
    serving.start()
    logger.info("started", address=address_of(wanted, listening), pid=os.getpid(), metrics_port=health.port)
    try:
        while not stop.wait(POLL_S) and serving.is_alive():
            pass
    finally:
        server.should_exit = True
        serving.join(timeout=END_S + 2.0)
        observer.close()
        health.close()
        log.close()
    logger.info("stopped")
    return 0


def ready(observer: Observer) -> tuple[bool, str]:
    """Return whether all is followed, and what is not."""
    faults = observer.faults()
    return not faults, "; ".join(f"{item['what']}: {item['fault']}" for item in faults)


def listen(wanted: ConsoleSettings) -> socket.socket:
    """Return the socket on which browsers are waited for.

    Raises:
        ConsoleError: the address is in use, or is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    try:
        return socket.create_server((wanted.host, wanted.port), family=family)
    except OSError as error:
        raise ConsoleError(
            f"[console] host = {wanted.host!r}, port = {wanted.port}: cannot listen there: {error.strerror}; "
            "choose another port, or 0 for any free one"
        ) from None


def address_of(wanted: ConsoleSettings, listening: socket.socket) -> str:
    """Return the address for a browser of this machine."""
    host = "127.0.0.1" if wanted.everywhere else wanted.host
    return f"http://[{host}]:{port_of(listening)}" if ":" in host else f"http://{host}:{port_of(listening)}"


def port_of(listening: socket.socket) -> int:
    """Return the port that was given, where the settings ask for any."""
    return int(listening.getsockname()[1])


def names_of(wanted: ConsoleSettings) -> list[str]:
    """Return the names by which browsers may ask for the console."""
    own = ["localhost", "127.0.0.1", "[::1]", socket.gethostname()]
    return [*own, *([] if wanted.everywhere else [wanted.host]), *wanted.names]
