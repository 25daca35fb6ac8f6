"""What a replica asks of its shell. The shell does it on Kafka, the simulator on an in-memory log."""

from __future__ import annotations

from dataclasses import dataclass

from tsunagi.recovery.model import Model
from tsunagi.runtime.messages import Ack, HelperRequest, LogRecord
from tsunagi.runtime.names import Name
from tsunagi.slot.outputs import Output


@dataclass(frozen=True, slots=True)
class AskEnd:
    """Ask for (first, end) of the slot's log; answer with `on_end`."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the records [offset, upto); answer with `on_fetched`, in one or several parts."""

    offset: int
    upto: int


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Read the context at this offset of `contexts`; answer with `on_context`.

    With `upto`: the newest whole one at the offset (None = the end) or before it whose position is not beyond `upto`.
    """

    offset: int | None
    upto: int | None = None


@dataclass(frozen=True, slots=True)
class ReadTail:
    """Read the name of the last output in `recovered`; answer with `on_tail`.

    Attributes:
        before: look before this offset of `recovered`; None = from its end.
        below: look for an output that comes before this one in the order of names; None = for any.
        acknowledged: an output that stood in front of the offset `end`; the answer says whether it does. If not, the
            last one before it in the order of names is asked for.
    """

    before: int | None = None
    below: Name | None = None
    acknowledged: Name | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class Follow:
    """Read the slot's log from here on and hand over what comes with `on_records`."""

    offset: int


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """Read the record before this offset of the slot's log; answer with `on_checked`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Stop following."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append a control record to the slot's log; it may get lost, but must not arrive late."""

    record: LogRecord


@dataclass(frozen=True, slots=True)
class StoreModel:
    """Put a model into the store that every worker sees; report its SHA-256 with `on_stored`."""

    model: Model


@dataclass(frozen=True, slots=True)
class Request:
    """Ask in `plan` for helpers; it may get lost."""

    helpers: HelperRequest


@dataclass(frozen=True, slots=True)
class Emit:
    """Write outputs in this order, gap-free; report what has arrived with `on_delivered`."""

    outputs: tuple[Output, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class SaveContext:
    """Append to `contexts`; report with `on_context_saved`, and whose it is.

    Attributes:
        term: the epoch of the owner that wrote it.
    """

    value: bytes
    term: int


@dataclass(frozen=True, slots=True)
class NoContext:
    """The slot's state could not be written down, and `detail` says why: for logs and metrics."""

    detail: str


@dataclass(frozen=True, slots=True)
class SendAck:
    """Write an acknowledgement."""

    ack: Ack


@dataclass(frozen=True, slots=True)
class Announce:
    """Send a heartbeat now and wait until the log has it: the next records may be the last this process sees.

    If it does not come to have it, answer with `on_unannounced`.
    """


@dataclass(frozen=True, slots=True)
class TakeoverComplete:
    """A takeover is complete: for logs and metrics. Times in seconds.

    Catching up ends when this is carried out: the outputs come before it.

    Attributes:
        detect_s: last sign of the old owner -> suspicion.
        promote_s: suspicion -> own promotion read back.
        claimed_at: when it was appended, on the caller's clock: the owner of a slot that moves goes on until then.
        owned_at: when the promotion was read back, on the caller's clock; from there on it caught up.
        estimated_s: what the cost models said that promotion and catching up would take at most; infinite = not known.
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
    """Something worth a line in the log; what is `grave` somebody should read."""

    event: str
    detail: str
    grave: bool = False


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End the process: what it has of the log is of no use any more, and a new one begins with new clients."""

    detail: str


Action = (
    AskEnd
    | Fetch
    | ReadContext
    | ReadTail
    | Follow
    | CheckRecord
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
