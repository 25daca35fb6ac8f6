"""What a worker reads of a slot when its replica asks: ranges of the log, contexts, the last output."""

from __future__ import annotations

from structlog.stdlib import BoundLogger

from tsunagi.runtime.door import decode
from tsunagi.runtime.log import CONTEXTS, RECOVERED, TUPLES, Log, LogError, Position, Record, Traffic
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import Context, Recovered
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.standby.parts import join

READ_S = 1.0
"""What has not come from a topic within this time, in seconds, is taken for not there: compaction may have taken it."""
IDLE_READS = 20
"""The reader is asked so many times within `READ_S`."""
PULL_WAIT_S = 0.005
"""So long the broker may hold a pull that finds nothing, seconds. A standby asks for records that are there."""
MAX_RECORDS = 500
"""Records that are taken from a reader at once. More would keep the loop from its other slots for too long."""
TRIED_CONTEXTS = 200
"""Records of `contexts` that are looked through for one that is whole, from where it should be."""


class SlotReader:
    """Reads what is asked for and nothing else: a client that stays assigned would go on fetching."""

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
        """Fetch for some time and drop what comes: the client answers for these topics at once from then on."""
        self._pull.read(MAX_RECORDS, seconds)

    def traffic(self) -> list[Traffic]:
        """Return what both clients have read and asked."""
        return [self._pull.traffic(), self._ask.traffic()]

    def close(self) -> None:
        """Close both clients."""
        self._pull.close()
        self._ask.close()

    def inputs(self, slot: int, offset: int, upto: int) -> list[Record]:
        """Return the records of the slot's log from `offset` up to `upto`, and what came with them.

        Raises:
            LogError: nothing came.
        """
        records = self.records(Position(TUPLES, slot, offset), upto, beyond=True)
        if not records:
            raise LogError(f"{TUPLES}/{slot}: nothing came of {offset}..{upto}")
        return records

    def records(self, position: Position, upto: int, *, beyond: bool = False) -> list[Record]:
        """Read [position.offset, upto); assigned for that time only, or the client would go on prefetching.

        Args:
            beyond: take as well what came with it, which would have to be fetched again.
        """
        records: list[Record] = []
        idle = 0
        self._pull.assign([position])
        try:
            following = position.offset
            while idle < IDLE_READS and following < upto:
                # No more than is left is asked for: a client waits for all that it is asked for.
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
        """Return the newest context at this place (None = the end) or before it whose position is not beyond `upto`.

        Positions ascend as good as always, so it is found by halving.
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
        """Return the whole context that begins at this place of `contexts`; None = none does."""
        found = None if offset is None else self._part(slot, offset)
        if offset is None or found is None or found.parts == 0:
            return found
        parts = []
        for number in range(found.parts):  # as many as it says: perhaps more than there are records in the world
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
        """Return whether an output stands at this place of `recovered`; what retention has taken did."""
        first, end = self.range(RECOVERED, slot)
        if not first <= place < end:
            return place < first
        records = self.records(Position(RECOVERED, slot, place), place + 1)
        if not records:
            raise LogError(f"{RECOVERED}/{slot}: nothing came of {place}")
        found = _named(records[0])
        return found is not None and found[1] == name

    def tail(self, slot: int, before: int | None = None, below: Name | None = None) -> tuple[int, Name, int]:
        """Return generation and name of the last output in `recovered`, and when its input was appended.

        What is no output of this slot, but a stranger's, names nothing.

        Args:
            before: look before this offset; None = from the end.
            below: look for an output that comes before this one in the order of names; None = for any.
        """
        first, end = self.range(RECOVERED, slot)
        end = end if before is None else min(end, before)
        count = 1
        while end > first:
            begin = max(first, end - count)
            records = self.records(Position(RECOVERED, slot, begin), end)
            if not records:
                raise LogError(f"{RECOVERED}/{slot}: nothing came of {begin}..{end}")
            for record in reversed(records):
                found = _named(record)
                if found is not None and (below is None or found[1] < below):
                    return found
            end, count = begin, MAX_RECORDS
        return 0, NO_NAME, 0


def _named(record: Record) -> tuple[int, Name, int] | None:
    """Return (generation, name, when its input was appended) of an output; None = it is none."""
    try:
        generation, slot, name = unpack_key(record.key)
        message = decode(Recovered, record.value)
    except ValueError:
        return None
    named = (message.generation, message.slot, message.offset, message.index)
    return (generation, name, message.appended_us) if named == (generation, slot, *name) else None
