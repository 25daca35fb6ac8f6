"""The same worlds with keyed hashes and an attacker in them, who reads the whole log and has an edge's own key.

It forges what only gateways and other edges may write, and appends genuine records again, which access control would
keep it from reading. Nothing of it may change an output.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulation.edges import SimEdge, value
from tests.simulation.fleet import EDGES, SLOTS
from tests.simulation.nodes import Node
from tests.simulation.world import World
from tsunagi.recovery.model import Model
from tsunagi.replay.recompute import recompute
from tsunagi.runtime import log as topics
from tsunagi.runtime.auth import SignedLog, Verifier
from tsunagi.runtime.columns import floats, octets, pack_floats, pack_sensors, sensors
from tsunagi.runtime.keys import EDGE, Keys, derive
from tsunagi.runtime.log import Log, Producer, Record
from tsunagi.runtime.messages import (
    EXACT,
    UNMODELLED,
    VERSION,
    DeadLetter,
    EdgeOut,
    Heartbeat,
    LogRecord,
    Punctuation,
    Recovered,
    TupleBatch,
)
from tsunagi.runtime.names import Name
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.runtime.settings import SecuritySettings

MASTER = bytes(range(32))
MASTERS = Keys(masters=(MASTER,))
SEEDS = 6


class Attacked(World):
    """A world whose records are signed, or (`guarded` False) are not, with an attacker who is edge-1."""

    def __init__(self, seed: int, key_file: Path, *, guarded: bool = True) -> None:
        super().__init__(seed, operators=({"use": "recover"},))
        self.guarded = guarded
        self.draw = random.Random(seed + 7)
        self.attempts = 0
        if guarded:
            key_file.write_text(f"master {MASTER.hex()}\n")
            key_file.chmod(0o600)
            security = SecuritySettings(auth="hmac", key_file=str(key_file))
            self.settings = self.settings.model_copy(update={"security": security})
        me = self.log.client("attacker")
        own = Keys(edge="edge-1", edge_key=derive(MASTER, EDGE + "edge-1"))
        self._raw = me.producer(durable=False)
        self._signing = SignedLog(me, own).producer(durable=False)

    def signed(self, log: Log, keys: Keys = MASTERS) -> Log:
        return SignedLog(log, keys) if self.guarded else log

    def _boot(self, node: Node) -> None:
        client = node.client
        signed = self.signed(client)
        both: Any = _Both(client, signed)  # it crashes as the one, and speaks as the other
        node.client = both
        try:
            super()._boot(node)
        finally:
            node.client = client

    def _turn_edge(self, edge: SimEdge) -> None:
        if edge.producer is None and self.now >= edge.alive_from and not edge.paused:
            client = edge.client
            own = Keys(edge=edge.name, edge_key=derive(MASTER, EDGE + edge.name))
            both: Any = _Both(client, self.signed(client, own))
            edge.client = both
            try:
                super()._turn_edge(edge)
            finally:
                edge.client = client
        else:
            super()._turn_edge(edge)

    def forge(self) -> None:
        """Write one lie, with a hash by one's own key or none."""
        slot = self.draw.randrange(SLOTS)
        victim = f"edge-{self.draw.randint(2, EDGES)}"
        ids = self.edges[int(victim[-1]) - 1].sensors.get(slot, [])
        step = self.step_now + self.draw.randint(-1, 2)
        batch = TupleBatch(
            edge=victim,
            incarnation=1 << 62,
            step=step,
            event_time_us=step * self.settings.steps.slide_us,
            sensor=pack_sensors(ids),
            value=pack_floats([1e6] * len(ids)),
        )
        lie = self.draw.choice(
            [
                LogRecord(version=VERSION, edge_out=EdgeOut(epoch=1, edge=victim, from_step=step)),
                LogRecord(version=VERSION, punctuation=Punctuation(epoch=1, step=step + 3)),
                LogRecord(version=VERSION, batch=batch),
            ]
        )
        key = self.draw.choice([b"edge-1", victim.encode(), b"!gw-1"])
        self._send(self.draw.choice([self._raw, self._signing]), topics.TUPLES, slot, key, lie.SerializeToString())
        beat = Heartbeat(version=VERSION, node=victim, role="edge", incarnation=1 << 62, leaving=True, step=step)
        self._send(self._signing, topics.HEARTBEATS, 0, victim.encode(), beat.SerializeToString())

    def repeat(self) -> None:
        """Append a genuine record again, as it stands."""
        slot = self.draw.randrange(SLOTS)
        found = [record for record in self.log.records(topics.TUPLES, slot) if record.value]
        control = [record for record in found if (record.key or b"").startswith(b"!")]
        record = self.draw.choice(control if control and self.draw.random() < 0.7 else found)
        self._send(self._raw, topics.TUPLES, slot, record.key, record.value)

    def _send(self, producer: Producer, topic: str, partition: int, key: bytes | None, body: bytes | None) -> None:
        self.attempts += 1
        producer.send(topic, partition, key, body)
        producer.poll()

    def tuples(self, slot: int) -> list[Record]:
        """Return a slot's log as a verifying reader gives it."""
        records = self.log.records(topics.TUPLES, slot)
        if not self.guarded:
            return records
        signer = Verifier(MASTERS).signer
        return [
            Record(item.topic, item.partition, item.offset, item.appended_us, item.key, item.value, signer(item))
            for item in records
        ]

    def outputs(self, slot: int) -> dict[Name, Recovered]:
        found: dict[Name, Recovered] = {}
        for record in self.log.records(topics.RECOVERED, slot):
            for message in outputs_of(Recovered.FromString(record.value or b"")):
                found.setdefault(Name(message.offset, message.index), message)
        return found

    def differs_from_replay(self, slot: int) -> str:
        """Return "" if the outputs so far are those that the independent loop computes; the last are on their way."""
        written = {name: message.step for name, message in self.outputs(slot).items()}
        computed = {item.name: item.frame.step for item in recompute(self.tuples(slot), _no_model)}
        computed = {name: step for name, step in computed.items() if name <= max(written)}
        return "" if written == computed else f"slot {slot}: {sorted(written.items() ^ computed.items())}"

    def wrong(self, slot: int, first: int, last: int) -> list[str]:
        """Return what is not as the honest edges sent it, in the steps first..last."""
        ids = sorted(sensor for edge in self.edges for sensor in edge.sensors.get(slot, []))
        by_step = {message.step: message for message in self.outputs(slot).values()}
        found = []
        for step in range(first, last + 1):
            message = by_step.get(step)
            if message is None:
                found.append(f"slot {slot}, step {step}: no output")
            elif sensors(message.sensor).tolist() != ids:
                found.append(f"slot {slot}, step {step}: sensors are missing")
            elif not np.isin(octets(message.quality), (EXACT, UNMODELLED)).all() or not np.allclose(
                floats(message.mean), [value(sensor, step) for sensor in ids]
            ):
                found.append(f"slot {slot}, step {step}: other values")
        return found


class _Both:
    def __init__(self, client: object, signed: Log) -> None:
        self._client = client
        self.producer = signed.producer
        self.reader = signed.reader
        self.partitions = signed.partitions

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)


def attack(world: Attacked) -> tuple[int, int]:
    """Let an edge die and come back (so that there are control records to repeat), then attack; return the steps."""
    world.run(14.0)
    world.kill_edge(1, 2.5, repeats=False)
    world.run(6.0)
    first = world.step_now
    for _ in range(120):
        world.repeat()
        world.run(0.03)
        world.forge()
        world.run(0.03)
    last = world.step_now - 2
    world.run(3.0)
    return first, last


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_an_attack_changes_no_output(seed: int, tmp_path: Path) -> None:
    world = Attacked(seed, tmp_path / "key")
    first, last = attack(world)
    assert world.attempts > 200
    for slot in range(SLOTS):
        assert world.wrong(slot, first, last) == []
        assert world.differs_from_replay(slot) == ""
        letters = [_reason(record) for record in world.log.records(topics.DEAD_LETTERS)]
        assert letters.count("forged") > 20


def test_the_same_attack_works_where_nobody_signs(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    world = Attacked(1, tmp_path / "key", guarded=False)
    first, last = attack(world)
    assert any(world.wrong(slot, first, last) for slot in range(SLOTS))


@pytest.mark.parametrize("seed", [2, 3])
def test_workers_die_and_take_over_with_hashes_on(seed: int, tmp_path: Path) -> None:
    world = Attacked(seed, tmp_path / "key")
    world.run(14.0)
    owners = {slot: world.owner(slot) for slot in range(SLOTS)}
    assert all(owners.values())
    world.kill(owners[0])
    world.run(8.0)
    assert world.owner(0) not in ("", owners[0])
    for slot in range(SLOTS):
        assert world.differs_from_replay(slot) == ""


def _no_model(sha256: str) -> Model:
    raise AssertionError(f"no log of these names a model: {sha256}")


def _reason(record: Record) -> str:
    return DeadLetter.FromString(record.value or b"").reason
