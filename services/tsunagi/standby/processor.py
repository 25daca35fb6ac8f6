"""The slot's state on a node, and the work that the node's loop does on it between two looks at the clock."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.store import PendingError
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Context
from tsunagi.slot.models import LoadModel
from tsunagi.slot.outputs import Output
from tsunagi.slot.parsing import ParsedMany
from tsunagi.slot.slot import Slot
from tsunagi.standby.detector import STALL_RECORDS
from tsunagi.standby.intake import Intake
from tsunagi.standby.workload import Workload

CHUNK = 500
"""The loop processes at most this many records of a slot before it looks at the clock."""

CHUNK_S = 0.1
"""The loop processes records for about this time before it looks at the clock, seconds by the mean cost of a record."""

COST_WEIGHT = 0.02
"""The weight of one record in the running mean of what a record costs."""

COST_PERIOD_S = 1.0
"""Time constant of the running mean of what a record costs, seconds. It counts where records are rare."""


class SlotFault:
    """Why a replica could not take its slot over now.

    Attributes:
        text: the reason; "" = it could take the slot over.
        blocked: the next record names a model that this node lacks. Only processing that record ends the fault.
    """

    def __init__(self) -> None:
        self.text = ""
        self.blocked = False

    def say(self, text: str) -> None:
        """Take in a fault that the next right answer of the broker ends."""
        self.text = text

    def block(self, text: str) -> None:
        """Take in that the next record cannot be processed."""
        self.text, self.blocked = text, True

    def answered(self) -> None:
        """Take in that the broker has answered as it should."""
        if not self.blocked:
            self.text = ""

    def end(self) -> None:
        """End the fault, whatever it was."""
        self.text, self.blocked = "", False


class Processor:
    """Processes what was read of a slot's log.

    Attributes:
        slot: the slot's state.
        work: what the loop works on; heartbeats report it.
        fault: why the replica could not take the slot over now.
        record_s: seconds that a record costs, a running mean.
        processed: how many records were processed so far.
        awaited: set once the model that the slot needs next is ready; None = the slot waits for no model.
        reads_again: the awaited model belongs to a context, which must be read once more when the model is ready.
    """

    def __init__(self, slot_id: int, load_model: LoadModel, intake: Intake, record_s: float, now: float) -> None:
        self.work = Workload()
        self.slot = Slot(slot_id, load_model, self.work.announce)
        self.fault = SlotFault()
        self.record_s = record_s
        self.processed = 0
        self.awaited: threading.Event | None = None
        self.reads_again = False
        self._slot_id = slot_id
        self._load_model = load_model
        self._intake = intake
        self._worked_at = now

    def chunk(self) -> int:
        """Return how many records fit between two looks at the clock."""
        return CHUNK if self.record_s * CHUNK <= CHUNK_S else max(1, int(CHUNK_S / self.record_s))

    def rest(self, done: int) -> int:
        """Return how many records may be processed at once if `done` have been since the last look at the clock.

        Records that cost little are not cut where a part ends: what was read at once is processed at once.
        """
        chunk = self.chunk()
        return chunk if self.record_s * 2 * CHUNK <= CHUNK_S else chunk - done

    def apply(self, limit: int, upto: int) -> tuple[Sequence[Output], int] | None:
        """Process the next record, or as many as go together: at most `limit`, and only below the offset `upto`.

        Returns:
            The outputs, and how many records were processed; None = this node lacks a model that the log names.
        """
        if self.awaits():
            return None
        backlog, began = self._intake.backlog, self._intake.scan.began
        items: Iterator[tuple[Record, ParsedMany]] = islice(backlog, limit)
        if backlog[-1][0].offset >= upto:
            items = takewhile(lambda item: item[0].offset < upto, items)
        self.work.begin(STALL_RECORDS * self.record_s)
        try:
            outputs, count = self.slot.apply_run(items)
        except PendingError as error:
            self.awaited = error.ready
            return None
        except ModelError as error:
            self.fault.block(str(error))
            return None
        finally:
            self._end_work()
        self.fault.end()
        for _ in range(count):
            backlog.popleft()
        self.processed += count
        if outputs and outputs[0].name.offset < began:  # those of the generation before have been written
            outputs = [output for output in outputs if output.name.offset >= began]
        return outputs, count

    def apply_up_to(self, upto: int) -> list[Output]:
        """Process records below an offset, as many as fit before the next look at the clock; return the outputs."""
        made: list[Output] = []
        backlog, done, chunk = self._intake.backlog, 0, self.chunk()
        while backlog and backlog[0][0].offset < upto and done < chunk:
            found = self.apply(chunk - done, upto)
            if found is None:
                break
            made += found[0]
            done += found[1]
            if self.work.heavy:
                break
        return made

    def restore(self, context: Context) -> bool:
        """Replace the state by that of a context; return False if this node does not have its model, or not yet.

        Raises:
            ValueError, TypeError, LookupError: the context is no state of this slot.
        """
        slot = Slot(self._slot_id, self._load_model, self.work.announce)
        self.awaited = None
        self.work.begin(STALL_RECORDS * self.record_s)
        try:
            slot.restore(context)
        except PendingError as error:
            self.awaited, self.reads_again = error.ready, True
            return False
        except ModelError as error:
            self.fault.say(str(error))
            return False
        finally:
            self._end_work()
        self.fault.end()
        self.slot = slot
        return True

    def forget(self, begin: int) -> None:
        """Forget the state, and begin without one at the record at this offset."""
        self.slot = Slot(self._slot_id, self._load_model, self.work.announce)
        self.slot.begin_at(begin)
        self.awaited, self.reads_again = None, False
        self.work.end()
        self.fault.end()

    def awaits(self) -> bool:
        """Return whether the slot waits for a model.

        Meanwhile heartbeats report the work that was announced for the model. So others do not take this node for
        stuck, and suspect it if the model takes too long.
        """
        if self.awaited is not None and self.awaited.is_set():
            self.awaited = None
            self.work.end()
        return self.awaited is not None

    def may_ask(self) -> bool:
        """Return whether the broker may be asked: not while the slot waits for the model of a context."""
        if self.reads_again and self.awaits():
            return False
        self.reads_again = False
        return True

    def announce_long(self, operations: float) -> None:
        """Begin a long piece of work that belongs to no record, of so many multiplications."""
        self.work.begin(0.0)
        self.work.announce(operations)

    def on_worked(self, seconds: float, records: int, now: float) -> None:
        """Take in that the loop has spent so many seconds on so many records.

        Old measurements lose weight with each record and with time. Otherwise the mean of a slot with few records would
        be that of a minute ago.
        """
        weight = max(COST_WEIGHT * records, 1.0 - math.exp(-(now - self._worked_at) / COST_PERIOD_S))
        self.record_s += min(1.0, weight) * (seconds / records - self.record_s)
        self._worked_at = now

    def _end_work(self) -> None:
        if self.awaited is None:
            self.work.end()
