"""`tsunagi scaler capacity`: measures beforehand how many tuples a second one worker of a type processes.

The configured operators of the largest slot run on made-up readings on one core of this machine, as the main loop of a
worker runs them: records are parsed and processed, and outputs are encoded. The Kafka clients of a real worker work in
threads of their own beside it, so it reaches a little less; how much less is learnt while the system runs
(`tsunagi.scaler.capacity`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tsunagi.query.form import Cells, TupleForm, to_columns
from tsunagi.query.values import Kind
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.log import TUPLES, Record
from tsunagi.runtime.messages import VERSION, LogRecord, ModelChange, Ownership, SlotSettings, TupleBatch
from tsunagi.runtime.moving import SensorSlots
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import LOCAL, ConfigError, Settings, SizeSettings
from tsunagi.scaler.placing import place_sensors
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import build_chain
from tsunagi.slot.parsing import parse
from tsunagi.slot.slot import Slot

CHUNK = 200
"""Records that are made at a time, before their processing is measured, so that making them does not count."""
ROUNDS = 5
"""Rounds that are measured. Their median is the result, so that one slow moment of the machine does not count."""
FIRST = 1000
"""First step of the made-up readings; any large number would do."""
GENERATION = 1
"""Generation of the made-up log, which has only one."""
_SHA256 = "benchmark"
"""Name of the model in the made-up log, where a real log has a SHA-256."""


def measure(settings: Settings, kind: str, seconds: float, tell: Callable[[str], None]) -> float:
    """Return the tuples/s of one worker of a type: the median of `ROUNDS`, at most what the type's size allows.

    Args:
        kind: a type of `[scaler.sizes]`, or "local".
        seconds: how long to measure, all rounds together.

    Raises:
        ConfigError: there is no such type.
        SensorsError, ModelError, OperatorError: the configured operators cannot be made.
    """
    size = settings.scaler.sizes.get(kind)
    if size is None and kind != LOCAL:
        known = ", ".join(sorted({LOCAL, *settings.scaler.sizes}))
        raise ConfigError(f"--type: found {kind!r}, expected one of {known} ([scaler.sizes])")
    found = []
    feed = _Feed(settings, read_sensors(settings.sensors))
    tell(f"slot {feed.config.slot}: {len(feed.config.sensors)} sensors, {settings.query.mode}")
    feed.run(seconds / ROUNDS)  # fills caches and lets the filter take its first step
    for number in range(ROUNDS):
        found.append(feed.run(seconds / ROUNDS))
        tell(f"{number + 1} of {ROUNDS}: {found[-1]:,.0f} tuples/s on one core")
    rate = float(np.median(found))
    return limited(rate, size or SizeSettings())


def limited(rate: float, size: SizeSettings) -> float:
    """Return how much of a core's rate a size allows: the main loop is one thread, so a second core adds nothing."""
    return min(rate * min(1.0, size.cpus), size.limit or float("inf"))


_VALUES = 1000
"""How many different values the columns of tuples have."""
_TEXT_BYTES = 100
"""Length of their texts."""


class _Feed:
    """A slot, and an endless log for it."""

    def __init__(self, settings: Settings, table: SensorTable) -> None:
        placed = place_sensors(settings, table)
        largest = int(np.bincount(placed, minlength=settings.slots.count).argmax())
        self.config = SlotConfig.make(
            settings, table, SensorSlots.fixed(placed), largest, statements=_statements(settings)
        )
        file = settings.recovery.model
        model = Model.load(Path(file)) if file and settings.query.mode == "steps" else None
        stream = build_chain(self.config, None).stream
        self._form = None if stream is None or not stream.typed else TupleForm("", stream.kinds)
        self._slot = Slot(largest, lambda _sha256: _known(model))
        self._draw = np.random.default_rng(0)
        self._offset = 0
        edges = dict.fromkeys(self.config.edges)
        self._of_edge = {
            edge: [n for n, own in zip(self.config.sensors, self.config.edges, strict=True) if own == edge]
            for edge in edges
        }
        self._step = FIRST
        head = [
            LogRecord(ownership=Ownership(epoch=1, node="n", generation=GENERATION, first_step=FIRST)),
            LogRecord(settings=SlotSettings(epoch=1, hash=self.config.hash, text=self.config.text())),
        ]
        if model is not None:
            head.append(LogRecord(model=ModelChange(epoch=1, sha256=_SHA256)))
        for message in head:
            self._slot.apply(self._record(message))

    def run(self, seconds: float) -> float:
        """Process readings for `seconds` of processing time; return the tuples/s."""
        spent, tuples = 0.0, 0
        while spent < seconds:
            records = list(self._records(CHUNK))
            began = time.perf_counter()
            items = [(record, parse(record)) for record in records]
            place = 0
            while place < len(items):
                outputs, done = self._slot.apply_run(iter(items[place:]))
                place += done
                for output in outputs:
                    output.encode(self._slot.slot, GENERATION)
            spent += time.perf_counter() - began
            tuples += sum(len(item[0].batch.value) >> 3 for _, item in items if item[0] is not None)
        return tuples / spent

    def _records(self, count: int) -> Iterator[Record]:
        slide_us = self.config.slide_us
        time_us = 1 if self.config.mode == "tuples" else slide_us
        for _ in range(-(-count // len(self._of_edge))):
            for edge, own in self._of_edge.items():
                # An edge sends tuples of several columns one by one.
                sensors = own if self._form is None else [int(self._draw.choice(own))]
                batch = TupleBatch(
                    edge=edge,
                    incarnation=1,
                    step=self._step,
                    event_time_us=self._step * time_us,
                    sensor=pack_sensors(sensors),
                    value=pack_floats(self._draw.standard_normal(len(sensors))),
                    count=pack_sensors([1] * len(sensors)),
                )
                if self._form is not None:
                    batch.column.extend(to_columns(self._cells(self._form), self._form))
                yield self._record(LogRecord(batch=batch))
            self._step += 1

    def _cells(self, form: TupleForm) -> Cells:
        """Return the values of one tuple."""
        number = int(self._draw.integers(_VALUES))
        of_kind = {
            Kind.DOUBLE: float(number),
            Kind.BIGINT: number,
            Kind.BOOLEAN: number % 2 == 0,
            Kind.TEXT: f"{number} ".ljust(_TEXT_BYTES, "."),
            Kind.TIMESTAMP: number,
        }
        return {name: of_kind[kind] for name, kind in form.kinds.items()}

    def _record(self, message: LogRecord) -> Record:
        message.version = VERSION
        offset, self._offset = self._offset, self._offset + 1
        # The append time is never ahead of the log's clock, and never later than a slot waits for.
        appended_us = self._step * (1 if self.config.mode == "tuples" else self.config.slide_us)
        return Record(TUPLES, self._slot.slot, offset, appended_us, b"", message.SerializeToString())


def _statements(settings: Settings) -> tuple[str, ...]:
    """Return the statements of `[query] files` that slots run."""
    if settings.query.mode != "tuples" or not settings.query.files:
        return ()
    from tsunagi.slot.stream import Statements  # noqa: PLC0415 - CQL's parser, which few need

    return Statements(settings).texts({})[0]


def _known(model: Model | None) -> Model:
    assert model is not None  # noqa: S101 - the log names a model only if there is one
    return model
