"""What a replica asks of its shell. The worker's shell does it on Kafka, the simulator's on a log in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsunagi.recovery.model import Model
from tsunagi.runtime.messages import Ack, HelperRequest, LogRecord
from tsunagi.runtime.names import Name
from tsunagi.slot.outputs import Output


@dataclass(frozen=True, slots=True)
class AskEnd:
    """Ask for the first offset and the end of the slot's log; answer with `on_end`."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the records [offset, upto); answer with `on_fetched`, in one or several parts."""

    offset: int
    upto: int


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Read a context (a slot's whole state at one offset of its log); answer with `on_context`.

    Attributes:
        offset: where it stands in `contexts`; None = at the end.
        upto: if given, search backwards from `offset`, for the newest whole context whose position in the slot's log is
            not beyond `upto`; None = read exactly the one at `offset`.
    """

    offset: int | None
    upto: int | None = None


@dataclass(frozen=True, slots=True)
class ReadTail:
    """Read the name of the last output in `recovered`; answer with `on_tail`.

    Attributes:
        generation: the generation (number of the slot's log) whose last output is wanted. If none is among the last
            records, the last output of any generation is the answer.
        before: look before this offset of `recovered`; None = from its end.
        below: look for an output whose name is smaller than this one; None = for any.
        acknowledged: an output that stood in `recovered` right before the offset `end`. If it is there no more, the
            answer has `lost` set and gives the last output whose name is smaller.
        end: see `acknowledged`; 0 = not known.
    """

    generation: int
    before: int | None = None
    below: Name | None = None
    acknowledged: Name | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class Follow:
    """Read the slot's log from this offset on, and hand over each record that comes with `on_records`."""

    offset: int


@dataclass(frozen=True, slots=True)
class CheckRecords:
    """Read the records [first, upto) of the slot's log again; answer with `on_checked`."""

    first: int
    upto: int


@dataclass(frozen=True, slots=True)
class Unfollow:
    """End what `Follow` began."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append a control record to the slot's log. It may be lost, but must not arrive late."""

    record: LogRecord


@dataclass(frozen=True, slots=True)
class StoreModel:
    """Put a model into the store that all workers read; report its SHA-256 with `on_stored`."""

    model: Model


@dataclass(frozen=True, slots=True)
class Request:
    """Ask in the topic `plan` for helpers. The record may be lost."""

    helpers: HelperRequest


@dataclass(frozen=True, slots=True)
class Emit:
    """Write outputs in this order and without a gap; report what the broker has with `on_delivered`."""

    outputs: Sequence[Output]
    generation: int


@dataclass(frozen=True, slots=True)
class SaveContext:
    """Append a context to `contexts`; report its place and `term` with `on_context_saved`.

    Attributes:
        value: the serialised context.
        term: the epoch (number of the ownership) of the owner that wrote it.
    """

    value: bytes
    term: int


@dataclass(frozen=True, slots=True)
class NoContext:
    """Report in the log and the metrics that no context could be made of the slot's state; `detail` says why."""

    detail: str


@dataclass(frozen=True, slots=True)
class SendAck:
    """Write an acknowledgement."""

    ack: Ack


@dataclass(frozen=True, slots=True)
class Announce:
    """Send a heartbeat now and wait until the broker has it: one of the next records may kill this process.

    If the broker does not get it, answer with `on_unannounced`.
    """


@dataclass(frozen=True, slots=True)
class TakeoverComplete:
    """Report a complete takeover in the log and the metrics. Times are in seconds.

    Catching up ends when this is carried out, since the outputs are emitted before it.

    Attributes:
        epoch: the number of the new ownership.
        detect_s: from the old owner's last sign of life to the suspicion.
        promote_s: from the suspicion until the node's own claim was read back.
        claimed_at: when the claim was appended, on the caller's clock. The old owner of a moving slot works until then.
        owned_at: when the claim was read back, on the caller's clock. Catching up begins then.
        estimated_s: the most that promotion and catching up should take by the cost models; infinite = not known.
        records: how many records had been read and not processed when the claim was read back.
    """

    epoch: int
    reason: str
    old_owner: str
    detect_s: float
    promote_s: float
    claimed_at: float
    owned_at: float
    estimated_s: float
    records: int


@dataclass(frozen=True, slots=True)
class Note:
    """Write a line to the process's log; `grave` marks one that somebody should read."""

    event: str
    detail: str
    grave: bool = False


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End the process, since its state or its clients do not fit the log any more. A new process starts afresh."""

    detail: str


Action = (
    AskEnd
    | Fetch
    | ReadContext
    | ReadTail
    | Follow
    | CheckRecords
    | Unfollow
    | Append
    | StoreModel
    | Request
    | Emit
    | SaveContext
    | NoContext
    | SendAck
    | Announce
    | TakeoverComplete
    | Note
    | EndProcess
)
