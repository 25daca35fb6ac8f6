"""`tsunagi spark run`: the session, the query and signals."""

from __future__ import annotations

import logging
import os
import time

import structlog
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tsunagi.runtime import metrics
from tsunagi.runtime.auth import authenticated
from tsunagi.runtime.health import HealthServer
from tsunagi.runtime.heartbeat import Heartbeats
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RECOVERED, RESULTS, Log, LogError, OffsetLostError
from tsunagi.runtime.logging_setup import configure
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.messages import Heartbeat
from tsunagi.runtime.settings import ConfigError, Settings
from tsunagi.system.identity import belong
from tsunagi_spark.acknowledge import NODE
from tsunagi_spark.action import warm
from tsunagi_spark.checkpoint import Checkpoint, query_id
from tsunagi_spark.files import FilesThread
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.identity import reconcile
from tsunagi_spark.job import Job, StoppedError
from tsunagi_spark.limit import BatchTooLargeError
from tsunagi_spark.progress import Stages
from tsunagi_spark.session import source, start_session
from tsunagi_spark.standing import JobStanding
from tsunagi_spark.state import StateError, Store

_POLL_S = 0.2
"""Time between two looks at the query, the topics or the placement, in seconds."""
_LOOK_S = 1.0
"""Time between two looks at Spark's progress while the query runs, in seconds."""
_IDLE_S = 0.02
"""Time between two looks whether the query is idle and can be stopped, in seconds."""
_STOP_S = 30.0
"""Longest wait for the end of the running batch at a stop, in seconds."""
_TOPICS_S = 10.0
"""Longest wait until topics that have just been made are visible, in seconds."""


def run(settings: Settings) -> int:
    """Run the job until SIGTERM or SIGINT; return the exit code.

    Raises:
        ConfigError, SensorsError, LayoutError: the settings or the sensors table cannot be used.
        LogError: the broker does not answer, or a topic is missing or too narrow.
        StateError: the checkpoint is in use or damaged, or it cannot be written.
    """
    logger = configure("spark", level=settings.log_level, node=NODE)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    log = KafkaLog(settings.kafka, client_id="tsunagi-spark")
    signed = authenticated(log, settings)
    if settings.query.mode == "tuples":
        return stand_aside(settings, signed, logger)
    store = Store(settings.spark.checkpoint)

    with StopFlag() as stop:
        check_topics(log, settings)
        settings = log.with_slots(settings)
        try:
            lock = store.lock()
            store.prepare(settings.spark.cores)
        except (OSError, StateError) as error:
            raise CheckpointError(f"[spark] checkpoint = {settings.spark.checkpoint}: {error}") from error
        with lock:
            failure: Exception | None = None
            while not stop.is_set():
                standing = resume(store, settings, log, failure)
                try:
                    _serve(settings, signed, store, standing, stop)
                    break
                except BatchTooLargeError as error:
                    settings = with_smaller_batches(settings, store, error)
                    failure = None
                except (OffsetLostError, StreamingQueryException) as error:
                    logger.warning("the query ended; comparing its positions with the log", error=str(error))
                    failure = error
    return 0


def with_smaller_batches(settings: Settings, store: Store, error: BatchTooLargeError) -> Settings:
    """Drop the batch that was too large; return settings with fewer records a batch."""
    spark = settings.spark
    records = error.records(spark.max_bytes, spark.max_offsets)
    structlog.get_logger("tsunagi.spark").warning(
        "batch too large: the query begins anew with smaller ones",
        found=str(error),
        max_bytes=spark.max_bytes,
        max_offsets=records,
    )
    metrics.SPARK_CUT_BATCHES.inc()
    last = begin(store, settings).batch
    Checkpoint(spark.checkpoint, settings.kafka.prefix + RECOVERED).drop_planned(store, last)
    return settings.model_copy(update={"spark": spark.model_copy(update={"max_offsets": records})})


def resume(store: Store, settings: Settings, log: Log, failure: Exception | None) -> JobStanding:
    """Return where the job stands, and where it goes on if the log is not the one that it has read.

    Args:
        failure: the error that ended the query before.

    Raises:
        Exception: that error, if nothing is wrong with the log.
    """
    cores = settings.spark.cores
    checkpoint = Checkpoint(settings.spark.checkpoint, settings.kafka.prefix + RECOVERED)
    standing, faults = reconcile(log, store, checkpoint, begin(store, settings), cores)
    if failure is not None and not faults:
        raise failure
    for fault in faults:
        metrics.SPARK_LOG_FAULTS.labels(fault.topic).inc()
        structlog.get_logger("tsunagi.spark").error(
            "not the log that the job knows", topic=fault.topic, partition=fault.partition, found=fault.reason
        )
    return standing


def _serve(settings: Settings, log: Log, store: Store, standing: JobStanding, stop: StopFlag) -> None:
    """Run the query, with heartbeats and files, until it ends or the process must stop."""
    logger = structlog.get_logger("tsunagi.spark")
    state: dict[str, object] = {"ready": False, "reason": "starting"}
    job = Job(settings, log, store, stop.is_set, lambda: query_id(settings.spark.checkpoint))
    job.standing = standing

    def ready() -> tuple[bool, str]:
        return bool(state["ready"]), "; ".join(filter(None, [str(state["reason"]), *job.standing.faults[-1:]]))

    def fill(beat: Heartbeat) -> None:
        beat.step = max((mark.step for mark in job.standing.marks.values()), default=0)
        beat.spark.CopyFrom(job.beat)
        beat.table = job.table_serial
        beat.spark.fault = "".join(job.standing.faults[-1:])

    health = HealthServer(settings.metrics.host, settings.metrics.port, ready)
    beats = Heartbeats(log, NODE, "spark", settings.standby.heartbeat_s, fill)
    beats.metrics_host, beats.metrics_port = settings.metrics.advertised, health.port
    beats.start()
    files: FilesThread | None = None
    try:
        logger.info("starting", checkpoint=str(settings.spark.checkpoint), batch=standing.batch)
        belong(settings, log)
        job.placed()  # an unusable placement is reported before Spark starts
        if settings.results.files:
            files = FilesThread(log, settings)
        _run_query(settings, job, stop, state, files)
        beats.leaving = True
    finally:
        if files is not None:
            files.close()
        beats.close()
        job.close()
        health.close()
    logger.info("stopped", batch=job.standing.batch)


def stand_aside(settings: Settings, log: Log, logger: structlog.stdlib.BoundLogger) -> int:
    """Do nothing until the end: results of tuples are not ordered, but the same services run in both modes."""
    logger.info("nothing to order", mode=settings.query.mode, results=settings.kafka.prefix + RECOVERED)
    health = HealthServer(settings.metrics.host, settings.metrics.port, lambda: (True, ""))
    beats = Heartbeats(log, NODE, "spark", settings.standby.heartbeat_s, lambda _beat: None)
    beats.metrics_host, beats.metrics_port = settings.metrics.advertised, health.port
    beats.start()
    try:
        with StopFlag() as stop:
            while not stop.is_set():
                time.sleep(_POLL_S)
        beats.leaving = True
    finally:
        beats.close()
        health.close()
    return 0


class CheckpointError(ConfigError):
    """The checkpoint directory cannot be used."""


def check_topics(log: KafkaLog, settings: Settings, *, wait_s: float = _TOPICS_S) -> None:
    """Check the topics before Spark starts, since Spark would take longer and explain less.

    Args:
        wait_s: how long a topic that has just been made may take to be visible, in seconds.

    Raises:
        LogError: the broker does not answer, or a topic is missing or has too few partitions.
    """
    deadline_s = time.monotonic() + wait_s
    for topic, expected in ((RECOVERED, settings.slots.count), (RESULTS, settings.spark.cores)):
        while (found := log.partitions(topic)) == 0 and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        if found < expected:
            raise LogError(
                f"topic {settings.kafka.prefix}{topic}: found {found} partitions, expected at least {expected} "
                f"({'[slots] count' if topic == RECOVERED else '[spark] cores'})"
            )


def begin(store: Store, settings: Settings) -> JobStanding:
    """Return where the job stands: after the last whole batch.

    Files that are not whole are set aside (tsunagi_spark.checkpoint), and Spark's logs then end with that batch. If no
    batch is whole any more, everything is set aside and the job starts anew. State of another query (after the
    checkpoint was emptied) is removed.

    Raises:
        StateError: the state is missing, which no power cut explains: whoever took it away may bring it back.
    """
    cores = settings.spark.cores
    checkpoint = Checkpoint(settings.spark.checkpoint, settings.kafka.prefix + RECOVERED)
    checkpoint.mend_logs()
    owner = checkpoint.mend_owner(store)
    found = query_id(checkpoint.root)
    if owner != found or not (found or checkpoint.damaged):
        if found and checkpoint.batches("commits"):
            raise StateError(f"{store.root}: state is missing; restore it, or empty the checkpoint to start anew")
        store.clear()
        store.prepare(cores)
        return JobStanding()
    last = checkpoint.mend_state(store, cores)
    if last < 0:
        committed = max(checkpoint.batches("commits"), default=-1)
        if committed >= 0 and not checkpoint.damaged:
            store.check(f"driver/after-{committed}")
            for core in range(cores):
                store.check(f"core-{core}/state-{committed}")
            store.check(f"layouts/{JobStanding.of(store.read_json(f'driver/after-{committed}')).layout}")
        if committed >= 0:
            structlog.get_logger("tsunagi.spark").error(
                "no batch of the checkpoint is whole; starting anew from what recovered keeps", committed=committed
            )
        checkpoint.start_anew(store)  # also plans: the log may have been made anew since
        store.prepare(cores)
        return JobStanding()
    standing = JobStanding.of(store.read_json(f"driver/after-{last}"))
    slots = sorted({*range(settings.slots.count), *standing.marks})
    checkpoint.set_back(last, {slot: standing.marks.get(slot, SlotMark()).read_to for slot in slots})
    return standing


def wait_for_placement(job: Job, stop: StopFlag) -> bool:
    """Wait until the scaler has written a placement; return False if the job is asked to stop before."""
    logger = structlog.get_logger("tsunagi.spark")
    told = False
    while not job.placed():
        if not told:
            logger.info("waiting for a placement on plan")
            told = True
        if stop.wait(_POLL_S):
            return False
    return not stop.is_set()


def _run_query(
    settings: Settings, job: Job, stop: StopFlag, state: dict[str, object], files: FilesThread | None
) -> None:
    logger = structlog.get_logger("tsunagi.spark")
    session = start_session(settings)
    try:
        warm(session, settings)
        state["reason"] = "waiting for a placement on plan"
        if not wait_for_placement(job, stop):
            return
        writer = (
            job.reports(source(session, settings))
            .writeStream.foreachBatch(job)
            .option("checkpointLocation", str(settings.spark.checkpoint.absolute()))
            .queryName("tsunagi")
        )
        query = writer.start()
        state.update(ready=True, reason="")
        logger.info("query started", pid=os.getpid(), cores=settings.spark.cores)
        _watch(query, job, stop, files)
    finally:
        state.update(ready=False, reason="stopped")
        session.stop()


def _watch(query: StreamingQuery, job: Job, stop: StopFlag, files: FilesThread | None) -> None:
    """Wait for the end of the query, or end it between two batches."""
    stages, look_s = Stages(), 0.0
    try:
        while not stop.is_set():
            if not query.isActive:
                query.awaitTermination()  # raises the error that ended it
                return
            if files is not None:
                files.check()
            if time.monotonic() >= look_s:
                stages.look(query.lastProgress)
                look_s = time.monotonic() + _LOOK_S
            stop.wait(_POLL_S)
        # A batch that begins now raises StoppedError; while none begins, the query is idle and can be stopped.
        deadline_s = time.monotonic() + _STOP_S
        while query.isActive and time.monotonic() < deadline_s:
            if not query.status["isTriggerActive"]:
                query.stop()
                return
            time.sleep(_IDLE_S)
        query.stop()
    except StreamingQueryException:
        if isinstance(job.failure, StoppedError):
            return
        if job.failure is not None:
            raise job.failure from None
        raise
