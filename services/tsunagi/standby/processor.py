"""The slot's state on a node, and the work that the node's loop does on it, within one look at the clock."""

from __future__ import annotations

import math
import threading
from itertools import islice, takewhile

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.store import PendingError
from tsunagi.runtime.messages import Context
from tsunagi.slot.models import LoadModel
from tsunagi.slot.outputs import Output
from tsunagi.slot.slot import Slot
from tsunagi.standby.detector import STALL_RECORDS
from tsunagi.standby.intake import Intake
from tsunagi.standby.workload import Workload

CHUNK = 500
"""The loop processes at most so many records of a slot before it looks at the clock."""

CHUNK_S = 0.1
"""The loop processes records for about this time, in seconds, by what a record costs, before it looks at the clock."""

COST_WEIGHT = 0.02
"""The weight of one record in the running mean of what a record costs."""

COST_PERIOD_S = 1.0
"""The running mean of what a record costs forgets within this time, in seconds, where records are few."""


class SlotFault:
    """Why a replica could not take its slot over now.

    Attributes:
        text: "" = it could.
        blocked: the next record names a model that this node lacks: only processing that record ends the fault.
    """

    def __init__(self) -> None:
        self.text = ""
        self.blocked = False

    def say(self, text: str) -> None:
        """Something is wrong that the next answer of the log may end."""
        self.text = text

    def block(self, text: str) -> None:
        """The next record cannot be processed."""
        self.text, self.blocked = text, True

    def answered(self) -> None:
        """The log has answered as it should."""
        if not self.blocked:
            self.text = ""

    def end(self) -> None:
        """Whatever it was is over."""
        self.text, self.blocked = "", False


class Processor:
    """Processes what was read of a slot's log.

    Attributes:
        slot: the state.
        work: what the loop is on, for the heartbeats.
        record_s: what a record costs, seconds, a running mean.
        processed: records, counted up.
        awaited: set once the model is ready that the slot goes on with; None = it waits for none.
        reads_again: the model that it waits for is that of a context, which is read once more when the model is there.
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

    def apply(self, limit: int, upto: int) -> tuple[list[Output], int] | None:
        """Process the next record, or so many as can go together: at most `limit`, below the offset `upto`.

        Returns:
            What follows, and how many records it were; None = not yet: this node lacks a model that the log names.
        """
        if self.awaits():
            return None
        backlog, began = self._intake.backlog, self._intake.scan.began
        items = takewhile(lambda item: item[0].offset < upto, islice(backlog, limit))
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
        if outputs and outputs[0].name.offset < began:  # the generation before has written them
            outputs = [output for output in outputs if output.name.offset >= began]
        return outputs, count

    def apply_up_to(self, upto: int) -> list[Output]:
        """Process the records below an offset, as many as fit before the next look at the clock."""
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
        """Go on from a context; return False where this node does not have its model, or not yet.

        Raises:
            ValueError, TypeError, LookupError: whatever it is, it is no state of this slot.
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
        """Forget the state, and begin with the record at this offset."""
        self.slot = Slot(self._slot_id, self._load_model, self.work.announce)
        self.slot.begin_at(begin)
        self.awaited, self.reads_again = None, False
        self.work.end()
        self.fault.end()

    def awaits(self) -> bool:
        """Return whether the model that the slot goes on with is not ready yet.

        The work that was announced for it lasts as long, so that nobody takes this node for stuck, nor waits for ever.
        """
        if self.awaited is not None and self.awaited.is_set():
            self.awaited = None
            self.work.end()
        return self.awaited is not None

    def may_ask(self) -> bool:
        """Return whether the log may be asked: not while the model of a context is being read that comes first."""
        if self.reads_again and self.awaits():
            return False
        self.reads_again = False
        return True

    def announce_long(self, operations: float) -> None:
        """Begin a turn of one long work, which no record brings."""
        self.work.begin(0.0)
        self.work.announce(operations)

    def on_worked(self, seconds: float, records: int, now: float) -> None:
        """Take in that the loop has spent this time on so many records.

        The running mean forgets with time as well as with records, so that a slot with few of them is not told by what
        its records cost a minute ago.
        """
        weight = max(COST_WEIGHT * records, 1.0 - math.exp(-(now - self._worked_at) / COST_PERIOD_S))
        self.record_s += min(1.0, weight) * (seconds / records - self.record_s)
        self._worked_at = now

    def _end_work(self) -> None:
        if self.awaited is None:
            self.work.end()
