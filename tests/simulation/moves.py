"""Sensors move between slots while faults strike: how it is asked for, how edges follow, what must hold after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.fleet import SLOTS
from tsunagi.replay.generations import generations
from tsunagi.runtime import log as topics
from tsunagi.runtime.columns import pack_sensors, sensors
from tsunagi.runtime.messages import DeadLetter, Placement, Plan, Recovered
from tsunagi.runtime.moving import DONE, HELD, SensorSlots
from tsunagi.runtime.names import unpack_key
from tsunagi.runtime.plan import Words
from tsunagi.scaler.mover import boundary_ahead

if TYPE_CHECKING:
    from tests.simulation.edges import SimEdge
    from tests.simulation.world import World

PATIENCE_S = 40.0
"""A move is done so long after everything was mended, virtual seconds."""


def placement_of(world: World) -> Placement | None:
    """Return the placement in force."""
    words, found = Words(), None
    for record in world.usable(topics.PLAN):
        if (record.key or b"") == b"placement":
            plan = Plan.FromString(record.value or b"")
            if plan.HasField("placement") and words.take(plan, record.offset):
                found = plan.placement
    return found


def move(world: World) -> None:
    """Let some sensors change slots, as `tsunagi slots` does; each slot keeps or gets some."""
    placement = placement_of(world)
    if placement is None or SensorSlots.of(placement).moving:
        return
    rng, before = world.rng, sensors(placement.slot)
    after = [rng.randrange(SLOTS) if rng.random() < 0.5 else int(slot) for slot in before]
    if len(set(after)) < SLOTS or after == before.tolist():
        return
    world.note(f"{sum(one != other for one, other in zip(before, after, strict=True))} sensors move to other slots")
    world.moves += 1
    asked = Placement(
        serial=placement.serial + 1,
        slots=SLOTS,
        slot=pack_sensors(after),
        table_sha256=placement.table_sha256,
        before=placement.slot,
        from_us=boundary_ahead(world.step_now, world.settings.slide_us),
        move=HELD,
    )
    world.ask("placement", placement=asked)


def follow(world: World, edge: SimEdge) -> None:
    """Let an edge read the placement, if it reaches the log."""
    if world.broker_up and edge.name not in world.cut:
        placement = placement_of(world)
        edge.routes = None if placement is None else SensorSlots.of(placement)


def finish(world: World) -> None:
    """Wait until the last move is done."""
    until = world.now + PATIENCE_S
    while world.moves and world.now < until:
        placement = placement_of(world)
        if placement is not None and placement.move == DONE:
            return
        world.run(0.5)


def check(world: World) -> list[str]:
    """Return what does not hold: a sensor has a value of a step in one slot alone, and each move comes to its end."""
    if not world.moves:
        return []
    wrong: list[str] = []
    placement = placement_of(world)
    if placement is None or placement.move != DONE:
        wrong.append(f"a move is not done: {'' if placement is None else placement.move}")
    home: dict[tuple[int, int], int] = {}
    twice = set()
    for slot in range(SLOTS):
        begun = {item.generation for item in generations(world.history(topics.TUPLES, slot))}
        for record in world.usable(topics.RECOVERED, slot):
            message = Recovered.FromString(record.value or b"")
            if message.query or unpack_key(record.key)[0] not in begun | {0}:
                continue
            for sensor in sensors(message.sensor).tolist():
                if home.setdefault((message.step, sensor), slot) != slot:
                    twice.add((message.step, sensor))
    if twice:
        wrong.append(f"{len(twice)} values stand in two slots, first (step, sensor) {min(twice)}")
    if not world.tables:
        letters = (DeadLetter.FromString(record.value or b"") for record in world.usable(topics.DEAD_LETTERS))
        refused = [letter for letter in letters if letter.reason in ("unknown-edge", "unknown-sensor")]
        if refused and not world.struck:
            wrong.append(f"{len(refused)} batches came to a slot that their sensors have left: {refused[0].detail}")
        steady = {sensor.id for sensor in world.table.sensors if sensor.edge not in world.struck}
        wrong += [] if "broker" in world.struck or world.operators_changed else _gaps(home, steady)
    return wrong


def _gaps(home: dict[tuple[int, int], int], steady: set[int]) -> list[str]:
    """Return which of these sensors have no value of a step between two that they have, although others have one."""
    steps: dict[int, set[int]] = {}
    for step, sensor in home:
        if sensor in steady:
            steps.setdefault(sensor, set()).add(step)
    every = {step for step, _ in home}
    gaps = {sensor: sorted(step for step in every - own if min(own) < step < max(own)) for sensor, own in steps.items()}
    return [
        f"sensor {sensor} has no value of {len(some)} steps, first {some[0]}" for sensor, some in gaps.items() if some
    ]
