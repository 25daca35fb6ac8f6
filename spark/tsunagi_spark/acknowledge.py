"""The Level-0-Ack of A-SAS: how far this job has read `recovered`, a few bytes for each slot after every batch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from tsunagi.runtime.cells import read_ack_cells
from tsunagi.runtime.log import ACKS, Log, LogError, Producer
from tsunagi.runtime.messages import VERSION, Ack, Level0Ack
from tsunagi_spark.frontier import SlotMark

NODE = "spark"
"""Node name under which the job acknowledges."""


def level0(slot: int, mark: SlotMark, topic_id: str = "") -> tuple[bytes, bytes]:
    """Return (key, value) of the acknowledgement of everything up to a mark, in the topic with that id."""
    ack = Ack(
        version=VERSION,
        level0=Level0Ack(
            slot=slot,
            node=NODE,
            epoch=mark.epoch,
            generation=mark.generation,
            offset=mark.read_to,
            last_offset=mark.last_offset,
            last_index=mark.last_index,
            topic_id=topic_id,
            digest=mark.digest,
        ),
    )
    return f"{slot}/level0/{NODE}".encode(), ack.SerializeToString()


class Acknowledger:
    """Writes Level-0-Acks to `acks`. One that is lost does no harm, since the next one includes it."""

    def __init__(self, log: Log) -> None:
        self._producer: Producer = log.producer()
        self._cells = read_ack_cells(log)
        self._errors: list[LogError] = []

    def write(self, marks: Mapping[int, SlotMark], topic_id: str = "") -> None:
        """Acknowledge what has been read of each slot.

        Raises:
            LogError: an earlier acknowledgement was refused.
        """
        for slot, mark in sorted(marks.items()):
            key, value = level0(slot, mark, topic_id)
            try:
                self._producer.send(ACKS, self._cells.of(slot), key, value, self._delivered)
            except BufferError:
                break
        self._producer.poll(0)
        if self._errors:
            raise LogError(f"acknowledgements could not be delivered: {self._errors[0]}")

    def close(self) -> None:
        """Wait a moment until the queued acknowledgements are sent."""
        with contextlib.suppress(LogError):
            self._producer.flush(1.0)
        self._producer.close()

    def _delivered(self, error: LogError | None, offset: int) -> None:
        if error is not None:
            self._errors.append(error)
