"""What must hold after any schedule, in the classes of Jepsen: nothing lost, doubled, reordered or invented.

The log is the truth. Running a slot over its whole log once, in one go, tells which outputs follow from it; what
stands in `recovered`, with repeats dropped by name as every reader does, must be exactly that. So that the slot does
not vouch for itself, the plain loop of `tsunagi replay` must say the same. Where the log has lost records a generation
must say so, and what follows from lost records stands in an earlier one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from tests.simulation import moves
from tests.simulation.fleet import EDGES, SLOTS, outputs_in
from tests.simulation.world import World
from tsunagi.replay.generations import Generation, generations
from tsunagi.replay.recompute import recompute
from tsunagi.runtime import log as topics
from tsunagi.runtime.columns import Floats, floats
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Ack, Context, DeadLetter, LogRecord, Recovered
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.slot.edges import NEVER
from tsunagi.slot.frames import Frame
from tsunagi.slot.outputs import Output
from tsunagi.slot.ownership import Register
from tsunagi.slot.packed import Packed, PackedRows
from tsunagi.slot.parsing import parse
from tsunagi.slot.slot import Slot
from tsunagi.standby.parts import join

SLACK_S = 1.0
SETTLED_S = 4.0
"""After so long every slot has an owner."""

MOST_DEATHS = 4
"""A record may kill so many workers before two in a row have proved that it does."""

FRESH = 4
"""What follows from the very last records may still be on its way: so many outputs, without steps of each edge."""


@dataclass
class Truth:
    """What follows from a slot's log.

    Attributes:
        begun: the generations of the log.
        outputs: (topic, name) -> value.
        frames: what `outputs` holds of `recovered`: (step, mean).
        contexts: position -> the context that a primary must write there, for the positions asked for.
    """

    state: Slot
    scan: Register
    begun: list[Generation]
    outputs: dict[tuple[str, Name], bytes] = field(default_factory=dict)
    frames: dict[Name, tuple[int, Floats]] = field(default_factory=dict)
    contexts: dict[int, Context] = field(default_factory=dict)

    def take(self, output: Output) -> None:
        value = output.encode(self.state.slot, self.generation(output.name.offset))[1]
        self.outputs[output.topic, output.name] = value
        if isinstance(output.body, Frame):
            self.frames[output.name] = output.body.step, output.body.mean
        elif isinstance(output.body, Packed):
            self.frames[output.name] = output.body.step, floats(output.body.mean)

    def generation(self, offset: int) -> int:
        """Return the generation that what follows from the record at this offset is in."""
        return next((item.generation for item in reversed(self.begun) if item.begin <= offset), 0)

    def disowned(self, generation: int, offset: int) -> bool:
        """Return whether what a generation says of the record at this offset is of a record that is lost."""
        known = [item.generation for item in self.begun]
        later = self.begun[known.index(generation) + 1 :] if generation in known else self.begun
        return any(item.blank or item.begin <= offset for item in later)


def expected(world: World, slot: int) -> Truth:
    """Compute what must follow from a slot's log."""
    records = world.history(topics.TUPLES, slot)
    scan = Register()
    for record in records:
        message, _, _ = parse(record)
        if message is not None:
            scan.read(record.offset, message)
    state = Slot(slot, world.load_model)
    state.register.quarantined = set(scan.quarantined)
    truth = Truth(state, scan, generations(records))
    born = next((item for item in reversed(truth.begun) if item.blank), None)
    if born is not None:
        records = [record for record in records if record.offset >= born.begin]
        state.begin_at(born.begin, born.at)
    wanted = {context.offset for _, context in contexts(world, slot)}
    for record in records:
        for output in state.apply(record):
            truth.take(output)
        if state.position in wanted and state.book is not None:
            truth.contexts[state.position] = state.context()
    return truth


def contexts(world: World, slot: int) -> list[tuple[int, Context]]:
    """Return (place, context) of all whole contexts of a slot."""
    records = world.usable(topics.CONTEXTS, slot)
    return list(wholes((record.offset, Context.FromString(record.value or b"")) for record in records))


def wholes(records: Iterable[tuple[int, Context]]) -> Iterator[tuple[int, Context]]:
    """Yield (place, context) of every whole context among records of `contexts`, given as (place, record)."""
    kept: list[tuple[int, Context]] = []
    for place, record in records:
        kept = [(place, record)] if record.part == 0 else [*kept, (place, record)]
        if len(kept) >= record.parts and (found := join(item for _, item in kept)) is not None:
            yield kept[0][0], found


def check(world: World) -> list[str]:
    """Return what does not hold; empty = all is well."""
    wrong: list[str] = []
    for slot in range(SLOTS):
        truth = expected(world, slot)
        wrong += _replay(world, slot, truth)
        wrong += _recovered(world, slot, truth)
        wrong += _side_topics(world, slot, truth)
        wrong += _acks(world, slot, truth)
        wrong += _contexts(world, slot, truth)
        wrong += _no_false_alarm(world, slot, truth)
        wrong += _on_time(world, slot)
        wrong += _progress(world, slot, truth.state)
        wrong += _queues(world, slot)
        wrong += _edges(world, slot)
        wrong += _declared(world, slot, truth)
        wrong += _clocks(world, slot)
        wrong += _muted(world, slot)
    wrong += _poisonings(world) + _namesakes(world) + _tables(world) + moves.check(world)
    # An owner may give itself up where its log does not come, but never since its own state says something else.
    return wrong + [end for end in world.ends if "its state says epoch" in end]


def _replay(world: World, slot: int, truth: Truth) -> list[str]:
    """The plain loop, which shares nothing with the slot but its operators, says the same."""
    replayed = recompute(world.history(topics.TUPLES, slot), world.load_model)
    said = {item.name: item.frame for item in replayed}
    made = [name for topic, name in truth.outputs if topic == topics.RECOVERED]
    wrong = [f"slot {slot}: the replay has no output {name}" for name in made if name not in said]
    for name, frame in said.items():
        own = truth.frames.get(name)
        if isinstance(frame, PackedRows):
            found = Recovered.FromString(truth.outputs.get((topics.RECOVERED, name), b""))
            columns = Recovered(column=found.column).SerializeToString()
            if (found.query, found.step, found.rows, columns) != (frame.query, frame.step, frame.rows, frame.columns):
                wrong.append(f"slot {slot}: rows {name} are not what the replay says")
        elif own is None or own[0] != frame.step or not np.array_equal(own[1], frame.mean, equal_nan=True):
            wrong.append(f"slot {slot}: output {name} is not what the replay says")
    return wrong[:5]


def _recovered(world: World, slot: int, truth: Truth) -> list[str]:
    wrong = []
    wanted = [(name, value) for (topic, name), value in truth.outputs.items() if topic == topics.RECOVERED]
    seen: list[tuple[Name, bytes]] = []
    lasts: dict[int, Name] = {}
    steps: dict[int, list[int]] = defaultdict(list)
    for record in world.usable(topics.RECOVERED, slot):
        generation, _, _ = unpack_key(record.key)
        for name, value in outputs_in(record):
            steps[generation].append(Recovered.FromString(value).step)
            if truth.disowned(generation, name.offset):
                continue
            last = lasts.get(generation, NO_NAME)
            if name > last:
                seen.append((name, value))
                lasts[generation] = name
            elif truth.outputs.get((topics.RECOVERED, name)) != value:
                wrong.append(f"slot {slot}: two outputs of one name {name} differ")
    found = {name for name, _ in seen}
    fresh = FRESH * (1 + EDGES) if world.settings.query.mode == "steps" else FRESH * EDGES * world.per_record
    lost = [name for name, _ in wanted[:-fresh] if name not in found]
    if lost:
        wrong.append(f"slot {slot}: {len(lost)} outputs lost, first {lost[0]}")
    table = dict(wanted)
    for name, value in seen:
        if name not in table:
            wrong.append(f"slot {slot}: invented output {name}, step {Recovered.FromString(value).step}")
        elif table[name] != value:
            wrong.append(f"slot {slot}: output {name} differs from what its log says")
    # Windows of new operators begin empty, so that steps are left out where they take over.
    messages = [Recovered.FromString(value) for _, value in seen]
    own = [message.step for message in messages if not message.query]  # events come besides
    wanted_steps = sorted(set(own)) if world.operators_changed else [own[0] + place for place in range(len(own))]
    if world.settings.query.mode == "steps" and own != wanted_steps:
        wrong.append(f"slot {slot}: steps doubled, left out or out of order")
    for before, item in pairwise(truth.begun):
        told = steps.get(before.generation, [])
        if item.blank or not told or world.settings.query.mode == "tuples":
            continue
        hole = set(range(max(told) + 1, min(steps.get(item.generation, [max(told) + 1]))))
        if hole:
            wrong.append(f"slot {slot}: {len(hole)} steps that no generation has, first {min(hole)}")
    return wrong[:5]


def _side_topics(world: World, slot: int, truth: Truth) -> list[str]:
    wrong = []
    for side in (topics.LATE, topics.DEAD_LETTERS):
        found = {}
        for record in world.usable(side):
            generation, of_slot, name = unpack_key(record.key)
            if of_slot == slot and not truth.disowned(generation, name.offset):
                found[name] = record.value
        for (topic, name), value in truth.outputs.items():
            if topic == side and found.pop(name, None) != value:
                wrong.append(f"slot {slot}: {side} lacks {name}")
        if found:
            wrong.append(f"slot {slot}: {side} holds {len(found)} records that nothing caused")
    return wrong[:5]


def _acks(world: World, slot: int, truth: Truth) -> list[str]:
    """An acknowledgement never goes back, and every output it speaks of stood in its topic before it.

    But for one that speaks of a record that is quarantined later: its writer had survived the record, which had no such
    output then (docs/reference/faults.md: owners that are killed by something else).
    """
    wrong = []
    last: dict[tuple[str, int], int] = {}
    offsets, since_us = _written(world, slot, truth)
    places = dict(contexts(world, slot))
    buried = _buried(world, slot)
    for record in _once(world, topics.ACKS, slot % world.log.layout[topics.ACKS]):
        ack = Ack.FromString(record.value or b"")
        kind = str(ack.WhichOneof("body"))
        body = ack.level0 if kind == "level0" else ack.level1
        if body.slot != slot or truth.disowned(body.generation, body.offset - 1):
            continue
        if body.offset < last.get((kind, body.epoch), -1):
            wrong.append(f"slot {slot}: {kind} of epoch {body.epoch} went back to {body.offset}")
        last[kind, body.epoch] = body.offset
        below = bisect_left(offsets, body.offset)
        later = any(offset < body.offset and at_us > record.appended_us for offset, at_us in buried)
        if below and not later and since_us[below - 1] > record.appended_us:
            wrong.append(f"slot {slot}: {kind} of epoch {body.epoch} up to {body.offset} came before its outputs")
        if kind == "level1":
            place = places.get(ack.level1.context_offset)
            if ack.level1.context_offset in world.lost_contexts[slot]:
                continue
            if place is None or place.offset != body.offset:
                wrong.append(f"slot {slot}: the Level-1-Ack up to {body.offset} points to another context")
    return wrong[:5]


def _buried(world: World, slot: int) -> list[tuple[int, int]]:
    """Return (offset, since when it is quarantined, microseconds) of each record that is."""
    found = []
    for record in world.usable(topics.TUPLES, slot):
        message = parse(record)[0]
        if message is not None and message.WhichOneof("body") == "quarantine":
            found.append((message.quarantine.offset, record.appended_us))
    return found


def _once(world: World, topic: str, partition: int = 0) -> list[Record]:
    """Return a partition's records without those that somebody appended again."""
    records = world.usable(topic, partition)
    return [record for record in records if (topic, partition, record.offset) not in world.repeats]


def _written(world: World, slot: int, truth: Truth) -> tuple[list[int], list[float]]:
    """Return offsets of inputs with outputs, ascending, and when all outputs up to there were written."""
    first: dict[tuple[str, Name], float] = {}
    places = [(record, name) for record in world.usable(topics.RECOVERED, slot) for name, _ in outputs_in(record)]
    aside = [*world.usable(topics.LATE), *world.usable(topics.DEAD_LETTERS)]
    for record, name in [*places, *((record, unpack_key(record.key)[2]) for record in aside)]:
        generation, of_slot, _ = unpack_key(record.key)
        if of_slot == slot and not truth.disowned(generation, name.offset):
            first.setdefault((record.topic, name), record.appended_us)
    names = sorted(truth.outputs, key=lambda item: item[1])
    times = accumulate((first.get(item, float("inf")) for item in names), max)
    return [name.offset for _, name in names], list(times)


def _contexts(world: World, slot: int, truth: Truth) -> list[str]:
    """Every context that was ever written holds the whole state, whether or not anybody went on from it.

    But for one that was not acknowledged, whose writer had survived a record that others were held to have died of
    later (docs/reference/faults.md: owners that are killed by something else): nobody goes on from it. Nor does anybody
    from one whose last record the log has lost, since its digest is that of another record.
    """
    wrong = []
    acks = (Ack.FromString(record.value or b"") for record in world.acks())
    acknowledged = {ack.level1.context_offset for ack in acks if ack.HasField("level1") and ack.level1.slot == slot}
    for place, context in contexts(world, slot):
        if truth.disowned(context.generation, context.offset - 1):
            continue
        buried = truth.scan.quarantined.difference(context.quarantined)
        if place not in acknowledged and any(offset < context.offset for offset in buried):
            continue
        wanted = truth.contexts.get(context.offset)
        lost = wanted is not None and "log" in world.struck and context.digest != wanted.digest
        if lost and place not in acknowledged:
            continue
        if wanted is None or _plain(context) != _plain(wanted):
            wrong.append(f"slot {slot}: the context before {context.offset} is not the state there")
    return wrong[:5]


def _plain(context: Context) -> bytes:
    plain = Context()
    plain.CopyFrom(context)
    plain.ClearField("quarantined")  # known from the end of the log here, from what was read there
    plain.ClearField("topic_id")
    return plain.SerializeToString(deterministic=True)


def _no_false_alarm(world: World, slot: int, truth: Truth) -> list[str]:
    """Whoever was not struck is never deposed nor held to be gone: an outage of the broker is nobody's fault."""
    wrong = []
    if not world.struck.intersection({*world.nodes, "log"}) and truth.scan.epoch != 1:
        wrong.append(f"slot {slot}: epoch {truth.scan.epoch} although no worker was struck")
    bodies = [message for record in world.history(topics.TUPLES, slot) if (message := parse(record)[0]) is not None]
    out = {message.edge_out.edge for message in bodies if message.WhichOneof("body") == "edge_out"}
    if world.tables and world.struck:  # an edge that leaves a slot is silent there; without an owner the slot waits
        return wrong
    if "log" in world.struck:  # their batches are lost: nobody knows that it was not they
        return wrong
    blamed = sorted(out - world.struck)
    if blamed:
        wrong.append(f"slot {slot}: {blamed} were not waited for although nothing struck them")
    return wrong


def _declared(world: World, slot: int, truth: Truth) -> list[str]:
    """A generation is begun if the log was struck, and is said by whoever owns the slot; else there is the first."""
    later = truth.begun[1:] if truth.begun and not truth.begun[0].blank else truth.begun
    if later and "log" not in world.struck:
        return [f"slot {slot}: {len(later)} generations were begun although the log lost nothing"]
    parts = [part for beat in world.last_beats().values() for part in beat.slots if part.slot == slot]
    if later and not all(part.declared for part in parts if part.role == "primary"):
        return [f"slot {slot}: the owner does not say that a generation was begun"]
    return []


def _on_time(world: World, slot: int) -> list[str]:
    """While workers and broker live, a step waits for a dead edge no longer than a slide and the grace.

    For one that lives, and whose clock is slow, it waits for as long as edges may be behind each other.
    """
    if world.struck.intersection({*world.nodes, "broker", "log"}) or world.settings.query.mode == "tuples":
        return []
    steps = world.settings.steps
    limit_us = (2 * steps.slide_s + steps.grace_s + SLACK_S + min(world.off_s, steps.max_skew_s)) * 1e6
    late = []
    for record in world.usable(topics.RECOVERED, slot):
        message = Recovered.FromString(record.value or b"")
        if message.event_time_us > world.began_us + SETTLED_S * 1e6:
            late += [message.step] * (record.appended_us - message.event_time_us > limit_us)
    return [f"slot {slot}: {len(late)} steps came too late, first {late[0]}"] if late else []


def _progress(world: World, slot: int, state: Slot) -> list[str]:
    """A recovery that never ends shows as a slot that is not near the present when all faults are over."""
    settings = world.settings
    behind = world.step_now - state.cursor * settings.slide_us // settings.steps.slide_us
    wrong = []
    if behind > 15:
        wrong.append(f"slot {slot}: {behind} steps behind at the end, owner {world.owner(slot)!r}")
    beats = {name: beat for name, beat in world.last_beats().items() if name in world.nodes}  # not of those stopped
    roles = {name: part.role for name, beat in beats.items() for part in beat.slots if part.slot == slot}
    if sum(role == "primary" for role in roles.values()) != 1:
        wrong.append(f"slot {slot}: roles at the end are {roles}")
    if not any(
        part.slot == slot and part.role == "standby" and part.ready for beat in beats.values() for part in beat.slots
    ):
        wrong.append(f"slot {slot}: no ready secondary at the end: {roles}")
    return wrong


def _queues(world: World, slot: int) -> list[str]:
    """Of what the downstream has nothing is kept, so no output queue grows without end."""
    wrong = []
    for node in world.nodes.values():
        replica = None if node.made is None else node.made.replicas.get(slot)
        if replica is None or replica.role not in ("standby", "primary"):
            continue
        level0 = replica._shared.level0
        kept = [output.name for output in replica.silent.take(NO_NAME)]
        if level0 is not None and kept and kept[0].offset < level0.offset:
            wrong.append(f"slot {slot}: {node.name} keeps {kept[0]}, acknowledged up to {level0.offset}")
        if len(replica.pending) > (20 if world.settings.query.mode == "steps" else 20 * world.per_record):
            wrong.append(f"slot {slot}: {node.name} takes {len(replica.pending)} outputs for undelivered")
    return wrong


def _edges(world: World, slot: int) -> list[str]:
    """Every batch an edge's process handed over stands in the log once, in order, unless the process died with it."""
    wrong = []
    last: dict[tuple[str, int], int] = {}
    arrived: set[tuple[str, int, int]] = set()
    for record in world.lost[slot]:
        batch = LogRecord.FromString(record.value or b"").batch
        arrived.add((batch.edge, batch.incarnation, batch.event_time_us))
    ahead_us = round(world.settings.steps.max_ahead_s * 1e6)
    for record in _once(world, topics.TUPLES, slot):
        batch = LogRecord.FromString(record.value or b"").batch
        if not batch.edge:
            continue
        arrived.add((batch.edge, batch.incarnation, batch.event_time_us))
        if batch.event_time_us > record.appended_us + ahead_us:
            continue  # by a clock that is fast: no slot took it, and the edge begins anew when the clock is set right
        if batch.step <= last.get((batch.edge, batch.incarnation), -1) and not any(
            edge.name == batch.edge and batch.incarnation in edge.anew for edge in world.edges
        ):
            wrong.append(f"slot {slot}: {batch.edge} out of order in the log (the simulated log is at fault)")
        last[batch.edge, batch.incarnation] = batch.step
    for edge in world.edges:
        disturbed = "broker" in world.struck or edge.name in world.were_cut
        missing = 0
        for (of_slot, incarnation, event_time_us), sent_at in edge.sent.items():
            if of_slot != slot or (edge.name, incarnation, event_time_us) in arrived:
                continue
            died = edge.died.get(incarnation)
            if died is not None and (disturbed or died - sent_at < SLACK_S):
                continue  # it died with the process
            missing += world.now - sent_at > SLACK_S
        if missing:
            wrong.append(f"slot {slot}: {missing} batches that {edge.name} handed over never reached the log")
    return wrong


def _clocks(world: World, slot: int) -> list[str]:
    """An edge that knows the log's time leaves out no step when its machine's clock jumps."""
    wrong = []
    slide_us = world.settings.steps.slide_us
    for edge in world.edges:
        for incarnation in sorted(number for name, number in world.jumped if name == edge.name):
            times = sorted(at for of, number, at in edge.sent if (of, number) == (slot, incarnation))
            holes = [before for before, after in pairwise(times) if after - before != slide_us]
            if holes:
                wrong.append(f"slot {slot}: {edge.name} left out the steps after {holes[0]} when its clock jumped")
    return wrong


def _muted(world: World, slot: int) -> list[str]:
    """An edge of which nothing but heartbeats stayed away is put out once, until its next batch, at most."""
    if world.struck & {*world.nodes, "broker", "log"}:
        return []
    struck = {name for name in world.mutes for _, event in world.events if name in event and "stay away" not in event}
    bodies = [message for record in world.history(topics.TUPLES, slot) if (message := parse(record)[0]) is not None]
    outs = Counter(body.edge_out.edge for body in bodies if 0 < body.edge_out.from_step < NEVER)
    return [
        f"slot {slot}: {edge} was put out {outs[edge]} times, its heartbeats stayed away {times} times"
        for edge, times in world.mutes.items()
        if edge not in struck and outs[edge] > times
    ]


def _tables(world: World) -> list[str]:
    """Edges and slots go by another table at different instants, and still no batch is refused for its sensors.

    An edge that is new to a slot may be too early, if the slot has no owner meanwhile. If two changes follow each other
    before all edges go by the first one, which `tsunagi apply` waits for, a slot knows one former edge only.
    """
    if not world.tables or world.struck or world.hasty:
        return []
    letters = (DeadLetter.FromString(record.value or b"") for record in world.usable(topics.DEAD_LETTERS))
    found = Counter(letter.reason for letter in letters if letter.reason in ("unknown-edge", "unknown-sensor"))
    return [f"{count} batches were refused as {reason}" for reason, count in found.items()]


def _poisonings(world: World) -> list[str]:
    """A record that kills whoever processes it kills few, and then it is passed over.

    Each strike beside it may cost the evidence of one death, or bring one more worker to it.
    """
    return [
        f"{deaths} workers died of the reading {value:.0f}, {world.strikes - since} strikes after it"
        for value, (deaths, since) in world.poisonings.items()
        if deaths > MOST_DEATHS + world.strikes - since
    ]


def _namesakes(world: World) -> list[str]:
    """Check that no two processes of one name go on: the one that began first, by their clocks, must have ended."""
    newer = {node.name: node.made for node in [*world.nodes.values(), world.scaler]}
    return [
        f"{elder.name}: the process that began first goes on"
        for elder in world.elders
        if newer[elder.name] is not None
        and elder.made.heartbeats.incarnation < newer[elder.name].heartbeats.incarnation
    ]
