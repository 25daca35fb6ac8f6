"""The worker process: it sets up, runs the loop and closes. The host (tsunagi.worker.host) does the work."""

from __future__ import annotations

from tsunagi.runtime import logging_setup
from tsunagi.runtime.acls import needed
from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.clock import SystemClock
from tsunagi.runtime.collector import relax
from tsunagi.runtime.health import HealthServer, identity
from tsunagi.runtime.heartbeat import ReplacedError
from tsunagi.runtime.kafka import KafkaLog, wait_for_topics
from tsunagi.runtime.log import LogError
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.settings import LOCAL, ConfigError, Settings
from tsunagi.system.fleet_table import sensors_in_force
from tsunagi.system.identity import belong
from tsunagi.system.processes import enrol
from tsunagi.worker.host import ReplicaHost
from tsunagi.worker.lifelines import Lifelines


def run(settings: Settings, node: str, *, service: str = "gateway", kind: str = "") -> int:
    """Run a worker until it is told to stop.

    Args:
        node: the worker's name. No two processes that run at the same time may have the same one.
        service: the service's name in the process's log. Its role for each slot is decided by the slot's log.
        kind: the worker's type in [scaler.sizes], whose limit it keeps to; "" = local.

    Raises:
        ConfigError, SensorsError, ModelError: the settings, the sensors table or the model cannot be used.
        LogError: an output cannot be written, or the log does not fit any more, so that the process must end.
    """
    logger = logging_setup.configure(service, level=settings.log_level, node=node)
    enrol(settings.state, node, "worker")
    stop = StopFlag()
    log = KafkaLog(settings.kafka, client_id=node)
    signed = authenticated(log, settings)
    found = wait_for_topics(log, settings, stop.is_set, logger, needed("gateway"))
    if found is None:
        return 0
    settings = found
    belong(settings, signed)
    table = sensors_in_force(signed, settings)
    if node in table.edges:
        raise ConfigError(f"--node: found {node!r}, expected another name than that of an edge")
    lines = Lifelines() if settings.standby.speculate else None
    host = ReplicaHost(
        settings, node, table, signed, SystemClock(), logger, limit=limit_of(settings, kind), lifelines=lines
    )
    health = HealthServer(
        settings.metrics.host, settings.metrics.port, host.ready, alive=identity(node, host.incarnation)
    )
    host.heartbeats.metrics_host, host.heartbeats.metrics_port = settings.metrics.advertised, health.port
    host.start()
    relax()
    logger.info("started", metrics_port=health.port)
    died = True
    try:
        while not stop.is_set():
            host.step()
        died = False
    except (LogError, ReplacedError):  # no record is to blame
        died = False
        raise
    finally:
        host.close(died=died)
        if lines is not None:
            lines.close()
        health.close()
        log.close()
    logger.info("stopped")
    return 0


def limit_of(settings: Settings, kind: str) -> float | None:
    """Return the rate that a worker of this type keeps to, tuples/s; None = it works as fast as it can.

    Raises:
        ConfigError: there is no such type.
    """
    size = settings.scaler.sizes.get(kind or LOCAL)
    if kind not in {"", LOCAL} and size is None:
        raise ConfigError(f"--type: found {kind!r}, expected one of {', '.join(settings.scaler.sizes) or 'none'}")
    return None if size is None else size.limit
