"""A slot: a deterministic function of its log (architecture, "The slot's log decides").

Records in, outputs out, each named by the record that caused it. Primary, secondary and whoever rebuilds a slot run
this same object over the same records and reach the same state and the same outputs; what they do with the outputs is
the replica's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from types import MappingProxyType

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.factors import Factors
from tsunagi.recovery.model import Model
from tsunagi.runtime.auth import forgery
from tsunagi.runtime.columns import Floats, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RECOVERED, TUPLES, Record
from tsunagi.runtime.marks import digest_of
from tsunagi.runtime.messages import (
    VERSION,
    Context,
    DeadLetter,
    EdgeState,
    Helpers,
    Late,
    LogRecord,
    ModelChange,
    SlotSettings,
    TupleBatch,
)
from tsunagi.runtime.names import NO_NAME, Name, pack_key
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import Frame
from tsunagi.slot.operators import Chain, build_chain
from tsunagi.slot.ownership import Register
from tsunagi.slot.packed import Packed
from tsunagi.slot.recover import Recover
from tsunagi.slot.steps import NEVER, NOT_YET, StepBook
from tsunagi.slot.tuples import MAX_BYTES, MAX_RECORDS, Batches, TupleBook, split

MAX_LETTER_BYTES = 65_536
MAX_LETTER_KEY_BYTES = 1024
MAX_DETAIL = 1024
MAX_NAME = 80
"""Of what a dead letter repeats. Uncut, a record as large as its topic takes would make a letter too large for its own,
and the owner would die of it, and the next one."""

INVERSES = 10.0
"""A filter is made with less than this many inverses of a matrix of its sensors, n^3 multiplications each."""

LOADING = 4000.0
"""What reading a model's file takes, in multiplications a pair of the slot's sensors: the file may hold ten times as
many sensors as the slot, and its hash is computed."""

_DEAD = frozenset({"unknown-edge", "unknown-sensor", "damaged", "ahead"})

_OF_MODEL = frozenset({"calibrated", "sensor_out", "helpers"})
"""What hangs on the model in force."""

Announce = Callable[[float], None]
"""Is told before the slot does something that takes so many multiplications; most of what it does takes few."""

LoadModel = Callable[[str], Model]
"""SHA-256 -> model; raises ModelError when the store has no such file."""


@dataclass(slots=True)
class Output:
    """Something to write, encoded only when it is written: a standby makes outputs that nobody will ever read."""

    name: Name
    topic: str
    epoch: int
    appended_us: int
    body: Frame | Packed | Late | DeadLetter

    def encode(self, slot: int, generation: int) -> tuple[bytes, bytes]:
        """Return (key, value)."""
        key = pack_key(generation, slot, self.name)
        body = Packed.of(self.body) if isinstance(self.body, Frame) else self.body
        if isinstance(body, Packed):
            return key, body.encode(slot, generation, self.name, self.epoch, self.appended_us)
        return key, body.SerializeToString()


Parsed = tuple[LogRecord | None, str, str]
"""(message, "", the field of its body) or (None, reason, detail); a field's name is asked for once a record."""


def parse(record: Record) -> Parsed:
    """Read a record of `tuples`."""
    try:
        message = decode(LogRecord, record.value)
    except UnusableError as error:
        return None, error.reason, str(error)
    kind = message.WhichOneof("body") or ""
    if record.signer is not None and (detail := forgery(record, message)):
        return None, "forged", detail
    if kind == "settings":
        try:
            SlotConfig.parse(message.settings.text)
        except ValueError as error:
            return None, "damaged", str(error)
    return message, "", kind


def recount(step: int, from_us: int, to_us: int) -> int:
    """Return the step that ends where `step` did, or before, when a step is `to_us` long instead of `from_us`."""
    return step if step in (NOT_YET, NEVER) else min(step * from_us // to_us, MAX_TIME_US)


def make_book(config: SlotConfig, cursor: int, punctuated: int) -> StepBook | TupleBook:
    """Return what keeps a slot's edges: with steps or without."""
    return TupleBook(config, cursor) if config.mode == "tuples" else StepBook(config, cursor, punctuated)


class Slot:
    """The state of one slot as of `position`.

    Attributes:
        position: offset of the next record to process.
        appended_us: when the log appended the record processed last; 0 = none since the start.
        last_name: name of the last output in `recovered`.
        register: ownership as of `position`.
        model_sha256: the recovery model in force; `refit_of`: the model that it follows the data from, "" = from none.
        helpers: sensors of other slots that the recovery uses.
        origin: of a state that was made of records alone, the first one's offset; -1 = it was restored.
    """

    def __init__(self, slot: int, load_model: LoadModel, announce: Announce = lambda _operations: None) -> None:
        self.slot = slot
        self._announce = announce
        self.position = 0
        self.origin = 0
        self.appended_us = 0
        self._before: Record | None = None
        self._digest = 0
        self._founded_at = -1
        self.last_name = NO_NAME
        self.register = Register()
        self.config: SlotConfig | None = None
        self.settings = SlotSettings()
        self.model_sha256 = ""
        self.refit_of = ""
        self.helpers = Helpers()
        self.book: StepBook | TupleBook | None = None
        self.chain: Chain | None = None
        self.counts: dict[str, int] = {}
        self._load_model = load_model
        self._model: Model | None = None
        self._set_aside: list[tuple[TupleBatch, int]] = []
        self._claimed_us = 0  # when the log appended the first owner's claim

    @property
    def base_sha256(self) -> str:
        """The model that calibration and helpers go by: the one in force, or what it is a refit of."""
        return self.refit_of or self.model_sha256

    @property
    def model(self) -> Model | None:
        """That model, of the whole fleet."""
        return self._model

    @property
    def recover(self) -> Recover | None:
        """The chain's operator of this kind; None = the slot has none."""
        return None if self.chain is None else self.chain.recover

    @property
    def cursor(self) -> int:
        """The first step still open; `NOT_YET` while the slot has no settings."""
        return self.book.cursor if self.book is not None else NOT_YET

    def apply(self, record: Record, parsed: Parsed | None = None) -> list[Output]:
        """Take in the next record of the log; return what follows from it, in the order of names."""
        outputs = self._outputs(record, parsed or parse(record))
        self.appended_us = record.appended_us
        self._before = record
        self.position = record.offset + 1  # last: a heartbeat sent meanwhile must not say that the record is survived
        return outputs

    def apply_run(self, items: Iterable[tuple[Record, Parsed]]) -> tuple[list[Output], int]:
        """Take in the next records of the log, as many as can go together; return what follows, and how many it were.

        The same follows as from `apply` record by record. In lock-step it is one record; without, batches in a row.
        """
        remaining = iter(items)
        first = next(remaining)
        if not isinstance(self.book, TupleBook):
            return self.apply(*first), 1
        records: list[Record] = []
        messages: list[TupleBatch] = []
        size = 0
        quarantined = self.register.quarantined
        for record, (message, _, kind) in islice(chain((first,), remaining), MAX_RECORDS):
            if message is None or kind != "batch" or size >= MAX_BYTES:
                break
            if quarantined and record.offset in quarantined:
                break
            size += len(record.value or b"")
            messages.append(message.batch)
            records.append(record)
        if not records:
            return self.apply(*first), 1
        outputs: list[Output] = []
        self._tuples(records, Batches(messages), outputs, [record.appended_us for record in records])
        self._before = records[-1]
        self.appended_us = records[-1].appended_us
        self.position = records[-1].offset + 1
        return outputs, len(records)

    def begin_at(self, offset: int, founded_at: int = -1) -> None:
        """Begin, knowing nothing, with the record at this offset; control records before `founded_at` are void."""
        self.position = self.origin = offset
        self._founded_at = founded_at

    def _outputs(self, record: Record, parsed: Parsed) -> list[Output]:
        message, reason, kind = parsed
        # What decides ownership is never passed over: epochs would run backwards for whoever goes on from here.
        if record.offset in self.register.quarantined and kind != "ownership":
            return self._quarantined(record, parsed)
        if message is None:
            return [self._dead(record, 0, reason, detail=kind)]
        if record.offset < self._founded_at and kind != "batch":
            return []
        before = self.register.copy() if kind == "model" else None
        if not self.register.read(record.offset, message):
            return []
        outputs: list[Output] = []
        if kind == "batch":
            self._batch(record, message.batch, outputs)
        elif kind == "ownership" and (self.register.epoch == 1 or message.ownership.founding.blank):
            self._claimed_us = record.appended_us
        elif kind == "settings":
            self._settings(record, message.settings, outputs)
        elif kind == "model":
            self._set_model(message.model, before)
        elif kind in _OF_MODEL:
            if self.chain is not None and getattr(message, kind).model == self.base_sha256:
                self._judge(self.chain, kind, message)
        elif kind == "edge_out" and self.book is not None:
            self.book.edge_out(message.edge_out.edge, message.edge_out.from_step, record.appended_us)
        elif kind == "punctuation" and self.book is not None:
            self._punctuate(self.book, record, message.punctuation.step)
        self._close(record, outputs)
        return outputs

    def context(self) -> Context:
        """Return the whole state before the record at `position`."""
        book = self.book
        if book is None or self.chain is None:
            raise ValueError("a slot without settings has no context")
        return Context(
            version=VERSION,
            slot=self.slot,
            generation=self.register.generation,
            epoch=self.register.epoch,
            owner=self.register.owner,
            offset=self.position,
            last_offset=self.last_name.offset,
            last_index=self.last_name.index,
            settings=self.settings,
            model_sha256=self.model_sha256,
            cursor=book.cursor,
            punctuated=book.punctuated,
            edges=book.edge_states(),
            open=[*book.open_batches(), *book.lent_batches()],
            operators=self.chain.context(),
            quarantined=sorted(self.register.quarantined),
            serial=self.register.serial,
            helpers=self.helpers,
            refit_of=self.refit_of,
            digest=self._digest if self._before is None else digest_of(self._before),
            founding=self.register.founding,
        )

    def restore(self, context: Context) -> None:
        """Go on from a context.

        Raises:
            ModelError: the model store lacks the context's model.
            ValueError: the context is of another version or slot.
        """
        if context.version > VERSION or context.slot != self.slot:
            raise ValueError(
                f"context: found version {context.version} of slot {context.slot}, "
                f"expected at most {VERSION} of {self.slot}"
            )
        self.register = Register(
            epoch=context.epoch,
            owner=context.owner,
            generation=context.generation,
            quarantined=set(context.quarantined),
            serial=context.serial,
            founding=context.founding if context.HasField("founding") else None,
        )
        self.origin, self._before, self._digest = -1, None, context.digest
        self.settings = context.settings
        self.config = SlotConfig.parse(context.settings.text)
        self.model_sha256, self.refit_of = context.model_sha256, context.refit_of
        self._model = self._load(self.base_sha256) if self.base_sha256 else None
        self._announce_model(self._model)
        self.book = make_book(self.config, context.cursor, context.punctuated)
        self.book.restore(list(context.edges), list(context.open))
        self.chain = build_chain(self.config, self._model)
        if self.refit_of:
            self.chain.follow(self._load(self.model_sha256), self.cursor - 1)
        self._help(context.helpers)
        self.chain.restore(dict(context.operators))
        self.position = context.offset
        self.last_name = Name(context.last_offset, context.last_index)
        self._set_aside = []

    def _quarantined(self, record: Record, parsed: Parsed) -> list[Output]:
        """Pass over a record on which owners died; what it closes closes without values.

        The value to blame need not be its own: it may have waited in an open step that this record was the last to come
        for, and would kill whoever closes that step by the next record.
        """
        outputs = [self._dead(record, 0, "quarantined", "two owners died on this record")]
        message, _, kind = parsed
        # A control record's number counts, though the record does not: the same one again must be void as well.
        counts = message is not None and self.register.read(record.offset, message)
        if message is None or self.book is None or self.chain is None:
            return outputs
        if kind == "batch":
            batch = message.batch
            self.book.accept(
                TupleBatch(
                    edge=batch.edge, incarnation=batch.incarnation, step=batch.step, event_time_us=batch.event_time_us
                ),
                record.appended_us,
            )
        elif kind == "edge_out" and counts:
            self.book.edge_out(message.edge_out.edge, message.edge_out.from_step, record.appended_us)
        elif kind == "punctuation" and counts:
            self._punctuate(self.book, record, message.punctuation.step)
        for closed in self.book.close():
            outputs += [
                self._dead_batch(record, len(outputs) + index, batch)
                for index, batch in enumerate(batch for batch in closed.batches if batch.sensor)
            ]
            self._emit(record, closed.step, np.full_like(closed.values, np.nan), outputs)
        return outputs

    def _punctuate(self, book: StepBook | TupleBook, record: Record, step: int) -> None:
        """Let steps close, but none whose time is as far ahead as no batch's may be: there might be no end of them."""
        config = self.config
        if config is not None and (step - 1) * config.slide_us <= record.appended_us + config.max_ahead_us:
            book.punctuate(step)

    def _batch(self, record: Record, batch: TupleBatch, outputs: list[Output]) -> None:
        if not isinstance(self.book, TupleBook):
            batch.offset = record.offset
        if self.book is None:
            self._set_aside.append((batch, record.appended_us))
            return
        self._accept(record, batch, record.appended_us, outputs)

    def _accept(self, record: Record, batch: TupleBatch, appended_us: int, outputs: list[Output]) -> None:
        book = self.book
        assert book is not None  # noqa: S101 - callers have checked; for the type checker
        if isinstance(book, TupleBook):
            self._tuples([record], Batches([batch]), outputs, [appended_us])
            return
        cursor = book.cursor
        reason = book.accept(batch, appended_us)
        if reason:
            outputs.append(self._refused(record, len(outputs), batch, reason, cursor))

    def _refused(self, record: Record, index: int, batch: TupleBatch, reason: str, cursor: int) -> Output:
        if reason in _DEAD:
            detail = f"edge {batch.edge[:MAX_NAME]!r}, step {batch.step}, first open step {cursor}"
            return self._dead(record, index, reason, detail)
        self.counts[reason] = self.counts.get(reason, 0) + 1
        late = Late(version=VERSION, slot=self.slot, offset=record.offset, reason=reason, batch=batch, cursor=cursor)
        return self._output(record, index, LATE, late)

    def _tuples(
        self, records: Sequence[Record], batches: Batches, outputs: list[Output], appended_us: Sequence[int]
    ) -> None:
        """Process batches without lock-step: each is judged, and what is sound goes through the chain as one run."""
        book = self.book
        assert isinstance(book, TupleBook)  # noqa: S101 - callers have checked; for the type checker
        assert self.chain is not None  # noqa: S101
        refused, run = book.accept_run(batches, appended_us)
        epoch, first = self.register.epoch, len(outputs)
        parts = self.chain.process_run(run)
        if len(parts) == 1 and not refused:
            for place, rows in split(parts[0], batches):
                record = records[place]
                outputs.append(Output(Name(record.offset, first), RECOVERED, epoch, record.appended_us, rows))
        else:
            made: dict[int, list[Packed]] = {place: [] for place in refused}
            for part in parts:
                for place, rows in split(part, batches):
                    made.setdefault(place, []).append(rows)
            for place in sorted(made):
                record = records[place]
                index = first  # of several records, each has names of its own
                if place in refused:
                    outputs.append(self._refused(record, index, batches.messages[place], *refused[place]))
                    index += 1
                for rows in made[place]:
                    outputs.append(Output(Name(record.offset, index), RECOVERED, epoch, record.appended_us, rows))
                    index += 1
        for output in reversed(outputs[first:]):
            if output.topic == RECOVERED:
                self.last_name = output.name
                break

    def _settings(self, record: Record, settings: SlotSettings, outputs: list[Output]) -> None:
        config = SlotConfig.parse(settings.text)
        before, earlier = self.book, self.config
        self.settings, self.config = settings, config
        if before is not None and earlier is not None and self.chain is not None and config.same_but_bounds(earlier):
            self.chain.aim(config)
            return
        # The owner's clock may be fast, and would close all steps up to its time: the log's own clock is the limit.
        first_step = min(self.register.first_step, self._claimed_us // config.slide_us + 1)
        if before is None or earlier is None:
            self.book = make_book(config, first_step, NOT_YET)
        elif earlier.slide_us == config.slide_us:
            self.book = make_book(config, before.cursor, before.punctuated)
            self.book.restore(before.edge_states(), before.open_batches())
        else:  # steps are counted in another unit from here on
            for batch in before.open_batches():
                outputs.append(self._refused(record, len(outputs), batch, "closed", before.cursor))
            units = earlier.slide_us, config.slide_us
            self.book = make_book(config, recount(before.cursor, *units), recount(before.punctuated, *units))
            self.book.restore(
                [
                    EdgeState(
                        edge=state.edge,
                        incarnation=state.incarnation,
                        last_step=recount(state.last_step, *units),
                        out_from=recount(state.out_from, *units),
                        out_us=state.out_us,
                    )
                    for state in before.edge_states()
                ],
                [],
            )
        self._announce_model(self._model)
        self.chain = build_chain(config, self._model)
        self.model_sha256, self.refit_of = self.base_sha256, ""
        self.helpers = Helpers()
        waiting, self._set_aside = self._set_aside, []
        for batch, appended_us in waiting:
            self._accept(record, batch, appended_us, outputs)

    def _set_model(self, change: ModelChange, before: Register | None) -> None:
        """Put a model in force; where it cannot be loaded, the record that names it has not been read (`before`)."""
        if change.refit_of and change.refit_of != self.base_sha256:
            return  # of a model that is no longer in force
        try:
            model = self._load(change.sha256) if change.sha256 else None
        except ModelError:
            self.register = before or self.register
            raise
        self.model_sha256, self.refit_of = change.sha256, change.refit_of
        self._announce_model(model)
        if change.refit_of:
            if self.chain is not None and model is not None:
                self.chain.follow(model, self.cursor - 1)
            return
        self._model = model
        if self.chain is not None:
            self.chain.set_model(model)
            self._help(Helpers())

    def _width(self) -> int:
        return 0 if self.config is None else len(self.config.sensors)

    def _load(self, sha256: str) -> Model:
        """Return a model; its size is not known before it is loaded, so the work is announced by the slot's.

        It may be done beside the loop, which then raises PendingError, and lasts as long.
        """
        width = float(self._width())
        self._announce(LOADING * width**2 + INVERSES * width**3)
        return self._load_model(sha256)

    def _announce_model(self, model: Model | None) -> None:
        """Say how much it takes to make a filter of a model for the slot's sensors: a few inverses and products."""
        if model is not None and self.config is not None:
            wide = 0 if model.diagonal else len(model)
            self._announce(INVERSES * float(self._width() ** 3 + wide**3))

    def _judge(self, chain: Chain, kind: str, message: LogRecord) -> None:
        """Let the recovery go by what the owner has measured or chosen."""
        if kind == "calibrated":
            chain.set_factors(Factors.read(message.calibrated))
        elif kind == "sensor_out":
            chain.distrust(message.sensor_out.sensor, out=message.sensor_out.out)
        else:
            self._help(message.helpers)

    def _help(self, helpers: Helpers) -> None:
        """Let the recovery use these sensors of other slots."""
        assert self.chain is not None  # noqa: S101 - callers have checked; for the type checker
        ids = sensors(helpers.sensor).tolist()
        if not len(ids) == len(helpers.name) == len(helpers.edge):
            return
        self.helpers = helpers
        if self._model is not None and ids:
            self._announce(INVERSES * float(self._width() + len(ids)) ** 3)
        self.chain.set_helpers(ids, helpers.name, self.cursor - 1)
        if isinstance(self.book, StepBook):
            self.book.helpers = dict(zip(ids, helpers.edge, strict=True))

    def _close(self, record: Record, outputs: list[Output]) -> None:
        if self.book is None or self.chain is None:
            return
        for closed in self.book.close():
            self._announce(self.chain.operations(closed.values))
            self._emit(record, closed.step, closed.values, outputs, closed.helpers)

    def _emit(
        self,
        record: Record,
        step: int,
        values: Floats,
        outputs: list[Output],
        helpers: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        assert self.chain is not None  # noqa: S101 - callers have checked; for the type checker
        for frame in self.chain.process(step, values, helpers):
            output = self._output(record, len(outputs), RECOVERED, frame)
            outputs.append(output)
            self.last_name = output.name

    def _output(self, record: Record, index: int, topic: str, body: Frame | Late | DeadLetter) -> Output:
        return Output(Name(record.offset, index), topic, self.register.epoch, record.appended_us, body)

    def _dead_batch(self, record: Record, index: int, batch: TupleBatch) -> Output:
        """Set aside a batch that waited in a step which a quarantined record has closed."""
        self.counts["quarantined"] = self.counts.get("quarantined", 0) + 1
        letter = DeadLetter(
            version=VERSION,
            topic=TUPLES,
            partition=self.slot,
            offset=batch.offset,
            reason="quarantined",
            detail=f"in a step that the record at offset {record.offset}, on which two owners died, has closed",
            key=batch.edge.encode()[:MAX_LETTER_KEY_BYTES],
            value=LogRecord(version=VERSION, batch=batch).SerializeToString()[:MAX_LETTER_BYTES],
        )
        return self._output(record, index, DEAD_LETTERS, letter)

    def _dead(self, record: Record, index: int, reason: str, detail: str) -> Output:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        letter = DeadLetter(
            version=VERSION,
            topic=TUPLES,
            partition=self.slot,
            offset=record.offset,
            reason=reason,
            detail=detail[:MAX_DETAIL],
            key=(record.key or b"")[:MAX_LETTER_KEY_BYTES],
            value=(record.value or b"")[:MAX_LETTER_BYTES],
        )
        return self._output(record, index, DEAD_LETTERS, letter)
