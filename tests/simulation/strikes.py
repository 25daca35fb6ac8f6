"""Strikes beyond those of `World`: brokers that clean logs or lose them, clocks, poison, settings, plans, namesakes.

Each takes the world, strikes, and says in the world's notes what it did. Times are virtual seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation import poison
from tests.simulation.checker import contexts
from tests.simulation.edges import HEARD_S
from tests.simulation.fleet import EDGES, SLOTS, WORKERS
from tests.simulation.nodes import Node, NodeClock
from tests.simulation.world import World
from tsunagi.runtime import log as topics
from tsunagi.runtime.fleet_change import fleet_change
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Ack, Context, Level1Ack, QueryChange, Workers
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import OperatorSettings, Settings

HOUR_US = 3_600_000_000
LEAST_SENSORS = 8
"""No sensor is removed while the fleet has so few: a slot needs some."""
MOST_SENSORS = 30
"""No sensor is added while the table has so many rows."""
MAX_DRIFT = 0.02
"""A clock may gain or lose so many seconds in each second: many times what a bad quartz does."""

QUERIES = {
    "all": "CREATE QUERY all AS SELECT sensor, COUNT(*) AS n, SUM(value) AS s FROM readings [RANGE UNBOUNDED] "
    "GROUP BY sensor",
    "lately": "CREATE QUERY lately AS SELECT sensor, MIN(value) AS low FROM readings [RANGE 3 SECONDS] GROUP BY sensor",
}
"""What users add to the running system."""

OF_ONE_NODE: tuple[dict[str, Any], ...] = (
    {"batch_size": 1},
    {"batch_size": 60},
    {"batch_size": "inf"},
    {"detect_s": 0.5},
    {"detect_s": 1.2},
    {"speculate": True},
    {"context_s": 0.2},
    {"ack_s": 0.1},
    {"context_bytes": 300},
    {"policy": "model", "max_recovery_s": 0.02},
)
"""Settings of [standby] in which the workers of one system may differ."""


# ---- what a broker does in good order ------------------------------------------------------------------------------


def clean(world: World, *, all_die: bool) -> None:
    """Compact `acks`, and let retention take what stands before each slot's resume point; `all_die`: the workers too.

    Compaction leaves the newest segment alone, so a random last part of a partition stays as it was.
    """
    rng = world.rng
    resumes = resume_points(world)  # before compaction: it must leave them
    took = {}
    for cell in range(world.log.layout[topics.ACKS]):
        end = world.log.stored(topics.ACKS, cell).end
        took[topics.ACKS, cell] = world.log.compact(topics.ACKS, cell, end - rng.choice((0, 0, rng.randrange(40))))
    for slot, resume in resumes.items():
        if not _restorable(world, resume):
            continue  # a power cut took the context: the next one is written long before retention comes by
        took[topics.TUPLES, slot] = world.log.truncate(topics.TUPLES, slot, resume.offset)
        took[topics.CONTEXTS, slot] = world.log.truncate(topics.CONTEXTS, slot, resume.context_offset)
    for place, records in took.items():
        world.removed.setdefault(place, []).extend(records)
    sizes = ", ".join(f"{topic}/{partition} {len(records)}" for (topic, partition), records in took.items())
    world.note(f"compaction and retention take records: {sizes}{'; all workers die' if all_die else ''}")
    if all_die:
        for name in world.nodes:
            world.kill(name)


def resume_points(world: World) -> dict[int, Level1Ack]:
    """Return each slot's newest Level-1-Ack, as far as slots have one."""
    found: dict[int, Level1Ack] = {}
    for record in world.acks():
        ack = Ack.FromString(record.value or b"")
        known = found.get(ack.level1.slot)
        if ack.WhichOneof("body") == "level1" and (
            known is None or (ack.level1.epoch, ack.level1.offset) >= (known.epoch, known.offset)
        ):
            found[ack.level1.slot] = ack.level1
    return found


def _kept_contexts(world: World, slot: int) -> list[tuple[int, Context]]:
    """Return (place, context) of a slot's whole contexts that retention has left."""
    first = world.log.stored(topics.CONTEXTS, slot).first
    return [(place, context) for place, context in contexts(world, slot) if place >= first]


def _restorable(world: World, resume: Level1Ack) -> bool:
    """Return whether the context that an acknowledgement names is there, and whole."""
    return any(
        (place, context.offset) == (resume.context_offset, resume.offset)
        for place, context in _kept_contexts(world, resume.slot)
    )


# ---- what a broker loses -------------------------------------------------------------------------------------------


def lose_end(world: World, slot: int, count: int, *, topic: str = topics.TUPLES, all_die: bool = False) -> None:
    """Kill the broker, which loses the last records of a slot in a topic; `all_die`: the workers with it."""
    world.note(f"power cut: {topic}/{slot} loses {count} records{', all workers die' if all_die else ''}")
    world.struck.add("log")
    world.broker(up=False)
    if all_die:
        for name in world.nodes:
            world.kill(name)
    world.run(0.3)
    stored = world.log.stored(topic, slot)
    _lose(world, topic, slot, stored.records[-count:])
    world.log.lose_end(topic, slot, stored.end - count)
    world.broker(up=True)


def make_anew(world: World, topic: str) -> None:
    """Delete a topic and make it again while the broker is away; nobody is told."""
    world.note(f"{topic} is made anew")
    world.struck.add("log")
    world.broker(up=False)
    world.run(0.3)
    for slot in range(SLOTS):
        _lose(world, topic, slot, world.log.records(topic, slot))
    world.log.make_anew(topic)
    world.broker(up=True)


def outlast_retention(world: World, away_s: float) -> None:
    """Let all workers die and come back when what stood in `tuples` and `contexts` by then is gone."""
    world.note(f"all workers are away for {away_s:.1f} s, longer than the retention")
    world.struck.add("log")
    for name, node in world.nodes.items():
        world.kill(name)
        node.restart_at = None
    for slot in range(SLOTS):
        for topic in (topics.TUPLES, topics.CONTEXTS):
            _lose(world, topic, slot, world.log.records(topic, slot))
            world.log.truncate(topic, slot, world.log.stored(topic, slot).end)
    world.run(away_s)
    for node in world.nodes.values():
        node.restart_at = world.now


def _lose(world: World, topic: str, slot: int, records: list[Record]) -> None:
    """Note for the checker that a slot's log loses these records of a topic."""
    unusable = [record for record in records if (topic, slot, record.offset) in world.damaged]
    records = [record for record in records if record not in unusable]
    world.damaged -= {(topic, slot, record.offset) for record in unusable}  # others will stand there
    if topic == topics.TUPLES:
        world.lost[slot] += records
    elif topic == topics.CONTEXTS:
        firsts = (record.offset - Context.FromString(record.value or b"").part for record in records)
        world.lost_contexts[slot].update(firsts)


def lose_parts(world: World) -> None:
    """Kill the broker, which loses the last records of a slot's contexts: parts of one, or several.

    Where retention has come by, one is left that the log still reaches back to: retention is hours, a power cut takes
    what was written last, and contexts are written all the time.
    """
    slot, count = world.rng.randrange(SLOTS), world.rng.randrange(1, 9)
    all_die = world.rng.random() < 0.5
    first = world.log.stored(topics.TUPLES, slot).first
    if first > 0:
        left = [place + max(1, whole.parts) for place, whole in _kept_contexts(world, slot) if whole.offset >= first]
        count = min(count, world.log.stored(topics.CONTEXTS, slot).end - left[0] if left else 0)
    if count > 0:
        lose_end(world, slot, count, topic=topics.CONTEXTS, all_die=all_die)


# ---- clocks --------------------------------------------------------------------------------------------------------


def jump(world: World, *, edges: bool) -> None:
    """Let the wall clock of an edge, or of a worker, jump by minutes or hours, and drift from then on."""
    rng = world.rng
    edge, worker = world.edges[rng.randrange(EDGES)], world.nodes[rng.choice(WORKERS)]
    reach_us = rng.choice((2_000_000, 600_000_000, 6 * HOUR_US))
    skew_us, drift = rng.randrange(-reach_us, reach_us), rng.choice((0.0, rng.uniform(-MAX_DRIFT, MAX_DRIFT)))
    name, clock = (edge.name, edge.clock) if edges else (worker.name, worker.clock)
    clock.set_off(skew_us, drift)
    world.note(f"clock of {name} jumps to {skew_us / 1e6:.1f} s off, and drifts by {drift:.3f} s each second")
    if edges:
        world.struck.add(name)
        world.off_s = max(world.off_s, abs(skew_us) / 1e6)
        if edge.was_right and edge.producer is not None and world.now - edge.alive_from > 2 * HEARD_S:
            world.jumped.add((edge.name, edge.incarnation))


# ---- poison --------------------------------------------------------------------------------------------------------


def damage(world: World, count: int) -> None:
    """Append records to all topics that no reader can use."""
    rng = world.rng
    world.note(f"{count} records that nobody can use are appended to every topic")
    for _ in range(count):
        for topic in topics.TOPICS:
            partition = rng.randrange(world.log.layout[topic])
            key, value = poison.unusable(rng, topic, world.log.records(topic, partition)[-60:])
            if topic == topics.ACKS:
                key = b"stranger"  # nobody but its owner writes under a key that compaction keeps the last record of
            world.damaged.add((topic, partition, world.log.stored(topic, partition).end))
            world.log.append(topic, partition, key, value)


def kill_by_reading(world: World) -> bool:
    """Let an edge read a value that kills whoever processes it; return whether one does, for the first time."""
    if world.poisonings:
        return False  # it takes as long as the run does to tell one such record from the others
    value = poison.DEADLY + len(world.poisonings)
    edge = world.edges[world.rng.randrange(EDGES)]
    world.note(f"{edge.name} reads {value:.0f}, which kills its workers")
    edge.poison = value
    world.struck.update(world.nodes)
    world.poisonings[value] = 0, world.strikes
    return True


def wedge(world: World) -> None:
    """Let an edge read a value with which no context can be written."""
    edge = world.edges[world.rng.randrange(EDGES)]
    world.note(f"{edge.name} reads {poison.UNWRITABLE:.0f}, which no context can hold")
    edge.poison = poison.UNWRITABLE


# ---- settings ------------------------------------------------------------------------------------------------------


def roll(world: World, change: Callable[[Settings], Settings]) -> None:
    """Restart the workers one after the other with other settings."""
    rng = world.rng
    settings = change(world.settings)
    for name in rng.sample(WORKERS, len(WORKERS)):
        node = world.nodes[name]
        node.settings = settings
        world.kill(name)
        world.run(rng.uniform(0.3, 1.5))


def of_one_node(world: World) -> Callable[[Settings], Settings]:
    """Draw a change of settings in which workers may differ, and say it."""
    changed = world.rng.choice(OF_ONE_NODE)
    world.note(f"rolling restart: {changed}")
    return lambda settings: settings.model_copy(update={"standby": settings.standby.model_copy(update=changed)})


def of_all(world: World) -> Callable[[Settings], Settings]:
    """Draw a change of what the slots compute, and say it: workers with other settings differ from the slots'."""
    delta = world.rng.choice((0.8, 0.95))
    longer = world.rng.random() < 0.5
    world.operators_changed |= longer
    world.note(f"rolling restart: delta {delta}{', longer windows' if longer else ''}")

    def change(settings: Settings) -> Settings:
        operators = [
            OperatorSettings(use=item.use, **item.options | {"window": item.options["window"] + 2})
            if longer and "window" in item.options
            else item
            for item in settings.query.chain
        ]
        return settings.model_copy(
            update={
                "recovery": settings.recovery.model_copy(update={"delta": delta}),
                "query": settings.query.model_copy(update={"operators": operators}),
            }
        )

    return change


# ---- queries --------------------------------------------------------------------------------------------------------


def query(world: World) -> None:
    """Add a query to the running system, drop it, or fill it with the past, as `tsunagi query add --from` does."""
    rng = world.rng
    name = rng.choice(sorted(QUERIES))
    if rng.random() < 0.2:
        world.note(f"query {name} is dropped")
        world.ask(f"query/{name}", query=QueryChange(name=name))
        return
    back_s = rng.choice((0, 2, 5, 3600))
    from_us = world.clock.now_us() - back_s * 1_000_000 if back_s else 0
    world.filled |= from_us > 0
    world.note(f"query {name} is added, filled from {from_us} us on")
    world.ask(f"query/{name}", query=QueryChange(name=name, text=QUERIES[name], from_us=from_us))


# ---- the sensors table ----------------------------------------------------------------------------------------------


def retable(world: World) -> None:
    """Change the sensors table as `tsunagi apply` does: sensors come, go, come back, move and get other names."""
    rng = world.rng
    rows = [replace(sensor) for sensor in world.in_force.present]
    edges = [edge.name for edge in world.edges]
    said = []
    for _ in range(rng.randrange(1, 4)):
        kind, place = rng.choice(("add", "remove", "back", "move", "move", "rename")), rng.randrange(len(rows))
        gone = [
            sensor
            for sensor in world.in_force.sensors
            if sensor.removed and sensor.key not in {row.key for row in rows}
        ]
        if kind == "add" and len(world.in_force) < MOST_SENSORS:
            name = f"new-{len(world.in_force)}-{len(rows)}"
            rows.insert(place, Sensor(0, name, rng.choice(edges), group=rows[place].group))
        elif kind == "back" and gone:
            rows.append(replace(rng.choice(gone), edge=rng.choice(edges)))
        elif kind == "remove" and len(rows) > LEAST_SENSORS:
            rows.pop(place)
        elif kind == "move":
            rows[place] = replace(rows[place], edge=rng.choice(edges))
        elif kind == "rename":
            rows[place] = replace(rows[place], name=f"{rows[place].key}-{world.now:.2f}", was=rows[place].key)
        else:
            continue
        said.append(kind)
    wanted = SensorTable(tuple(replace(row, id=number) for number, row in enumerate(rows)), world.in_force.attributes)
    world.note(f"another table: {', '.join(said) or 'the same'}")
    world.put_table(fleet_change(world.in_force, wanted).table)


# ---- the plan ------------------------------------------------------------------------------------------------------


def rescale(world: World, workers: int) -> None:
    """Ask for so many workers: nobody starts or stops any, but slots are moved away from the others."""
    world.note(f"rescale to {workers}")
    world.struck.update(world.nodes)  # any of them may be deposed
    world.ask("workers", workers=Workers(count={"local": workers}, by="operator"))


def rival(world: World, seconds: float) -> None:
    """Start a second scaler by mistake; it goes away after a while."""
    world.note("a second scaler")
    other = Node("scaler", world.log.client("scaler-2"), NodeClock(world.clock))
    world.rivals.append((other, world.now + seconds))


# ---- heartbeats and names ------------------------------------------------------------------------------------------


def mute(world: World, name: str, seconds: float) -> None:
    """Let the heartbeats of a worker or an edge get lost for a while; all else that it writes arrives."""
    world.note(f"heartbeats of {name} stay away")
    world.struck.add(name)
    world.mutes[name] += 1
    client = world.nodes[name].client.client_id if name in world.nodes else name
    world.log.muted.add((client, topics.HEARTBEATS))
    world.run(seconds)
    world.log.muted.discard((client, topics.HEARTBEATS))


def namesake(world: World, name: str) -> None:
    """Start a second process of a worker's name, or of the scaler's, beside the one that runs; that one is to end."""
    elder = world.nodes.get(name, world.scaler)
    if elder.made is None:
        return
    world.note(f"a second process of {name} is started")
    world.struck.add(name)
    client = world.log.client(f"{name} from {world.now:.2f}")
    newer = Node(name, client, elder.clock, restart_at=world.now + 0.1, settings=elder.settings)
    world.elders.append(elder)
    if name in world.nodes:
        world.nodes[name] = newer
    else:
        world.scaler = newer
