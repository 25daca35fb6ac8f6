"""The process of an instance of a sink: set up, loop, close."""

from __future__ import annotations

from tsunagi.runtime import logging_setup
from tsunagi.runtime.acls import needed
from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.health import HealthServer
from tsunagi.runtime.heartbeat import Heartbeats
from tsunagi.runtime.kafka import KafkaLog, wait_for_topics
from tsunagi.runtime.log import Log
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.messages import Heartbeat, SinkBeat
from tsunagi.runtime.settings import Settings
from tsunagi.sink.feed import Names, RowFeed, feeds_for
from tsunagi.sink.make import make_sink, sink_named
from tsunagi.sink.membership import SinkGroup
from tsunagi.sink.runner import SinkRunner
from tsunagi.system.fleet_table import TableFollower
from tsunagi.system.identity import belong
from tsunagi.system.processes import enrol

BEAT_S = 1.0
"""Seconds between two heartbeats. Nobody waits for a sink, so that they may be far apart."""


def run(settings: Settings, name: str, node: str) -> int:
    """Run an instance of a sink until it is told to stop; return 0.

    Args:
        name: the name of the sink.
        node: the name of this instance, which no other living one has.

    Raises:
        ConfigError, SensorsError, SinkError: the settings, the sensors table or the target cannot be used.
        LogError: the log is lost for good.
    """
    logger = logging_setup.configure("sink", level=settings.log_level, node=node)
    wanted = sink_named(settings, name)
    sink = make_sink(settings, wanted)
    enrol(settings.state, node, "sink")
    stop = StopFlag()
    log = KafkaLog(settings.kafka, client_id=node)
    signed = authenticated(log, settings)
    found = wait_for_topics(log, settings, stop.is_set, logger, needed("sink"))
    if found is None:
        return 0
    settings = found
    belong(settings, signed)
    followed = TableFollower(signed, settings)

    def feeds() -> tuple[Names, list[RowFeed]]:
        return feeds_for(wanted.query, settings, followed.poll)

    membership = SinkGroup(settings.kafka, name, node, [feed.topic for feed in feeds()[1]])
    runner = SinkRunner(
        name,
        signed,
        membership,
        sink,
        feeds,
        logger,
        batch_rows=min(wanted.batch_rows, sink.most_rows),
        stopping=stop.is_set,
        wait=stop.wait,
    )
    health = HealthServer(settings.metrics.host, settings.metrics.port, lambda: (not runner.fault, runner.fault))
    heartbeats = _heartbeats(signed, node, name, runner)
    heartbeats.metrics_host, heartbeats.metrics_port = settings.metrics.advertised, health.port
    heartbeats.start()
    logger.info("started", sink=name, kind=wanted.kind, query=wanted.query, metrics_port=health.port)
    try:
        while not stop.is_set():
            runner.turn()
    finally:
        heartbeats.leaving = True
        heartbeats.close()
        runner.close()
        membership.close()
        followed.close()
        health.close()
        log.close()
    logger.info("stopped")
    return 0


def _heartbeats(log: Log, node: str, name: str, runner: SinkRunner) -> Heartbeats:
    def fill(beat: Heartbeat) -> None:
        beat.sink.CopyFrom(
            SinkBeat(sink=name, lag=runner.lag, rows=runner.rows, refused=runner.refused, fault=runner.fault[:500])
        )

    return Heartbeats(log, node, "sink", BEAT_S, fill)
