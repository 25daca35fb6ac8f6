"""An edge's process: the loop of `EdgeService` with its heartbeats, its page of health, and its end."""

from __future__ import annotations

import time
from contextlib import closing

from tsunagi.edge.service import SPOOL_S, EdgeService
from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.clock import Clock, SystemClock
from tsunagi.runtime.health import HealthServer
from tsunagi.runtime.heartbeat import Heartbeats, ReplacedError
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import Log
from tsunagi.runtime.logging_setup import configure
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.settings import Settings


def run(
    settings: Settings,
    edge: str,
    clock_offset_s: float = 0.0,
    log: Log | None = None,
    clock: Clock | None = None,
) -> int:
    """Run an edge until its source ends or a signal comes; return 0.

    Raises:
        ConfigError, SensorsError, SourceError: the settings, the sensors table or the source cannot be used.
        LogError: a record can never be delivered.
    """
    logger = configure("edge", level=settings.log_level, edge=edge)
    clock = clock or SystemClock()
    log = authenticated(log or KafkaLog(settings.kafka, client_id=edge), settings, edge=edge)
    body = EdgeService(settings, edge, log, clock, logger, clock_offset_s=clock_offset_s, incarnation=time.time_ns())
    interval_s = settings.standby.edge_heartbeat_s
    beats = Heartbeats(log, edge, "edge", interval_s, body.fill, incarnation=body.incarnation, routes=body.routes)
    with StopFlag() as stop, closing(HealthServer(settings.metrics.host, settings.metrics.port, body.ready)) as health:
        beats.metrics_host, beats.metrics_port = settings.metrics.advertised, health.port
        beats.start()
        replaced = False
        try:
            while not stop.is_set() and not body.done:
                wait_s = body.step()
                if wait_s > 0:
                    body.publisher.poll(wait_s)
            logger.info("source finished" if body.done else "stopped", step=body.publisher.last_step)
        except ReplacedError:
            replaced = True
            raise
        finally:
            try:
                body.close(0.0 if replaced else SPOOL_S)  # the newer process waits for this one's end
            finally:
                beats.leaving = not replaced  # the edge lives on in the newer process
                beats.close()
    return 0
