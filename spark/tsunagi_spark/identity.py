"""Finds out whether the log is still the one to which the job's positions belong (tsunagi.runtime.marks).

With the offset up to which it has read each slot of `recovered`, the job keeps a digest of the record before it. For
the offset up to which it has written each partition of `results` it needs none: nobody else writes there, so an end
before that offset tells enough. The ids of both topics are kept too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from tsunagi.runtime import marks as identity
from tsunagi.runtime.log import RECOVERED, RESULTS, Log, LogError, OffsetLostError, Position, Reader
from tsunagi_spark.checkpoint import Checkpoint
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.standing import JobStanding
from tsunagi_spark.state import Store

KEPT_FAULTS = 20
"""Most faults that are kept and shown; the oldest ones are dropped first."""


class PartitionFault(NamedTuple):
    """A partition that is not the one it was."""

    topic: str
    partition: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}: {self.reason}"


class LogChangedError(OffsetLostError):
    """The log is not the one that was read; `reconcile` decides where to go on."""


def read_faults(reader: Reader, marks: Mapping[int, SlotMark]) -> list[PartitionFault]:
    """Return the faults of the positions in `recovered`.

    Args:
        reader: as in `marks.record_before`.

    Raises:
        LogError: the log did not answer.
    """
    found = []
    for slot, mark in sorted(marks.items()):
        first, end = reader.range(RECOVERED, slot)
        reason = ""
        if mark.read_to < first:
            reason = f"retention took the records {mark.read_to}..{first} before they were read"
        elif mark.read_to > end:
            reason = f"the log lost its end: it ends at {end}, and was read up to {mark.read_to}"
        elif mark.digest:
            record = identity.record_before(reader, Position(RECOVERED, slot, mark.read_to))
            digest = 0 if record is None else identity.digest_of(record)
            reason = identity.LogMark("", mark.digest).contradicts(identity.LogMark("", digest))
        if reason:
            found.append(PartitionFault(RECOVERED, slot, reason))
    return found


def check_read(reader: Reader, marks: Mapping[int, SlotMark]) -> None:
    """Check that the records just read follow those that were read before; wait for the log as long as it takes.

    Raises:
        LogChangedError: they do not follow.
    """
    while True:
        try:
            faults = read_faults(reader, marks)
        except OffsetLostError:
            raise
        except LogError:
            continue
        if faults:
            raise LogChangedError("; ".join(map(str, faults)))
        return


def written_faults(ends: Mapping[int, int], expected: Mapping[int, int]) -> list[PartitionFault]:
    """Return the faults of `results`: partitions that end before what this job has written."""
    found = [(partition, ends.get(partition, 0), written) for partition, written in sorted(expected.items())]
    return [
        PartitionFault(RESULTS, partition, f"the log lost its end: it ends at {end}, and was written to {written}")
        for partition, end, written in found
        if end < written
    ]


def topic_ids(log: Log) -> dict[str, str]:
    """Return the ids of the topics in which the job keeps positions."""
    return {topic: log.topic_id(topic) for topic in (RECOVERED, RESULTS)}


def result_ends(reader: Reader, partitions: Iterable[int]) -> dict[int, int]:
    """Return the ends of partitions of `results`.

    Raises:
        LogError: the log did not answer.
    """
    return {partition: reader.range(RESULTS, partition)[1] for partition in partitions}


def reconcile(
    log: Log, store: Store, checkpoint: Checkpoint, standing: JobStanding, cores: int
) -> tuple[JobStanding, list[PartitionFault]]:
    """Compare the job's positions with the log, and decide where to go on.

    A slot whose log is not the one that was read is read again from the first record that it holds, and repeats are
    dropped by name. If `results` has lost records, the job starts anew: it computes everything that `recovered` holds
    again, under the same names.

    Returns:
        (where the job stands now, as in the checkpoint; the faults that were found).

    Raises:
        LogError: the log did not answer.
    """
    ids = topic_ids(log)
    if standing.batch < 0:
        return replace(standing, topic_ids=ids), []
    reader = log.reader()
    try:
        partitions = {RECOVERED: log.partitions(RECOVERED), RESULTS: log.partitions(RESULTS)}
        faults = read_faults(reader, standing.marks)
        faults += written_faults(result_ends(reader, range(partitions[RESULTS])), standing.ends)
        for topic, count in partitions.items():
            why = identity.LogMark(standing.topic_ids.get(topic, ""), 0).contradicts(identity.LogMark(ids[topic], 0))
            if why:
                faults = [fault for fault in faults if fault.topic != topic]
                faults += [PartitionFault(topic, partition, why) for partition in range(count)]
        first = {slot: reader.range(RECOVERED, slot)[0] for slot in range(partitions[RECOVERED])}
    finally:
        reader.close()
    told = [*standing.faults, *map(str, faults)][-KEPT_FAULTS:]
    if any(fault.topic == RESULTS for fault in faults):
        checkpoint.start_anew(store, "results lost what stood in it: everything is computed again")
        store.prepare(cores)
        return JobStanding(topic_ids=ids, faults=told), faults
    if not faults:
        return standing, []
    lost = {fault.partition for fault in faults}
    marks = {
        slot: mark._replace(read_to=first.get(slot, 0), digest=0) if slot in lost else mark
        for slot, mark in standing.marks.items()
    }
    standing = replace(standing, marks=marks, topic_ids=ids, faults=told)
    # The order matters: after a crash in between, the same faults are found again.
    positions = {slot: marks[slot].read_to if slot in marks else offset for slot, offset in first.items()}
    checkpoint.set_back(standing.batch, positions, anew=True)
    store.remove(f"driver/before-{standing.batch + 1}")
    store.write_json(f"driver/after-{standing.batch}", standing.as_json())
    return standing, faults
