"""Computes a slot's outputs again from its log, in one plain loop.

The loop is written straight from the meaning of the log (architecture, "The slot's log decides"). It shares the
operators with the workers. It shares none of their code that opens and closes steps, judges ownership, resumes or takes
over: it knows no contexts, reads from the first record to the last, and keeps everything in dictionaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tsunagi.query.form import misfits
from tsunagi.recovery.factors import Factors
from tsunagi.recovery.model import Model
from tsunagi.replay.generations import generations, message_of, quarantined
from tsunagi.runtime.columns import Floats, floats, sensors
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Recovered, TupleBatch
from tsunagi.runtime.names import Name
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.controls import BoundsControl, DistrustControl, FactorsControl, HelpersControl, RefitControl
from tsunagi.slot.frames import Frame, measured_run
from tsunagi.slot.operators import Chain, build_chain
from tsunagi.slot.packed import PackedRows

_MOVE_ON = ("batch", "edge_out", "punctuation", "past")
"""What counts without its values if it is quarantined, since other records go on from it."""
_NEVER = math.inf
"""The first step from which an edge is out, while the edge is not out."""
_BACK = (1 << 63) - 1
"""The value of `EdgeOut.from_step` that takes an edge back: the greatest number of the field, which is no step."""
_OUT_AGAIN_US = 1_000_000
"""An edge that was taken back is not put out again within this time after the log put it out, in microseconds. It is
the rule of the slots (`tsunagi.slot.steps.OUT_AGAIN_US`), written a second time."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """An output that follows from the log."""

    name: Name
    generation: int
    frame: Frame | PackedRows


def recompute(  # noqa: C901 - the plain loop is the point: it is read beside docs/architecture.md
    records: Iterable[Record], load_model: Callable[[str], Model]
) -> Iterator[Recomputed]:
    """Yield the outputs of a slot's log, in order.

    Args:
        records: the whole partition of `tuples`, from its first record.
        load_model: returns the model with a SHA-256 digest, or raises ModelError if the store does not have it.
    """
    kept = list(records)
    buried_at = quarantined(kept)
    begun = generations(kept)
    born, founded_at = next(((item.begin, item.at) for item in reversed(begun) if item.blank), (0, -1))
    kept = [record for record in kept if record.offset >= born]
    epoch, serial, first_step, claimed_us = 0, 0, 0, 0
    config: SlotConfig | None = None
    chain: Chain | None = None
    model: Model | None = None
    base = ""  # SHA-256 of the model, or of the model from which the present one was refitted
    helped: dict[int, str] = {}
    helping: tuple[list[int], tuple[str, ...]] | None = None  # the helpers' ids and names
    lent: dict[int, dict[str, TupleBatch]] = {}
    edges: dict[str, dict[str, float]] = {}
    waiting: list[tuple[TupleBatch, int]] = []
    opened: dict[int, dict[str, TupleBatch]] = {}
    cursor, punctuated = 0, -math.inf
    for record in kept:
        message = message_of(record)
        if message is None:
            continue  # the record gives one dead letter and no output
        body = message.WhichOneof("body")
        if record.offset < founded_at and body != "batch":
            continue  # decisions from before that are not known
        generation = next((item.generation for item in reversed(begun) if item.begin <= record.offset), 0)
        buried = buried_at.get(record.offset, -1) > record.offset and body != "ownership"
        index = int(buried)  # the dead letter of a quarantined record has index 0
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
            batches = [(_bare(batch) if buried else batch, record.appended_us)]
        elif getattr(message, str(body)).epoch != epoch or (serial and message.serial <= serial):
            continue
        else:
            serial = message.serial
        if buried and body != "settings" and (config is None or body not in _MOVE_ON):
            continue  # the record gives one dead letter and no output
        if body == "settings":
            before, config = config, SlotConfig.parse(message.settings.text)
            if before is not None and chain is not None and config.same_but_bounds(before):
                chain.on_control(BoundsControl(config))
                before = config
            else:
                running, chain = chain, build_chain(config, model)
                stays = before is not None and config.changeable and config.same_but_sensors(before)
                if before is not None and running is not None and config.same_but_statements(before):
                    chain.take_over(running)
                elif stays and running is not None:
                    chain.renew(running, cursor - 1)
                if not (config.changeable and before is not None and before.slide_us == config.slide_us):
                    lent.clear()
                helped, helping = (helped, helping) if stays else ({}, None)
                if helping is not None:
                    chain.on_control(HelpersControl(*helping, cursor - 1))
            if before is not None and before.slide_us != config.slide_us:
                index += sum(len(delivered) for delivered in opened.values())  # the open batches go to `late`
                opened.clear()
                cursor, punctuated = int(_recount(cursor, before, config)), _recount(punctuated, before, config)
                for edge in edges.values():
                    edge["last"], edge["out"] = (_recount(edge[what], before, config) for what in ("last", "out"))
            cursor = min(first_step, claimed_us // config.slide_us + 1) if before is None else cursor
            listed = {*config.edges, *(edge for _, edge in config.former)}
            out = cursor if config.changeable and before is not None else _NEVER  # until its first batch, if it is new
            new = {"incarnation": 0, "last": -math.inf, "out": out, "out_us": -math.inf}
            moving = listed - _asked(config, -math.inf)  # they are waited for from the boundary of the move on
            edges = {
                name: edges.get(name, new | {"out": _NEVER} if name in moving & set(config.edges) else dict(new))
                for name in sorted(listed)
            }
            if buried:  # what waited for the settings goes to dead-letters
                index += sum(_has_values(batch) for batch, _ in waiting)
                waiting = [(_bare(batch), appended_us) for batch, appended_us in waiting]
            batches, waiting = waiting, []
        elif body == "model":
            change = message.model
            if not change.refit_of:
                base, helped = change.sha256, {}
                helping = None
                model = load_model(base) if base else None
                if chain is not None:
                    chain.set_model(model)
            elif change.refit_of == base and chain is not None:
                chain.on_control(RefitControl(load_model(change.sha256), cursor - 1))
        elif body == "calibrated" and chain is not None:
            if message.calibrated.model == base:
                chain.on_control(FactorsControl(Factors.read(message.calibrated)))
        elif body == "sensor_out" and chain is not None:
            if message.sensor_out.model == base:
                chain.on_control(DistrustControl(message.sensor_out.sensor, message.sensor_out.out))
        elif body == "helpers" and chain is not None:
            if message.helpers.model == base:
                ids = sensors(message.helpers.sensor).tolist()
                helped = dict(zip(ids, message.helpers.edge, strict=True))
                helping = ids, tuple(message.helpers.name)
                chain.on_control(HelpersControl(ids, message.helpers.name, cursor - 1))
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
        elif body == "past" and chain is not None and chain.stream is not None:
            if buried:
                chain.stream.skip(message.past)
                continue
            for rows in chain.stream.fill(message.past, record.offset):
                yield Recomputed(Name(record.offset, index), generation, rows)
                index += 1
        if config is None or chain is None:
            waiting.extend(batches)
            continue
        if config.mode == "tuples":
            for batch, appended_us in batches:
                if chain.stream is not None and not buried:
                    chain.stream.keep([batch], [appended_us])
                damaged = chain.stream is not None and chain.stream.damaged(batch)
                if damaged or _refused(batch, appended_us, config, edges, -math.inf):
                    index += not buried
                    continue
                edges[batch.edge]["last"] = batch.step
                for frame in _of_tuples(chain, batch, config):
                    yield Recomputed(Name(record.offset, index), generation, frame)
                    index += 1
            continue
        for batch, appended_us in batches:
            if batch.edge not in edges and batch.helper and not _has_values(batch):
                if _misshapen(batch, config) or batch.event_time_us > appended_us + config.max_ahead_us:
                    index += not buried
                elif batch.step >= cursor and batch.edge in helped.values():
                    lent.setdefault(batch.step, {}).setdefault(batch.edge, batch)
                continue
            if _refused(batch, appended_us, config, edges, cursor):
                index += not buried  # the batch went to `late` or `dead-letters` under this name
                continue
            if all(edge["last"] == -math.inf for edge in edges.values()):
                cursor = max(cursor, int(min(batch.step - config.max_skew_steps, _limit(config))))
            own = _of_its_edge(batch, config)
            index += own is not batch  # the rest went to `dead-letters` under this name
            batch = own  # noqa: PLW2901 - what counts of it
            edges[batch.edge]["last"] = batch.step
            edges[batch.edge]["out"] = _NEVER
            opened.setdefault(batch.step, {})[batch.edge] = batch
        counted = {name: edges[name] for name in sorted(set(config.edges))}  # the others have no sensor here any more
        while cursor < _limit(config):
            asked = _asked(config, cursor)
            if any(edge["last"] < cursor < edge["out"] for name, edge in counted.items() if name in asked):
                break
            if punctuated < cursor and all(edge["last"] < cursor for edge in counted.values()):
                break
            if opened and min(opened) - cursor > config.max_gap_steps:
                cursor = int(min(*opened, _limit(config)))
                continue
            delivered = opened.pop(cursor, {})
            if buried:  # any of the values may be the one that kills, so all batches go to dead-letters
                index += sum(_has_values(batch) for batch in delivered.values())
                delivered = {}
            for _, batch in sorted(delivered.items()):
                for events in batch.events:
                    columns = Recovered(column=events.column).SerializeToString()
                    time_us = cursor * config.slide_us
                    rows = PackedRows(events.stream, cursor, time_us, events.rows, columns)
                    yield Recomputed(Name(record.offset, index), generation, rows)
                    index += 1
            told = {} if buried else lent.get(cursor, {}) | delivered
            for frame in chain.process(cursor, _values(config, delivered), _helpers(told, helped)):
                yield Recomputed(Name(record.offset, index), generation, frame)
                index += 1
            cursor += 1


def _limit(config: SlotConfig) -> float:
    """Return the first step that may not close, since a move of sensors waits for the other slots."""
    return config.move_us // config.slide_us + 1 if config.held else math.inf


def _here(config: SlotConfig, step: float) -> list[int]:
    """Return the sensors that are the slot's in this step; without a move all of them."""
    if not config.move_us:
        return list(config.sensors)
    away = config.going if step * config.slide_us > config.move_us else config.coming
    return [sensor for sensor in config.sensors if sensor not in away]


def _asked(config: SlotConfig, step: float) -> set[str]:
    """Return the edges that have sensors of the slot in this step."""
    here = set(_here(config, step))
    return {edge for sensor, edge in zip(config.sensors, config.edges, strict=True) if sensor in here}


def _has_values(batch: TupleBatch) -> bool:
    return len(batch.sensor) > 0 or len(batch.events) > 0


def _bare(batch: TupleBatch) -> TupleBatch:
    """Return a batch of a quarantined record: it still says that its edge has delivered, but gives no values."""
    return TupleBatch(
        edge=batch.edge, incarnation=batch.incarnation, step=batch.step, event_time_us=batch.event_time_us
    )


def _refused(
    batch: TupleBatch, appended_us: int, config: SlotConfig, edges: Mapping[str, dict[str, float]], cursor: float
) -> bool:
    """Return whether a batch is refused, by the rules in their order. The edge's newest incarnation is noted."""
    edge = edges.get(batch.edge)
    if edge is None or _misshapen(batch, config):
        return True
    homes = {*zip(config.sensors, config.edges, strict=True), *config.former}
    listed = sensors(batch.sensor).tolist()
    if listed != sorted(set(listed)):
        return True
    lenient = config.changeable and config.mode == "steps"
    if not lenient and any((sensor, batch.edge) not in homes for sensor in listed):
        return True
    if batch.incarnation < edge["incarnation"]:
        return True
    if batch.event_time_us > appended_us + config.max_ahead_us:
        return True
    edge["incarnation"] = batch.incarnation
    return batch.step < cursor or batch.step <= edge["last"]


def _of_its_edge(batch: TupleBatch, config: SlotConfig) -> TupleBatch:
    """Return a batch without the values of sensors that its edge does not have and did not have before.

    Nor has the slot those that come to it later, or have gone.
    """
    homes = {*zip(config.sensors, config.edges, strict=True), *config.former}
    pairs = zip(sensors(batch.sensor).tolist(), floats(batch.value).tolist(), strict=True)
    away = set(config.sensors) - set(_here(config, batch.step))
    kept = {sensor: value for sensor, value in pairs if (sensor, batch.edge) in homes and sensor not in away}
    if len(kept) == len(batch.sensor) // 4:
        return batch
    found = TupleBatch()
    found.CopyFrom(batch)
    found.sensor = np.array(list(kept), dtype="<u4").tobytes()
    found.value = np.array(list(kept.values()), dtype="<f8").tobytes()
    return found


def _misshapen(batch: TupleBatch, config: SlotConfig) -> bool:
    columns = ((batch.sensor, batch.value), (batch.helper, batch.helper_value))
    if any(len(values) != 2 * len(ids) or len(ids) % 4 for ids, values in columns):
        return True
    if len(batch.count) not in (0, len(batch.sensor)):
        return True
    for events in batch.events if config.mode == "steps" else ():
        if not events.stream or not events.column or any(misfits(column, events.rows) for column in events.column):
            return True
    return config.mode == "steps" and batch.event_time_us != batch.step * config.slide_us


def _helpers(batches: Mapping[str, TupleBatch], edge_of: Mapping[int, str]) -> dict[int, float]:
    """Return the readings of the helpers by sensor. A reading counts only if it comes from the helper's own edge."""
    return {
        sensor: value
        for edge, batch in batches.items()
        for sensor, value in zip(sensors(batch.helper).tolist(), floats(batch.helper_value).tolist(), strict=True)
        if edge_of.get(sensor) == edge
    }


def _recount(step: float, before: SlotConfig, config: SlotConfig) -> float:
    """Return the number that a step has after the slide has changed."""
    return step if math.isinf(step) else min(step * before.slide_us // config.slide_us, MAX_TIME_US)


def _of_tuples(chain: Chain, batch: TupleBatch, config: SlotConfig) -> Iterator[Frame | PackedRows]:
    """Yield what follows from one batch without steps: the rows of the operators, and those of the queries."""
    ids, stream = sensors(batch.sensor), chain.stream
    none = np.zeros(len(ids), dtype=np.int64)
    step, time_us = batch.step, batch.event_time_us
    columns = {} if stream is None else stream.columns([batch])
    given = measured_run(step, time_us, ids, floats(batch.value), none + time_us, none, columns)
    runs = chain.process_run(given.keep(np.isin(ids, config.sensors)))
    for run in runs if chain.gives_rows else ():
        rows = run.keep(~np.isnan(run.mean))
        if len(rows.mean):
            yield replace(rows, step=step, event_time_us=time_us)
    if stream is not None and runs:
        for _, answer in stream.follow(runs, [step], [time_us]):
            yield answer


def _values(config: SlotConfig, batches: Mapping[str, TupleBatch]) -> Floats:
    value_of: dict[int, float] = {}
    home = dict(zip(config.sensors, config.edges, strict=True))
    told = [
        (home.get(sensor) == edge, sensor, value)
        for edge, batch in batches.items()
        for sensor, value in zip(sensors(batch.sensor).tolist(), floats(batch.value).tolist(), strict=True)
    ]
    for own in (False, True):  # a reading of the sensor's own edge replaces that of the edge it had before
        value_of.update((sensor, value) for of_own, sensor, value in told if of_own == own)
    return np.array([value_of.get(sensor, math.nan) for sensor in config.sensors])
