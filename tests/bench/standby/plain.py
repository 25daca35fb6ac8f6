"""Active standby and upstream backup as plain programs of their own, to compare semi-active standby with.

    python -m tests.bench.standby.plain as|ub --node NAME --primary NAME

Both watch the primary's heartbeats, and take over when they stop (A-SAS, section 2.1). Active standby reads the slot's
log all the time, processes it, and keeps the outputs that no Level-0-Ack has trimmed; upstream backup does nothing
before the primary's death, and then goes on from the newest Level-1-Ack. They share the operators with the gateway, and
nothing of its protocol: no epochs, no batches, no claims; they serve one slot, die once, and are good for nothing else.
The line `{"event": "takeover", ...}` says what a takeover took; the metrics what came over the network for standing by.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.runtime import metrics
from tsunagi.runtime.health import HealthServer
from tsunagi.runtime.heartbeat import Heartbeats
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import ACKS, CONTEXTS, HEARTBEATS, RECOVERED, TUPLES, Log, Position, Reader, Record
from tsunagi.runtime.loop import StopFlag
from tsunagi.runtime.messages import Ack, Context, Heartbeat, Level1Ack
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.runtime.settings import Settings, load
from tsunagi.slot.outputs import Output
from tsunagi.slot.slot import Slot

SLOT = 0
MAX_RECORDS = 500
WARM_S = 1.5
LOOK_S = 0.02


def no_model(sha256: str) -> Model:
    raise ModelError(f"{sha256}: the plain standbys know no models")


class Watch:
    """The primary's heartbeats, and the acknowledgements."""

    def __init__(self, log: Log, primary: str, detect_s: float) -> None:
        self.level0, self.level1 = 0, Level1Ack()
        self._primary = primary
        self._detect_s = detect_s
        self._heard_at: float | None = None
        self._reader = log.reader()
        ends = [(topic, self._reader.range(topic, 0)) for topic in (HEARTBEATS, ACKS)]
        self._reader.assign([Position(HEARTBEATS, 0, ends[0][1][1]), Position(ACKS, 0, ends[1][1][0])])

    def look(self, timeout_s: float) -> bool:
        """Take in what came; return whether the primary has died."""
        for record in self._reader.read(MAX_RECORDS, timeout_s):
            if record.topic == HEARTBEATS:
                if Heartbeat.FromString(record.value or b"").node == self._primary:
                    self._heard_at = time.monotonic()
            else:
                ack = Ack.FromString(record.value or b"")
                if ack.WhichOneof("body") == "level0":
                    self.level0 = max(self.level0, ack.level0.offset)
                elif ack.level1.offset > self.level1.offset:
                    self.level1 = ack.level1
        return self._heard_at is not None and time.monotonic() - self._heard_at > self._detect_s


class Standby:
    """What both have: the slot's state, and how outputs are written."""

    def __init__(self, log: Log) -> None:
        self.slot = Slot(SLOT, no_model)
        self.kept: deque[Output] = deque()
        self.reader: Reader = log.reader(wait_s=0.005, measured=True)
        self.ask: Reader = log.reader(measured=True)
        self._producer = log.producer()
        self._warm_up()

    def _warm_up(self) -> None:
        """A client answers for a topic that it has fetched from within milliseconds, for a fresh one after a second."""
        places = [(topic, *self.ask.range(topic, SLOT)) for topic in (TUPLES, CONTEXTS, RECOVERED)]
        self.reader.assign([Position(topic, SLOT, max(first, end - 1)) for topic, first, end in places])
        until = time.monotonic() + WARM_S
        while time.monotonic() < until:
            self.reader.read(MAX_RECORDS, 0.05)
        self.reader.assign([])

    def process(self, records: list[Record]) -> None:
        """Process records and keep what follows."""
        for record in records:
            if record.offset >= self.slot.position:
                self.kept.extend(self.slot.apply(record))

    def trim(self, offset: int) -> None:
        """Forget what the downstream has."""
        while self.kept and self.kept[0].name.offset < offset:
            self.kept.popleft()

    def read(self, topic: str, begin: int, end: int) -> list[Record]:
        """Read a range."""
        records: list[Record] = []
        self.reader.assign([Position(topic, SLOT, begin)])
        while (left := end - begin - len(records)) > 0:
            records += [item for item in self.reader.read(min(MAX_RECORDS, left), 0.1) if item.offset < end]
        self.reader.assign([])
        return records

    def tail(self) -> Name:
        """Return the last name in `recovered`."""
        _, end = self.ask.range(RECOVERED, SLOT)
        return unpack_key(self.read(RECOVERED, end - 1, end)[0].key)[2] if end else NO_NAME

    def send(self, tail: Name) -> None:
        """Write what is kept and not written yet."""
        generation = self.slot.register.generation
        for output in self.kept:
            if output.topic == RECOVERED and output.name > tail:
                key, value = output.encode(SLOT, generation)
                self._producer.send(RECOVERED, SLOT, key, value)
        self.kept.clear()
        self._producer.flush(10.0)

    def received(self) -> tuple[int, int]:
        """Return (bytes, requests) so far, at the socket."""
        found = [reader.traffic() for reader in (self.reader, self.ask)]
        return sum(item.received_bytes for item in found), sum(item.requests for item in found)


def active(standby: Standby, watch: Watch, stop: Callable[[], bool]) -> bool:
    """Follow the log until the primary dies; return whether it did."""
    first, _ = standby.ask.range(TUPLES, SLOT)
    standby.reader.assign([Position(TUPLES, SLOT, first)])
    while not stop():
        if watch.look(0.0):
            standby.reader.assign([])
            return True
        standby.process(standby.reader.read(MAX_RECORDS, LOOK_S))
        standby.trim(watch.level0)
    return False


def idle(standby: Standby, watch: Watch, stop: Callable[[], bool]) -> bool:
    """Do nothing until the primary dies; return whether it did."""
    while not stop():
        if watch.look(LOOK_S):
            return True
        standby.received()
    return False


def take_over(standby: Standby, watch: Watch, *, from_context: bool) -> dict[str, float]:
    """Reach the state that the primary had, and write what is missing; return what it took."""
    began = time.monotonic()
    _, end = standby.ask.range(TUPLES, SLOT)
    level1 = watch.level1
    if from_context and level1.offset:
        context = Context.FromString(
            standby.read(CONTEXTS, level1.context_offset, level1.context_offset + 1)[0].value or b""
        )
        standby.slot.restore(context)
    position = standby.slot.position
    standby.process(standby.read(TUPLES, position, end))
    processed = time.monotonic()
    standby.send(standby.tail())
    return {
        "promote_s": 0.0,
        "catch_up_s": round(processed - began, 5),
        "send_s": round(time.monotonic() - processed, 5),
        "records": end - position,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scheme", choices=("as", "ub"))
    parser.add_argument("--node", required=True)
    parser.add_argument("--primary", required=True)
    options = parser.parse_args()
    settings: Settings = load()
    log = KafkaLog(settings.kafka, client_id=options.node)
    standby, watch = Standby(log), Watch(log, options.primary, settings.standby.detect_s)
    counted = [0, 0]

    def fill(beat: Heartbeat) -> None:
        """Called each heartbeat: a good moment to export what came over the network."""
        del beat
        for place, (counter, now) in enumerate(
            zip((metrics.STANDBY_RECEIVED, metrics.STANDBY_REQUESTS), standby.received(), strict=True)
        ):
            counter.inc(now - counted[place])
            counted[place] = now

    health = HealthServer(settings.metrics.host, 0, lambda: (True, ""))
    beats = Heartbeats(log, options.node, "plain", settings.standby.heartbeat_s, fill)
    beats.metrics_host, beats.metrics_port = settings.metrics.host, health.port
    beats.start()
    with StopFlag() as stop:
        died = (active if options.scheme == "as" else idle)(standby, watch, stop.is_set)
        if died:
            took = take_over(standby, watch, from_context=options.scheme == "ub")
            sys.stdout.write(json.dumps({"event": "takeover", "reason": "silent", "slot": SLOT, **took}) + "\n")
            sys.stdout.flush()
        while not stop.is_set():
            time.sleep(LOOK_S)
    beats.close()
    health.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
