"""What must hold after any schedule, in the classes of Jepsen: nothing lost, doubled, reordered or invented.

The log is the truth. Running a slot over its whole log once, in one go, tells which outputs follow from it; what stands in
`recovered`, with repeats dropped by name as every reader does, must be exactly that.
"""

from __future__ import annotations

from services.gateway.slot import Slot, parse
from services.runtime import log as topics
from services.runtime.messages import Ack, LogRecord, Recovered
from services.runtime.names import NO_NAME, Name, unpack_key
from services.standby.ownership import Register
from tests.simulation.world import SLOTS, World


def expected(world: World, slot: int) -> tuple[Slot, dict[tuple[str, Name], bytes]]:
    """Compute a slot's outputs from its log: (state at the end, (topic, name) -> value)."""
    records = world.log.records(topics.TUPLES, slot)
    scan = Register()
    for record in records:
        message, _, _ = parse(record)
        if message is not None:
            scan.read(record.offset, message)
    state = Slot(slot, lambda sha: (_ for _ in ()).throw(AssertionError(sha)))
    state.register.quarantined = set(scan.quarantined)
    outputs = {}
    for record in records:
        for output in state.apply(record):
            outputs[output.topic, output.name] = output.encode(slot, state.register.generation)[1]
    return state, outputs


def check(world: World) -> list[str]:
    """Return what does not hold; empty = all is well."""
    wrong: list[str] = []
    for slot in range(SLOTS):
        state, outputs = expected(world, slot)
        wrong += _recovered(world, slot, outputs)
        wrong += _side_topics(world, slot, outputs)
        wrong += _acks(world, slot)
        wrong += _progress(world, slot, state)
        wrong += _edges(world, slot)
    return wrong


def _recovered(world: World, slot: int, outputs: dict[tuple[str, Name], bytes]) -> list[str]:
    wrong = []
    wanted = [(name, value) for (topic, name), value in outputs.items() if topic == topics.RECOVERED]
    seen: list[tuple[Name, bytes]] = []
    last = NO_NAME
    for record in world.log.records(topics.RECOVERED, slot):
        _, _, name = unpack_key(record.key)
        value = record.value or b""
        if name > last:
            seen.append((name, value))
            last = name
        elif outputs.get((topics.RECOVERED, name)) != value:
            wrong.append(f"slot {slot}: two outputs of one name {name} differ")
    missing = [name for name, _ in wanted if name not in {n for n, _ in seen}]
    # What follows from the very last records may still be on its way.
    fresh = {name for name, _ in wanted[-4:]}
    lost = [name for name in missing if name not in fresh]
    if lost:
        wrong.append(f"slot {slot}: {len(lost)} outputs lost, first {lost[0]}")
    table = dict(wanted)
    for name, value in seen:
        if name not in table:
            wrong.append(f"slot {slot}: invented output {name}, step {Recovered.FromString(value).step}")
        elif table[name] != value:
            wrong.append(f"slot {slot}: output {name} differs from what its log says")
    steps = [Recovered.FromString(value).step for _, value in seen]
    if steps != sorted(set(steps)):
        wrong.append(f"slot {slot}: steps doubled or out of order")
    return wrong[:5]


def _side_topics(world: World, slot: int, outputs: dict[tuple[str, Name], bytes]) -> list[str]:
    wrong = []
    for side in (topics.LATE, topics.DEAD_LETTERS):
        found = {}
        for record in world.log.records(side):
            _, of_slot, name = unpack_key(record.key)
            if of_slot == slot:
                found[name] = record.value
        for (topic, name), value in outputs.items():
            if topic == side and found.pop(name, None) != value:
                wrong.append(f"slot {slot}: {side} lacks {name}")
        if found:
            wrong.append(f"slot {slot}: {side} holds {len(found)} records that nothing caused")
    return wrong[:5]


def _acks(world: World, slot: int) -> list[str]:
    wrong = []
    last: dict[tuple[str, int], int] = {}
    for record in world.log.records(topics.ACKS):
        ack = Ack.FromString(record.value or b"")
        kind = str(ack.WhichOneof("body"))
        body = ack.level0 if kind == "level0" else ack.level1
        if body.slot != slot:
            continue
        if body.offset < last.get((kind, body.epoch), -1):
            wrong.append(f"slot {slot}: {kind} of epoch {body.epoch} went back to {body.offset}")
        last[kind, body.epoch] = body.offset
    return wrong


def _progress(world: World, slot: int, state: Slot) -> list[str]:
    """A recovery that never ends shows as a slot that is not near the present when all faults are over."""
    behind = world.step_now - state.cursor
    wrong = []
    if behind > 15:
        wrong.append(f"slot {slot}: {behind} steps behind at the end, owner {world.owner(slot)!r}")
    beats = world.last_beats()
    roles = {name: part.role for name, beat in beats.items() for part in beat.slots if part.slot == slot}
    if sum(role == "primary" for role in roles.values()) != 1:
        wrong.append(f"slot {slot}: roles at the end are {roles}")
    if not any(
        part.slot == slot and part.role == "standby" and part.ready for beat in beats.values() for part in beat.slots
    ):
        wrong.append(f"slot {slot}: no ready secondary at the end: {roles}")
    return wrong


def _edges(world: World, slot: int) -> list[str]:
    """Every batch an edge's process handed over stands in the log once, in order, unless the process died with it."""
    wrong = []
    last: dict[tuple[str, int], int] = {}
    for record in world.log.records(topics.TUPLES, slot):
        batch = LogRecord.FromString(record.value or b"").batch
        if not batch.edge:
            continue
        if batch.step <= last.get((batch.edge, batch.incarnation), -1):
            wrong.append(f"slot {slot}: {batch.edge} out of order in the log (the simulated log is at fault)")
        last[batch.edge, batch.incarnation] = batch.step
    return wrong
