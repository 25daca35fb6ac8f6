"""`tsunagi replay`: compute a slot's outputs again from its log, in one plain loop, and compare with `recovered`.

The loop is written straight from the meaning of the log (architecture, "The slot's log decides"). It shares the
operators with the gateway, and none of the code that opens and closes steps, judges ownership, resumes or takes over:
it knows no contexts, reads from the first record to the last, and keeps everything in dictionaries. Names and tags must
be the same, values within 1e-6 standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tsunagi.recovery.factors import Factors
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store
from tsunagi.runtime.auth import forgery
from tsunagi.runtime.columns import Floats, floats, octets, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import RECOVERED, TUPLES, LogError, Record
from tsunagi.runtime.messages import LogRecord, Ownership, Recovered, TupleBatch
from tsunagi.runtime.names import Name, unpack_key
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.settings import Settings
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import Frame, Run, measured_run
from tsunagi.slot.operators import Chain, build_chain
from tsunagi.system.topics import read_partition, tool_log

TOLERANCE_SD = 1e-6
"""Standard deviations by which a value that is computed again may differ: another machine may sum in another order."""
_NEVER = math.inf
_BACK = (1 << 63) - 1
_OUT_AGAIN_US = 1_000_000
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Recomputed:
    """An output as the log says it must be."""

    name: Name
    generation: int
    frame: Frame


class Generation(NamedTuple):
    """A generation of a slot's log: its outputs are those of inputs from `begin` on, until the next one's begin.

    Attributes:
        at: offset of the Ownership that began it.
        blank: nothing from before `begin` is known in it.
    """

    at: int
    generation: int
    begin: int
    blank: bool


@dataclass(slots=True)
class Comparison:
    """What `compare` found.

    Attributes:
        outputs: outputs computed again; compared: those of them that `recovered` has.
        pending: outputs that `recovered` does not have yet, all after its last one.
        unreadable: records of `recovered` that are no outputs; Spark has put them into dead-letters.
        disowned: outputs of inputs that the log has lost: a later generation begins before them.
        differences: one line each; `differing` counts all, the first ones are kept.
        largest_sd: the largest difference of a value, in standard deviations of its sensor.
    """

    outputs: int = 0
    compared: int = 0
    pending: int = 0
    repeats: int = 0
    unreadable: int = 0
    disowned: int = 0
    differing: int = 0
    largest_sd: float = 0.0
    differences: list[str] = field(default_factory=list)

    def differ(self, text: str) -> None:
        """Count a difference; keep the first ones."""
        self.differing += 1
        if len(self.differences) < _SHOWN:
            self.differences.append(text)


def recompute(  # noqa: C901 - the plain loop is the point: it is read beside docs/architecture.md
    records: Iterable[Record], load_model: Callable[[str], Model]
) -> Iterator[Recomputed]:
    """Yield the outputs of a slot's log, in order.

    Args:
        records: the whole partition of `tuples`, from its first record.
        load_model: SHA-256 -> model; raises ModelError when the store has no such file.
    """
    kept = list(records)
    quarantined = _quarantined(kept)
    begun = generations(kept)
    born, founded_at = next(((item.begin, item.at) for item in reversed(begun) if item.blank), (0, -1))
    kept = [record for record in kept if record.offset >= born]
    epoch, serial, first_step, claimed_us = 0, 0, 0, 0
    config: SlotConfig | None = None
    chain: Chain | None = None
    model: Model | None = None
    base = ""  # SHA-256 of the model, or of what the one in force is a refit of
    helped: dict[int, str] = {}
    lent: dict[int, dict[str, TupleBatch]] = {}
    edges: dict[str, dict[str, float]] = {}
    waiting: list[tuple[TupleBatch, int]] = []
    opened: dict[int, dict[str, TupleBatch]] = {}
    cursor, punctuated = 0, -math.inf
    for record in kept:
        message = _message(record)
        if message is None:
            continue  # one dead letter, no output
        body = message.WhichOneof("body")
        if record.offset < founded_at and body != "batch":
            continue  # what was decided before that is not known
        generation = next((item.generation for item in reversed(begun) if item.begin <= record.offset), 0)
        buried = quarantined.get(record.offset, -1) > record.offset and body != "ownership"
        index = int(buried)  # its dead letter comes first
        batches: list[tuple[TupleBatch, int]] = []
        if body == "ownership":
            claim = message.ownership
            if record.offset != founded_at and claim.epoch != epoch + 1:
                continue
            if epoch == 0:
                first_step, claimed_us = claim.first_step, record.appended_us
            epoch, serial = claim.epoch, message.serial
        elif body == "batch":
            batch = message.batch
            if buried:  # it says that its edge has delivered, and no more
                batch = TupleBatch(
                    edge=batch.edge, incarnation=batch.incarnation, step=batch.step, event_time_us=batch.event_time_us
                )
            batches = [(batch, record.appended_us)]
        elif getattr(message, str(body)).epoch != epoch or (serial and message.serial <= serial):
            continue
        else:
            serial = message.serial
        if buried and (config is None or body not in ("batch", "edge_out", "punctuation")):
            continue  # one dead letter, no output
        if body == "settings":
            before, config = config, SlotConfig.parse(message.settings.text)
            if before is not None and chain is not None and config.same_but_bounds(before):
                chain.aim(config)
                before = config
            else:
                chain, helped = build_chain(config, model), {}
                lent.clear()
            if before is not None and before.slide_us != config.slide_us:
                index += sum(len(delivered) for delivered in opened.values())  # they go to `late`
                opened.clear()
                cursor, punctuated = int(_recount(cursor, before, config)), _recount(punctuated, before, config)
                for edge in edges.values():
                    edge["last"], edge["out"] = (_recount(edge[what], before, config) for what in ("last", "out"))
            cursor = min(first_step, claimed_us // config.slide_us + 1) if before is None else cursor
            for name in config.edges:
                edges.setdefault(name, {"incarnation": 0, "last": -math.inf, "out": _NEVER, "out_us": -math.inf})
            batches, waiting = waiting, []
        elif body == "model":
            change = message.model
            if not change.refit_of:
                base, helped = change.sha256, {}
                model = load_model(base) if base else None
                if chain is not None:
                    chain.set_model(model)
            elif change.refit_of == base and chain is not None:
                chain.follow(load_model(change.sha256), cursor - 1)
        elif body == "calibrated" and chain is not None:
            if message.calibrated.model == base:
                chain.set_factors(Factors.read(message.calibrated))
        elif body == "sensor_out" and chain is not None:
            if message.sensor_out.model == base:
                chain.distrust(message.sensor_out.sensor, out=message.sensor_out.out)
        elif body == "helpers" and chain is not None:
            if message.helpers.model == base:
                ids = sensors(message.helpers.sensor).tolist()
                helped = dict(zip(ids, message.helpers.edge, strict=True))
                chain.set_helpers(ids, message.helpers.name, cursor - 1)
        elif body == "edge_out" and message.edge_out.edge in edges:
            edge, from_step = edges[message.edge_out.edge], message.edge_out.from_step
            if from_step == _BACK:
                edge["out"] = _NEVER
            elif edge["out"] < _NEVER or not 0 <= record.appended_us - edge["out_us"] < _OUT_AGAIN_US:
                edge["out_us"] = record.appended_us if edge["out"] == _NEVER else edge["out_us"]
                edge["out"] = max(from_step, edge["last"] + 1)
        elif body == "punctuation" and config is not None:
            in_time = (message.punctuation.step - 1) * config.slide_us <= record.appended_us + config.max_ahead_us
            punctuated = max(punctuated, message.punctuation.step) if in_time else punctuated
        if config is None or chain is None:
            waiting.extend(batches)
            continue
        if config.mode == "tuples":
            for batch, appended_us in batches:
                if _refused(batch, appended_us, config, edges, -math.inf):
                    index += not buried
                    continue
                edges[batch.edge]["last"] = batch.step
                for run in chain.process_run(_as_run(batch)):
                    rows = run.keep(~np.isnan(run.mean))
                    if len(rows.mean):
                        named = replace(rows, step=batch.step, event_time_us=batch.event_time_us)
                        yield Recomputed(Name(record.offset, index), generation, named)
                        index += 1
            continue
        for batch, appended_us in batches:
            if batch.edge not in edges and batch.helper and not batch.sensor:
                if _misshapen(batch, config) or batch.event_time_us > appended_us + config.max_ahead_us:
                    index += not buried
                elif batch.step >= cursor and batch.edge in helped.values():
                    lent.setdefault(batch.step, {}).setdefault(batch.edge, batch)
                continue
            if _refused(batch, appended_us, config, edges, cursor):
                index += not buried  # it went to `late` or `dead-letters` under this name
                continue
            if all(edge["last"] == -math.inf for edge in edges.values()):
                cursor = max(cursor, batch.step - config.max_skew_steps)
            edges[batch.edge]["last"] = batch.step
            edges[batch.edge]["out"] = _NEVER
            opened.setdefault(batch.step, {})[batch.edge] = batch
        while True:
            if any(edge["last"] < cursor < edge["out"] for edge in edges.values()):
                break
            if punctuated < cursor and all(edge["last"] < cursor for edge in edges.values()):
                break
            if opened and min(opened) - cursor > config.max_gap_steps:
                cursor = min(opened)
                continue
            delivered = opened.pop(cursor, {})
            if buried:  # the value to blame may be any of them: all go to dead-letters
                index += sum(len(batch.sensor) > 0 for batch in delivered.values())
                delivered = {}
            told = {} if buried else lent.get(cursor, {}) | delivered
            for frame in chain.process(cursor, _values(config, delivered), _helpers(told, helped)):
                yield Recomputed(Name(record.offset, index), generation, frame)
                index += 1
            cursor += 1


def _message(record: Record) -> LogRecord | None:
    try:
        message = decode(LogRecord, record.value)
    except UnusableError:
        return None
    if forgery(record, message):
        return None
    if message.HasField("settings"):
        try:
            SlotConfig.parse(message.settings.text)
        except ValueError:
            return None
    return message


def begins_term(claim: Ownership, epoch: int) -> bool:
    """Return whether an Ownership counts where this epoch is the current one."""
    return claim.epoch > epoch if claim.founding.blank else claim.epoch == epoch + 1


def generations(records: Iterable[Record]) -> list[Generation]:
    """Return all generations of a slot's log, in the order in which they were begun."""
    epoch = 0
    found: list[Generation] = []
    for record in records:
        message = _message(record)
        if message is None or message.WhichOneof("body") != "ownership" or not begins_term(message.ownership, epoch):
            continue
        claim = message.ownership
        epoch = claim.epoch
        if not found or claim.HasField("founding"):
            found.append(Generation(record.offset, claim.generation, claim.founding.begin, claim.founding.blank))
    return found


def _quarantined(records: Sequence[Record]) -> dict[int, int]:
    """Return quarantined offset -> where its Quarantine stands, by the rule of epochs."""
    epoch, serial = 0, 0
    found: dict[int, int] = {}
    for record in records:
        message = _message(record)
        body = None if message is None else message.WhichOneof("body")
        if message is None or body == "batch":
            continue
        if body == "ownership":
            if begins_term(message.ownership, epoch):
                epoch, serial = message.ownership.epoch, message.serial
        elif getattr(message, str(body)).epoch == epoch and (message.serial > serial or not serial):
            serial = message.serial
            if body == "quarantine":
                found.setdefault(message.quarantine.offset, record.offset)
    return found


def _refused(
    batch: TupleBatch, appended_us: int, config: SlotConfig, edges: Mapping[str, dict[str, float]], cursor: float
) -> bool:
    """The rules of a batch, in their order; notes the incarnation."""
    edge = edges.get(batch.edge)
    if edge is None or _misshapen(batch, config):
        return True
    home = dict(zip(config.sensors, config.edges, strict=True))
    listed = sensors(batch.sensor).tolist()
    if listed != sorted(set(listed)) or any(home.get(sensor) != batch.edge for sensor in listed):
        return True
    if batch.incarnation < edge["incarnation"]:
        return True
    if batch.event_time_us > appended_us + config.max_ahead_us:
        return True
    edge["incarnation"] = batch.incarnation
    return batch.step < cursor or batch.step <= edge["last"]


def _misshapen(batch: TupleBatch, config: SlotConfig) -> bool:
    columns = ((batch.sensor, batch.value), (batch.helper, batch.helper_value))
    if any(len(values) != 2 * len(ids) or len(ids) % 4 for ids, values in columns):
        return True
    if len(batch.count) not in (0, len(batch.sensor)):
        return True
    return config.mode == "steps" and batch.event_time_us != batch.step * config.slide_us


def _helpers(batches: Mapping[str, TupleBatch], edge_of: Mapping[int, str]) -> dict[int, float]:
    """Return the helpers' readings, each as its own edge gives it."""
    return {
        sensor: value
        for edge, batch in batches.items()
        for sensor, value in zip(sensors(batch.helper).tolist(), floats(batch.helper_value).tolist(), strict=True)
        if edge_of.get(sensor) == edge
    }


def _recount(step: float, before: SlotConfig, config: SlotConfig) -> float:
    """Return a step's number when steps are counted in another unit."""
    return step if math.isinf(step) else min(step * before.slide_us // config.slide_us, MAX_TIME_US)


def _as_run(batch: TupleBatch) -> Run:
    ids = sensors(batch.sensor)
    none = np.zeros(len(ids), dtype=np.int64)
    time_us = batch.event_time_us
    return measured_run(batch.step, time_us, ids, floats(batch.value), none + time_us, none)


def _values(config: SlotConfig, batches: Mapping[str, TupleBatch]) -> Floats:
    value_of: dict[int, float] = {}
    for batch in batches.values():
        value_of.update(zip(sensors(batch.sensor).tolist(), floats(batch.value).tolist(), strict=True))
    return np.array([value_of.get(sensor, math.nan) for sensor in config.sensors])


def compare(
    recomputed: Iterable[Recomputed],
    recovered: Iterable[Record],
    scale: Mapping[int, float] | None = None,
    begun: Sequence[Generation] = (),
) -> Comparison:
    """Compare what the log says with what stands in `recovered`.

    Args:
        recovered: the whole partition, from its first record.
        scale: sensor id -> standard deviation; sensors without one are compared with the unit 1.
        begun: `generations` of the log; without it there is one.
    """
    result = Comparison()
    expected = {item.name: item for item in recomputed}
    result.outputs = len(expected)
    seen: set[Name] = set()
    for record in recovered:
        found = _output(record)
        if found is None:
            result.unreadable += 1
            continue
        generation, name, message = found
        place = f"recovered, offset {record.offset}, name {tuple(name)}"
        if _disowned(generation, name, begun):
            result.disowned += 1
            continue
        result.repeats += name in seen
        seen.add(name)
        item = expected.get(name)
        if item is None:
            result.differ(f"{place}: the log gives no output of this name")
        elif item.generation != generation:
            result.differ(f"{place}: generation {generation}, expected {item.generation}")
        else:
            _compare_one(place, item.frame, message, scale or {}, result)
    last = max(seen, default=None)
    for name in expected:
        if name in seen:
            result.compared += 1
        elif last is not None and name < last:
            result.differ(f"name {tuple(name)}: the log gives this output, `recovered` does not have it")
        else:
            result.pending += 1
    return result


def _disowned(generation: int, name: Name, begun: Sequence[Generation]) -> bool:
    """Return whether an output is of an input that the log has lost, or of what it held before it was begun anew."""
    known = [item.generation for item in begun]
    later = begun[known.index(generation) + 1 :] if generation in known else begun
    return any(item.blank or (generation in known and item.begin <= name.offset) for item in later)


def _output(record: Record) -> tuple[int, Name, Recovered] | None:
    """Return (generation, name, message); None = no output, but what somebody else wrote there."""
    try:
        generation, _, name = unpack_key(record.key)
        message = decode(Recovered, record.value)
    except ValueError:
        return None
    return generation, name, message


def _compare_one(place: str, frame: Frame, found: Recovered, scale: Mapping[int, float], result: Comparison) -> None:
    ids = sensors(found.sensor)
    if found.step != frame.step or found.event_time_us != frame.event_time_us:
        result.differ(f"{place}: step {found.step}, expected {frame.step}")
        return
    if not np.array_equal(ids, frame.sensor):
        result.differ(f"{place}: {len(ids)} rows, expected {len(frame.sensor)}, or other sensors")
        return
    if not np.array_equal(octets(found.quality), frame.quality):
        first = int(ids[octets(found.quality) != frame.quality][0])
        result.differ(f"{place}: another tag, first at sensor {first}")
        return
    unit = np.array([scale.get(sensor, 1.0) for sensor in ids.tolist()])
    for column, theirs, ours in (
        ("mean", found.mean, frame.mean),
        ("sd", found.sd, frame.sd),
        ("bound", found.bound, frame.bound),
    ):
        with np.errstate(invalid="ignore"):
            off = np.where(floats(theirs) == ours, 0.0, np.abs(floats(theirs) - ours) / unit)
        off = np.where(np.isnan(floats(theirs)) & np.isnan(ours), 0.0, np.nan_to_num(off, nan=math.inf))
        worst = float(off.max(initial=0.0))
        result.largest_sd = max(result.largest_sd, worst)
        if worst > TOLERANCE_SD:
            result.differ(
                f"{place}: {column} of sensor {int(ids[off.argmax()])} differs by {worst:.3g} standard deviations"
            )
            return


def replay_slots(settings: Settings, slots: Sequence[int], tell: Callable[[str], None]) -> int:
    """Replay the given slots (none = all) of the configured log; return the exit code, 1 = something differs.

    Raises:
        LogError: the log does not answer, or has no such slot.
        ModelError: the store lacks a model that the log names.
    """
    source = tool_log(settings, "replay")
    count = source.partitions(TUPLES)
    for slot in slots:
        if not 0 <= slot < count:
            raise LogError(
                f"--slot: found {slot}, expected one of 0..{count - 1}, as `{settings.kafka.prefix}{TUPLES}` has them"
            )
    code = 0
    for slot in slots or range(count):
        recovered = read_partition(source, RECOVERED, slot)  # first: what it has, the log has by then as well
        result = replay_slot(read_partition(source, TUPLES, slot), recovered, settings.recovery.store)
        tell(
            f"slot {slot}: {result.outputs} outputs computed again, {result.compared} compared, "
            f"{result.repeats} repeats, {result.pending} not written yet, {result.unreadable} unreadable, "
            f"{result.disowned} of lost inputs, {result.differing} differences, "
            f"largest difference of a value {result.largest_sd:.2g} standard deviations"
        )
        for line in result.differences:
            tell(f"  {line}")
        code = code or int(result.differing > 0)
    return code


def replay_slot(tuples: Sequence[Record], recovered: Sequence[Record], store: Path) -> Comparison:
    """Compute a slot's outputs again and compare; `store` holds the models that its log names."""
    scale: dict[int, float] = {}
    models: list[Model] = []

    def load(sha256: str) -> Model:
        models.append(load_from_store(store, sha256))
        return models[-1]

    recomputed = list(recompute(tuples, load))
    names = dict(_sensor_names(tuples))
    for model in models:
        by_name = dict(zip(model.names, model.scale.tolist(), strict=True))
        scale.update({sensor: by_name[name] for sensor, name in names.items() if name in by_name})
    return compare(recomputed, recovered, scale, generations(tuples))


def _sensor_names(tuples: Iterable[Record]) -> Iterator[tuple[int, str]]:
    for record in tuples:
        message = _message(record)
        if message is not None and message.WhichOneof("body") == "settings":
            config = SlotConfig.parse(message.settings.text)
            yield from zip(config.sensors, config.names, strict=True)
