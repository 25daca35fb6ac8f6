"""The process of the scaler: set up, loop, close."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tsunagi.runtime import logging_setup
from tsunagi.runtime.acls import needed
from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.clock import SystemClock
from tsunagi.runtime.health import HealthServer
from tsunagi.runtime.kafka import KafkaLog, wait_for_topics
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings
from tsunagi.scaler.placing import sized
from tsunagi.scaler.scaler import NODE, Scaler
from tsunagi.system.identity import belong


def run(settings: Settings) -> int:
    """Run the scaler until it is told to stop; return 0.

    Raises:
        ConfigError, SensorsError: the settings or the sensors table cannot be used.
        LogError: the log is lost for good.
        ReplacedError: another scaler was started later.
    """
    logger = logging_setup.configure("scaler", level=settings.log_level, node=NODE)
    stop = StopFlag()
    table = read_sensors(settings.sensors)
    log = KafkaLog(settings.kafka, client_id=NODE)
    signed = authenticated(log, settings)
    found = wait_for_topics(log, settings, stop.is_set, logger, needed("scaler"), sized=partial(sized, table=table))
    if found is None:
        return 0
    settings = found
    belong(settings, signed)
    named = os.environ.get(CONFIG_VARIABLE)
    thoughts = ThreadPoolExecutor(max_workers=1, thread_name_prefix="policy")
    scaler = Scaler(
        settings, table, signed, SystemClock(), logger, Path(named) if named else None, ponder=thoughts.submit
    )
    pages = {"/targets": lambda: ("application/json", scaler.outside.targets)}
    health = HealthServer(settings.metrics.host, settings.metrics.port, lambda: (True, ""), pages=pages)
    scaler.heartbeats.metrics_host, scaler.heartbeats.metrics_port = settings.metrics.advertised, health.port
    scaler.start()
    logger.info("started", metrics_port=health.port)
    try:
        while not stop.is_set():
            scaler.step()
    finally:
        thoughts.shutdown(wait=False, cancel_futures=True)
        scaler.close()
        health.close()
        log.close()
    logger.info("stopped")
    return 0
