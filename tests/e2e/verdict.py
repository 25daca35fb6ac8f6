"""Validation: what a running system has delivered so far, row by row, by the demo's checker.

The truth is cut at the newest step that all groups have results of; what is younger is still on its way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from tests.e2e.stream import STEPS
from tests.e2e.system import SLOTS, Rig
from tsunagi.audit.check import Checked, check
from tsunagi.audit.evidence import Aside, Collected, Kill, Outage, read_asides, read_placement
from tsunagi.audit.truth import TrueReadings, World, read_readings, windows
from tsunagi.demo.figures import recovered_figures, takeovers
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import sensors
from tsunagi.runtime.log import DEAD_LETTERS, LATE, PLAN, RECOVERED, RESULTS, TUPLES, Record
from tsunagi.runtime.messages import LogRecord, ResultBlock, TupleBatch
from tsunagi.system.topics import read_partition, read_topic

LOGGER = logging.getLogger(__name__)
_ATTEMPTS = 10
Which = Callable[[TupleBatch], bool]


@dataclass(frozen=True, slots=True)
class Letter:
    """A batch as it stands in a slot's log."""

    slot: int
    offset: int
    appended_us: int
    batch: TupleBatch


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        last_step: the newest step judged.
        logs: whole slots' logs.
        asides: what stands in `late` and `dead-letters` of records of `tuples`.
        skipped: batches that the checker was not shown, up to where the slots' owners had acknowledged.
    """

    checked: Checked
    collected: Collected
    world: World
    last_step: int
    logs: dict[int, Sequence[Record]]
    asides: dict[tuple[int, int], Aside]
    skipped: list[Letter]

    def takeovers(self) -> list[dict[str, object]]:
        """Return every change of owner, with its times."""
        return takeovers(self.checked, self.collected, STEPS.slide_us)

    def tell(self) -> None:
        """Log the figures of the takeovers."""
        for item in self.takeovers():
            LOGGER.info("takeover %s", item)

    def estimated(self, sensor_ids: Collection[int], from_us: int, to_us: int) -> float:
        """Return the share of the values of these sensors, in steps of that time, that were recovered."""
        delivery = self.checked.delivery
        first, last = (time_us // STEPS.slide_us - delivery.first_step for time_us in (from_us, to_us))
        part = delivery.estimated[first + 1 : last + 1][:, sorted(sensor_ids)]
        return float(part.mean())

    def error_sd(self) -> float:
        """Return the root mean square error of all recovered values, in standard deviations of their sensors."""
        found = recovered_figures(self.checked.delivery, self.world, 0.9)["nrmse"]
        assert found is not None
        return float(found)


def batches(slot: int, records: Sequence[Record]) -> Iterator[Letter]:
    """Yield the batches of a slot's log."""
    for record in records:
        message = parsed(record)
        if message is not None and message.WhichOneof("body") == "batch":
            yield Letter(slot, record.offset, record.appended_us, message.batch)


def parsed(record: Record) -> LogRecord | None:
    """Return a record of `tuples`; None = unreadable."""
    try:
        return LogRecord.FromString(record.value or b"")
    except DecodeError:
        return None


def validate(
    rig: Rig,
    *,
    ignore: Which = lambda _: False,
    strange: Collection[tuple[str, int, int]] = (),
    gone: Collection[str] = (),
) -> Verdict:
    """Judge everything so far; fail unless nothing was lost, doubled, out of order or wrong.

    Args:
        ignore: batches that the test accounts for itself.
        strange: (topic, partition, offset) of records that the test wrote itself.
        gone: edges that send nothing that the checker sees.
    """
    verdict = judge(rig, ignore=ignore, strange=strange, gone=gone)
    findings = verdict.checked.findings
    assert findings.ok, rig.report(
        f"lost {findings.lost}, duplicated {findings.duplicated}, inverted {findings.inverted}, "
        f"wrong {dict(findings.wrong)}\n" + "\n".join(findings.problems[:20])
    )
    assert findings.tuples_in > 0
    assert findings.rows_out > 0
    return verdict


def judge(rig: Rig, *, ignore: Which, strange: Collection[tuple[str, int, int]], gone: Collection[str]) -> Verdict:
    """Run the checker; see `validate`."""
    written = set(strange)

    def ours(record: Record) -> bool:
        return (record.topic, record.partition, record.offset) not in written

    results = read_topic(rig.log, RESULTS)
    last_step = _last_step(results)
    logs: dict[int, Sequence[Record]] = {slot: read_partition(rig.log, TUPLES, slot) for slot in range(SLOTS)}
    ends = {slot: records[-1].offset + 1 for slot, records in logs.items()}
    for slot, end in ends.items():
        rig.wait(
            lambda slot=slot, end=end: rig.fleet.acked(slot, rig.watches[slot].owner) >= end,  # type: ignore[misc]
            f"the acknowledgement of offset {end} by slot {slot}'s owner",
        )
    letters = [letter for slot, records in logs.items() for letter in batches(slot, records)]
    skipped = [letter for letter in letters if ignore(letter.batch)]
    hidden = {(item.slot, item.offset) for item in letters if item.batch.step > last_step or ignore(item.batch)}
    late = read_partition(rig.log, LATE, 0)
    dead_letters = read_partition(rig.log, DEAD_LETTERS, 0)
    outages = [
        outage for edge in rig.inputs.table.edges for outage in _outages(rig, edge, letters, ignore, edge in set(gone))
    ]
    collected = Collected(
        tuples={
            slot: [record for record in records if (slot, record.offset) not in hidden]
            for slot, records in logs.items()
        },
        recovered={slot: list(filter(ours, read_partition(rig.log, RECOVERED, slot))) for slot in range(SLOTS)},
        results={
            partition: [record for record in records if _step(record) <= last_step]
            for partition, records in results.items()
        },
        late=late,
        dead_letters=dead_letters,
        placement=read_placement(filter(ours, read_partition(rig.log, PLAN, 0))),
        kills=_in_their_time(rig.kills),
        outages=outages,
        notes=rig.notes(),
    )
    world = _world(rig, last_step)
    asides = {(aside.slot, aside.offset): aside for aside in read_asides(late, dead_letters)}
    return Verdict(check(collected, world), collected, world, last_step, logs, asides, skipped)


def _in_their_time(kills: Sequence[Kill]) -> list[Kill]:
    return [kill for kill in kills if kill.what == "owner"]


def _last_step(results: dict[int, list[Record]]) -> int:
    newest: dict[str, int] = {}
    for records in results.values():
        for record in records:
            block = ResultBlock.FromString(record.value or b"")
            newest[block.group] = max(block.step, newest.get(block.group, block.step))
    return min(newest.values())


def _step(record: Record) -> int:
    return ResultBlock.FromString(record.value or b"").step


def _outages(rig: Rig, edge: str, letters: Sequence[Letter], ignore: Which, gone: bool) -> Iterator[Outage]:
    """Yield when an edge was away: before its first batch, and from each kill to the next incarnation's first batch."""
    if gone:
        yield Outage(edge, 0, 0)
        return
    own = [letter for letter in letters if letter.batch.edge == edge and not ignore(letter.batch)]
    for from_us in (0, *rig.down.get(edge, [])):
        before = max((item.batch.incarnation for item in own if item.appended_us <= from_us), default=0)
        later = [item.appended_us for item in own if item.batch.incarnation > before]
        yield Outage(edge, from_us, min(later, default=0))


def _world(rig: Rig, last_step: int) -> World:
    table, settings = rig.inputs.table, rig.settings
    interval_us = round(STEPS.interval_s * 1e6)
    whole = read_readings(rig.inputs.data, table, origin_us=rig.origin_us, interval_us=interval_us)
    rows = whole.times_us <= last_step * STEPS.slide_us
    max_age_us = np.array([sensor.max_age_s for sensor in table.sensors]) * 1e6
    truth = windows(TrueReadings(whole.times_us[rows], whole.values[rows]), STEPS, max_age_us)
    known = set(Model.load(rig.inputs.model).names)
    with np.errstate(invalid="ignore"):
        scale = np.nan_to_num(whole.values.std(axis=0))
    return World(
        table=table,
        truth=truth,
        steps=STEPS,
        modelled=frozenset(sensor.id for sensor in table.sensors if sensor.name in known),
        range_us=round(settings.query.range_s * 1e6),
        unknown_group=settings.spark.unknown_group,
        restart_us=0,
        scale=scale,
        undisturbed=False,  # the tests disturb in many ways and judge that themselves, and others use the machine
    )


def wait_exact(rig: Rig, edges: Collection[str], judged: Callable[[], Verdict]) -> Verdict:
    """Go on until all values of these edges in the last second were measured; return what `judged` says then."""
    ids = set().union(*(slot_sensors(rig, edge) for edge in edges))
    for _ in range(_ATTEMPTS):
        rig.advance()
        verdict = judged()
        last_us = verdict.last_step * STEPS.slide_us
        if verdict.estimated(ids, last_us - 1_000_000, last_us) == 0.0:
            return verdict
    raise AssertionError(rig.report(f"values of {', '.join(edges)} are still recovered"))


def slot_sensors(rig: Rig, edge: str) -> set[int]:
    """Return the ids of an edge's sensors."""
    return {sensor.id for sensor in rig.inputs.table.of_edge(edge)}


def tuples_of(letter: Letter) -> int:
    """Return how many tuples a batch has."""
    return len(sensors(letter.batch.sensor))
