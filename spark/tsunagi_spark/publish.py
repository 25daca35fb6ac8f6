"""What a task of Spark appends to Kafka, in order and without gaps.

The name of a block is data: (query, group, step). Its bytes depend on data alone too. So a task that runs again sends
the same blocks under the same names, and a reader that drops repeats by name needs no transaction.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tsunagi.query.results import json_lines
from tsunagi.runtime.columns import floats, octets, sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import Log, LogError, Producer
from tsunagi.runtime.messages import QUALITY_NAMES, ResultBlock
from tsunagi.runtime.results import is_of_query
from tsunagi.runtime.settings import KafkaSettings
from tsunagi_spark.layout import Layout

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Moment from which event times are counted."""
_WINDOW = ("sum", "minimum", "maximum", "sum_sd", "extreme_sd")
"""The columns of a window aggregate in JSON rows."""
_RUN = 64
"""Records of a partition that are handed to the producer at once."""
_FULL_WAIT_S = 0.05
"""Pause while the producer's queue is full, in seconds; deliveries are handled meanwhile."""
_FLUSH_S = 1.0
"""Longest single wait for deliveries, in seconds; the wait is repeated until everything is delivered."""


class ResultPublisher:
    """Appends records with one producer; a delivery error stops the batch.

    Records of one partition are handed over some at a time, which costs a third of one by one.

    Attributes:
        bytes: of all records so far.
    """

    def __init__(self, log: Log) -> None:
        self._producer: Producer = log.producer()
        self._errors: list[LogError] = []
        self._waiting: dict[tuple[str, int], list[tuple[bytes, bytes]]] = {}
        self.bytes = 0

    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """Queue a record; wait while the queue is full.

        Raises:
            LogError: an earlier record could not be delivered.
        """
        run = self._waiting.setdefault((topic, partition), [])
        run.append((key, value))
        self.bytes += len(value)
        if len(run) >= _RUN:
            self._hand_over(topic, partition)

    def _hand_over(self, topic: str, partition: int) -> None:
        run = self._waiting.pop((topic, partition))
        while True:
            run = run[self._producer.send_run(topic, partition, run, self._delivered) :]
            if not run:
                break
            self._producer.poll(_FULL_WAIT_S)
            self._check()
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until the log has every record, as long as it takes: without them the job could not go on.

        Raises:
            LogError: a record could not be delivered.
        """
        for topic, partition in list(self._waiting):
            self._hand_over(topic, partition)
        while self._producer.flush(_FLUSH_S):
            self._check()
        self._check()

    def close(self) -> None:
        """Drop the queued records."""
        self._waiting.clear()
        self._producer.close()

    def _delivered(self, error: LogError | None, offset: int) -> None:
        if error is not None:
            self._errors.append(error)

    def _check(self) -> None:
        if self._errors:
            raise LogError(f"results could not be delivered: {self._errors[0]}")


_made: dict[str, ResultPublisher] = {}


def publisher(settings: KafkaSettings) -> ResultPublisher:
    """Return this process's publisher: Spark's Python workers outlive a batch, and a producer takes time to make."""
    key = settings.model_dump_json()
    if key not in _made:
        _made[key] = ResultPublisher(KafkaLog(settings, client_id="tsunagi-spark-core"))
    return _made[key]


def forget(settings: KafkaSettings) -> None:
    """Drop this process's publisher after an error: its queued records must not be sent later."""
    found = _made.pop(settings.model_dump_json(), None)
    if found is not None:
        found.close()


class Sending:
    """The process's publisher as a context: flushed at the end, dropped after an error."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka

    def __enter__(self) -> ResultPublisher:
        return publisher(self._kafka)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            forget(self._kafka)
            return
        try:
            publisher(self._kafka).flush()
        except BaseException:
            forget(self._kafka)
            raise


def block_key(block: ResultBlock) -> bytes:
    """Return the key of a block, `query/group/step`, or of a part, `query/group/step/PofN`."""
    part = f"/{block.part}of{block.parts}" if block.part else ""
    return f"{block.query}/{block.group}/{block.step}{part}".encode()


def json_rows(block: ResultBlock, layout: Layout) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of each row, as in `docs/howto/results.md`; NaN and infinity become null."""
    time_text = _iso(block.event_time_us)
    columns = zip(
        sensors(block.sensor).tolist(),
        floats(block.mean).tolist(),
        floats(block.sd).tolist(),
        octets(block.quality).tolist(),
        floats(block.bound).tolist(),
        sensors(block.q1).tolist(),
        sensors(block.q2).tolist(),
        floats(block.q3).tolist(),
        strict=True,
    )
    window = block.window if block.HasField("window") else None
    extra = {} if window is None else {name: floats(getattr(window, name)).tolist() for name in _WINDOW}
    for number, (sensor, mean, sd, quality, bound, q1, q2, q3) in enumerate(columns):
        whole = sensor >= len(layout)
        name = "*" if whole else layout.names[sensor]
        row: dict[str, Any] = {
            "version": block.version,
            "query": block.query,
            "group": block.group,
            "step": block.step,
            "time": time_text,
            "time_us": block.event_time_us,
            "appended_us": block.appended_us,
            "sensor": name,
            "id": sensor,
            "unit": "" if whole else layout.units[sensor],
            "value": _finite(mean),
            "sd": _finite(sd),
            "quality": QUALITY_NAMES[quality] if quality < len(QUALITY_NAMES) else str(quality),
            "bound": _finite(bound),
            "q1": q1,
            "q2": q2,
            "q3": _finite(q3),
        }
        if window is not None:
            row |= {"range_us": window.length_us} | {key: _finite(values[number]) for key, values in extra.items()}
        if block.part:
            row |= {"part": block.part, "parts": block.parts}
        yield f"{block.query}/{block.group}/{block.step}/{name}".encode(), json.dumps(row, ensure_ascii=False).encode()


def messages(block: ResultBlock, layout: Layout, form: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of what is sent for a block; `form` is `blocks` or `json`."""
    if form == "json" and is_of_query(block):
        yield from json_lines(block)
    elif form == "json":
        yield from json_rows(block, layout)
    else:
        yield block_key(block), block.SerializeToString(deterministic=True)


class Stopwatch:
    """Measures where the time of a task goes, in seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the last lap to `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _iso(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds")
