"""What benches share whose workers the real scaler launches: the system, numbered tuples, and who judges the outputs.

The tuples of each slot are numbered, so its outputs, repeats dropped by name as every reader does, must count up
without a gap. Latency is from the log's time of an input to that of its output.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from prometheus_client.samples import Sample

from tests.bench.system import begun, samples
from tsunagi.local.fleet import Fleet
from tsunagi.runtime.columns import floats, pack_floats, pack_sensors
from tsunagi.runtime.log import RECOVERED, TUPLES, Record
from tsunagi.runtime.messages import VERSION, LogRecord, Recovered, TupleBatch
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.runtime.sensors import place, read_sensors
from tsunagi.runtime.settings import LOCAL, Settings
from tsunagi.system import processes
from tsunagi.system.topics import read_partition, tool_log

SENSORS_OF_SLOT = 5
TICK_S = 0.02
PATIENCE_S = 180.0
QUIET_S = 5.0
"""The outputs are over when none has come for so long."""


CONFIG = """\
state = "{work}/run"
sensors = "{work}/sensors.csv"
[kafka]
servers = "127.0.0.1:{port}"
[steps]
interval_s = 1.0
[slots]
count = {slots}
[query]
mode = "tuples"
operators = [{{ use = "select" }}]
[standby]
batch_size = {batch}
[recovery]
store = "{work}/models"
[spark]
checkpoint = "{work}/checkpoint"
[scaler]
boot_s = 60.0
"""


@contextlib.contextmanager
def running(work: Path, port: int, slots: int, scaler: str, batch: int = 100) -> Iterator[Settings]:
    """Start broker and scaler, which starts the workers; stop all of it in the end.

    Args:
        work: scratch directory.
        port: of the broker.
        scaler: the configuration from here on: keys of [scaler], and further tables.
        batch: B of the standbys, tuples.
    """

    def write(directory: Path) -> Path:
        rows = [f"s{n},edge-1,group-1," for n in range(slots * SENSORS_OF_SLOT)]
        table = "\n".join(["sensor,edge,group,threshold", *rows]) + "\n"
        (directory / "sensors.csv").write_text(table, encoding="utf-8")
        config = directory / "tsunagi.toml"
        text = CONFIG.format(work=directory, port=port, slots=slots, batch=batch)
        config.write_text(text + scaler, encoding="utf-8")
        return config

    with begun(work, write) as (system, config):
        processes.start(system.settings, config, "scaler", "scaler", ["scaler", "run"])
        yield system.settings


class Load(threading.Thread):
    """Writes numbered tuples to every slot's log, at a rate that may be changed.

    Attributes:
        rate: tuples/s of all slots together.
        sent: of each slot.
    """

    def __init__(self, settings: Settings, rate: float) -> None:
        super().__init__(name="load", daemon=True)
        self.rate = rate
        self.sent = [0] * settings.slots.count
        self.failed = 0
        self._settings = settings
        self._ended = threading.Event()

    def run(self) -> None:
        settings = self._settings
        table = read_sensors(settings.sensors)
        slot_of = place(table, settings.slots.count)
        producer = tool_log(settings, "load").producer()
        sensors = [np.flatnonzero(slot_of[: len(table)] == slot).tolist() for slot in range(settings.slots.count)]
        incarnation, owed, last = time.time_ns(), 0.0, time.monotonic()
        turn = 0
        while not self._ended.wait(TICK_S):
            now = time.monotonic()
            owed, last = owed + (now - last) * self.rate, now
            while owed >= SENSORS_OF_SLOT:
                owed -= SENSORS_OF_SLOT
                slot, turn = turn % settings.slots.count, turn + 1
                ids = sensors[slot]
                first = self.sent[slot]
                number = time.time_ns() // 1000
                batch = TupleBatch(
                    edge=table.sensors[ids[0]].edge,
                    incarnation=incarnation,
                    step=number,
                    event_time_us=number,
                    sensor=pack_sensors(ids),
                    value=pack_floats(np.arange(first, first + len(ids), dtype=np.float64)),
                    count=pack_sensors([1] * len(ids)),
                )
                record = LogRecord(version=VERSION, batch=batch).SerializeToString()
                producer.send(TUPLES, slot, batch.edge.encode(), record, self._delivered)
                self.sent[slot] += len(ids)
            producer.poll()
        producer.flush(30.0)
        producer.close()

    def _delivered(self, error: Exception | None, _offset: int) -> None:
        self.failed += error is not None

    def end(self) -> None:
        """Stop, and wait until the log has all."""
        self._ended.set()
        self.join()


class Watch:
    """The system as its heartbeats show it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fleet = Fleet(tool_log(settings, "bench"))

    def workers(self) -> Counter[str]:
        """Return how many workers live, by type."""
        self._fleet.update(0.2)
        return Counter(type_of(name) for name in self._fleet.fresh("worker"))

    def owners(self) -> dict[int, str]:
        """Return the owner of each slot."""
        found = {slot: self._fleet.of_slot(slot, "primary") for slot in range(self._settings.slots.count)}
        return {slot: item[0] for slot, item in found.items() if item is not None}

    def samples(self, node: str) -> list[Sample]:
        """Return what a node exports; raises OSError where it does not answer."""
        return samples(self._settings.metrics.host, self._fleet.beats[node].message.metrics_port)

    def whole(self, wanted: Mapping[str, int]) -> bool:
        """Return whether there are just these workers, and every slot has an owner and a ready secondary."""
        if self.workers() != Counter(wanted):
            return False
        owners = self.owners()
        return len(owners) == self._settings.slots.count and all(
            self._fleet.standby_ready(slot, owner) for slot, owner in owners.items()
        )

    def wait(self, wanted: Mapping[str, int]) -> float:
        """Wait until `whole`; return how long it took, seconds."""
        began = time.monotonic()
        while not self.whole(wanted):
            if time.monotonic() - began > PATIENCE_S:
                raise RuntimeError(f"not {dict(wanted)} after {PATIENCE_S:g} s, but {dict(self.workers())}")
        return time.monotonic() - began

    def close(self) -> None:
        """Let go of the connection."""
        self._fleet.close()


def type_of(name: str) -> str:
    """Return the type of a worker, by the name that the scaler gave it."""
    stem, _, _ = name.rpartition("-")
    return LOCAL if stem in {"", "worker"} else stem


def wait_outputs(settings: Settings, sent: list[int]) -> None:
    """Wait until the last tuples have come out, or nothing comes any more."""
    reader = tool_log(settings, "bench").reader()
    before, since = [0], time.monotonic()
    while time.monotonic() - since < QUIET_S:
        ends = [reader.range(RECOVERED, slot)[1] for slot in range(len(sent))]
        if ends != before:
            before, since = ends, time.monotonic()
        time.sleep(0.2)
    reader.close()


def judge(settings: Settings, sent: list[int]) -> tuple[dict[str, int], list[tuple[int, float]]]:
    """Read all outputs; return what is wrong with them, and (when, latency in seconds) of each."""
    log = tool_log(settings, "bench")
    found: Counter[str] = Counter()
    late: list[tuple[int, float]] = []
    for slot, total in enumerate(sent):
        counts, times = judge_slot(read_partition(log, RECOVERED, slot), total)
        for name, count in counts.items():
            found[name] += count
        late += times
    return dict(found), sorted(late)


def judge_slot(records: Sequence[Record], total: int) -> tuple[dict[str, int], list[tuple[int, float]]]:
    """Return the same of one slot, whose outputs must be 0, 1, ... total - 1."""
    late: list[tuple[int, float]] = []
    name, newest, reordered, repeats = NO_NAME, -1.0, 0, 0
    seen = np.zeros(total, dtype=np.int64)
    for record in records:
        for message in outputs_of(Recovered.FromString(record.value or b"")):
            own = Name(message.offset, message.index)
            if own <= name:
                repeats += 1
                continue
            name = own
            values = floats(message.mean)
            reordered += int((np.diff(values, prepend=newest) <= 0).sum())
            newest = max(newest, float(values.max()))
            np.add.at(seen, values.astype(np.int64), 1)
            late.append((record.appended_us, (record.appended_us - message.appended_us) / 1e6))
    found = {
        "lost": int((seen == 0).sum()),
        "duplicates": int((seen > 1).sum()),
        "reordered": reordered,
        "repeats_dropped": repeats,
        "tuples": total,
    }
    return found, late
