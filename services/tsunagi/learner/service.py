"""The process of the learner: set up, loop, close."""

from __future__ import annotations

import os

from tsunagi.learner.learner import NODE, Learner
from tsunagi.recovery.errors import ModelError
from tsunagi.runtime import logging_setup
from tsunagi.runtime.acls import needed
from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.clock import SystemClock
from tsunagi.runtime.health import HealthServer
from tsunagi.runtime.kafka import KafkaLog, wait_for_topics
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.settings import Settings
from tsunagi.system.identity import belong
from tsunagi.system.processes import enrol

NICE = 10
"""How much the learner gives way to all that serves results on the same machine: a fit may take minutes of a core."""


def run(settings: Settings) -> int:
    """Run the learner until it is told to stop; return 0.

    Raises:
        ConfigError, SensorsError, ModelError: the settings or the sensors table cannot be used.
        LogError: the log is lost for good.
    """
    logger = logging_setup.configure("learner", level=settings.log_level, node=NODE)
    if settings.query.mode == "tuples" or not any(item.use == "recover" for item in settings.query.chain):
        raise ModelError(
            "learner: found [query] without steps or without recover, expected values that can be recovered"
        )
    enrol(settings.state, NODE, "learner")
    os.nice(NICE)
    stop = StopFlag()
    log = KafkaLog(settings.kafka, client_id=NODE)
    signed = authenticated(log, settings)
    found = wait_for_topics(log, settings, stop.is_set, logger, needed("learner"))
    if found is None:
        return 0
    settings = found
    belong(settings, signed)
    learner = Learner(settings, signed, SystemClock(), logger)
    health = HealthServer(settings.metrics.host, settings.metrics.port, lambda: (True, ""))
    learner.heartbeats.metrics_host, learner.heartbeats.metrics_port = settings.metrics.advertised, health.port
    learner.start()
    logger.info("started", metrics_port=health.port)
    try:
        while not stop.is_set():
            learner.step()
    finally:
        learner.close()
        health.close()
        log.close()
    logger.info("stopped")
    return 0
