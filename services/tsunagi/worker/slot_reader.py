"""Reads for a replica what it asks for: ranges of a slot's log, contexts, the last output.

A context is the whole state of a slot at one offset of its log.
"""

from __future__ import annotations

from structlog.stdlib import BoundLogger

from tsunagi.runtime.door import decode
from tsunagi.runtime.log import CONTEXTS, RECOVERED, TUPLES, Log, LogError, Position, Record, Traffic
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import Context, Recovered
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.standby.parts import join

READ_S = 1.0
"""Records that have not come within this time, seconds, count as missing: compaction may have removed them."""
IDLE_READS = 20
"""Number of reads within `READ_S`."""
PULL_WAIT_S = 0.005
"""How long the broker may hold a fetch that finds no records, seconds. A standby only asks for records that exist."""
MAX_RECORDS = 500
"""The most records of one read. More would keep the loop from its other slots for too long."""
STRAGGLERS = 50
"""At most so many outputs of earlier generations are passed over to find the last one of the present one."""
TRIED_CONTEXTS = 200
"""The most records of `contexts` that are tried, going backwards, to find a whole context."""


class SlotReader:
    """Reads what is asked for and nothing else. Partitions are assigned only for that time, since clients prefetch."""

    def __init__(self, log: Log, logger: BoundLogger) -> None:
        self._pull = log.reader(wait_s=PULL_WAIT_S, measured=True)
        self._ask = log.reader(measured=True)
        self._logger = logger

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and its end."""
        return self._ask.range(topic, partition)

    def follow(self, positions: list[Position]) -> None:
        """Fetch from these positions from now on, and from no others."""
        self._pull.assign(positions)

    def fetch(self, seconds: float) -> None:
        """Fetch for so many seconds and drop the records. After that the client answers quickly for these topics."""
        self._pull.read(MAX_RECORDS, seconds)

    def traffic(self) -> list[Traffic]:
        """Return what both clients have read, and how many requests they have made."""
        return [self._pull.traffic(), self._ask.traffic()]

    def close(self) -> None:
        """Close both clients."""
        self._pull.close()
        self._ask.close()

    def inputs(self, slot: int, offset: int, upto: int) -> list[Record]:
        """Return the records [offset, upto) of the slot's log, and later ones that came with them.

        Raises:
            LogError: no record came.
        """
        records = self.records(Position(TUPLES, slot, offset), upto, beyond=True)
        if not records:
            raise LogError(f"{TUPLES}/{slot}: nothing came of {offset}..{upto}")
        return records

    def records(self, position: Position, upto: int, *, beyond: bool = False) -> list[Record]:
        """Return the records [position.offset, upto) of a partition, as far as they come within `READ_S`.

        Args:
            beyond: also return later records that came with them, which would otherwise be fetched again.
        """
        records: list[Record] = []
        idle = 0
        self._pull.assign([position])
        try:
            following = position.offset
            while idle < IDLE_READS and following < upto:
                # Ask only for as many records as are left: a client waits until it has as many as it is asked for.
                got = self._pull.read(min(MAX_RECORDS, upto - following), READ_S / IDLE_READS)
                idle = 0 if got else idle + 1
                records += got
                following = got[-1].offset + 1 if got else following
            if beyond and following >= upto:
                records += self._pull.read(MAX_RECORDS, 0.0)
        finally:
            self._pull.assign([])
        return records if beyond else [record for record in records if record.offset < upto]

    def find_context(self, slot: int, place: int | None, upto: int) -> Context | None:
        """Return the newest whole context at `place` or before it whose position is not beyond `upto`; None = none.

        Positions in `contexts` nearly always ascend, so a binary search finds it.

        Args:
            place: an offset of `contexts`; None = the end.
            upto: an offset of the slot's log.
        """
        first, end = self.range(CONTEXTS, slot)
        low, high = first, end if place is None else min(end, place + 1)
        while low < high:
            middle = (low + high) // 2
            found = self._part(slot, middle)
            if found is not None and found.offset <= upto:
                low = middle + 1
            else:
                high = middle
        for at in range(low - 1, max(first, low - 1 - TRIED_CONTEXTS) - 1, -1):
            found = self.context(slot, at)
            if found is not None and found.offset <= upto:
                return found
        return None

    def context(self, slot: int, offset: int | None) -> Context | None:
        """Return the whole context that begins at this offset of `contexts`; None = no whole one does."""
        found = None if offset is None else self._part(slot, offset)
        if offset is None or found is None or found.parts == 0:
            return found
        parts = []
        for number in range(found.parts):  # it may claim any number, so stop at the first that is missing
            part = found if number == 0 else self._part(slot, offset + number)
            if part is None or (part.part, part.parts, part.offset) != (number, found.parts, found.offset):
                break
            parts.append(part)
        return join(parts)

    def _part(self, slot: int, offset: int) -> Context | None:
        first, end = self.range(CONTEXTS, slot)
        if not first <= offset < end:
            return None
        records = self.records(Position(CONTEXTS, slot, offset), offset + 1)
        if not records:
            raise LogError(f"{CONTEXTS}/{slot}: nothing came of {offset}")
        return read_message(Context, records[0], self._logger)

    def stands(self, slot: int, name: Name, place: int) -> bool:
        """Return whether an output stands at this offset of `recovered`, or has been deleted there by retention."""
        first, end = self.range(RECOVERED, slot)
        if not first <= place < end:
            return place < first
        records = self.records(Position(RECOVERED, slot, place), place + 1)
        if not records:
            raise LogError(f"{RECOVERED}/{slot}: nothing came of {place}")
        found = _named(records[0])
        return found is not None and found[1] == name

    def tail(
        self, slot: int, wanted: int, before: int | None = None, below: Name | None = None
    ) -> tuple[int, Name, int]:
        """Return the last output in `recovered`: its generation, its name, and its input's append time (microseconds).

        Records that are no outputs are skipped. If there is no output, it returns (0, NO_NAME, 0).

        Args:
            wanted: the generation to look for. Outputs of an earlier one may come late and stand behind its own. If
                none of it is among the last `STRAGGLERS` outputs, the last one of any generation is returned.
            before: look before this offset; None = from the end.
            below: look for an output whose name is smaller than this one; None = for any.
        """
        first, end = self.range(RECOVERED, slot)
        end = end if before is None else min(end, before)
        last: tuple[int, Name, int] | None = None
        count = passed = 1
        while end > first and passed < STRAGGLERS:
            begin = max(first, end - count)
            records = self.records(Position(RECOVERED, slot, begin), end)
            if not records:
                raise LogError(f"{RECOVERED}/{slot}: nothing came of {begin}..{end}")
            for record in reversed(records):
                found = _named(record)
                if found is None or (below is not None and found[1] >= below):
                    continue
                if found[0] == wanted:
                    return found
                last, passed = last or found, passed + 1
            end, count = begin, STRAGGLERS
        return last or (0, NO_NAME, 0)


def _named(record: Record) -> tuple[int, Name, int] | None:
    """Return (generation, name, when its input was appended in microseconds) of an output; None = it is no output."""
    try:
        generation, slot, name = unpack_key(record.key)
        message = decode(Recovered, record.value)
    except ValueError:
        return None
    named = (message.generation, message.slot, message.offset, message.index)
    return (generation, name, message.appended_us) if named == (generation, slot, *name) else None
