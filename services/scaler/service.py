"""The scaler process: set up, loop, close."""

from __future__ import annotations

import os
from pathlib import Path

from services.runtime import logs
from services.runtime.acls import needed
from services.runtime.auth import authenticated
from services.runtime.clock import SystemClock
from services.runtime.health import HealthServer
from services.runtime.kafka import KafkaLog, wait_for_topics
from services.runtime.loop import StopFlag
from services.runtime.sensors import read_sensors
from services.runtime.settings import CONFIG_VARIABLE, Settings
from services.scaler.scaler import NODE, Scaler


def run(settings: Settings) -> int:
    """Run the scaler until it is told to stop.

    Raises:
        ConfigError, SensorsError: what it was given cannot be used.
        LogError: the log is lost for good.
    """
    logger = logs.configure("scaler", node=NODE)
    stop = StopFlag()
    table = read_sensors(settings.sensors)
    log = KafkaLog(settings.kafka, client_id=NODE)
    signed = authenticated(log, settings)
    if not wait_for_topics(log, settings, stop.is_set, logger, needed("scaler")):
        return 0
    named = os.environ.get(CONFIG_VARIABLE)
    scaler = Scaler(settings, table, signed, SystemClock(), logger, Path(named) if named else None)
    pages = {"/targets": lambda: ("application/json", scaler.outside.targets)}
    health = HealthServer(settings.metrics.host, settings.metrics.port, lambda: (True, ""), pages=pages)
    scaler.heartbeats.metrics_host, scaler.heartbeats.metrics_port = settings.metrics.advertised, health.port
    scaler.start()
    logger.info("started", metrics_port=health.port)
    try:
        while not stop.is_set():
            scaler.step()
    finally:
        scaler.close()
        health.close()
        log.close()
    logger.info("stopped")
    return 0
