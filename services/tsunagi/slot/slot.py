"""A slot: a deterministic function of its log (architecture, "The slot's log decides").

It takes records and returns outputs, each named by the record that caused it. A primary, a secondary and a node that
rebuilds the slot run the same code over the same records, so they reach the same state and the same outputs. The
replica (tsunagi.standby.replica) decides what is done with the outputs.

Terms: A *context* is the whole state of a slot at one offset of its log. The *epoch* is the number of an ownership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.factors import Factors
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats, sensors
from tsunagi.runtime.log import RECOVERED, Record
from tsunagi.runtime.marks import digest_of
from tsunagi.runtime.messages import (
    VERSION,
    Context,
    Helpers,
    LogRecord,
    ModelChange,
    Recovered,
    SlotSettings,
    TupleBatch,
)
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.batches import PlainRun, bare, gather
from tsunagi.slot.book import Book, make_book, renew_book
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.controls import BoundsControl, DistrustControl, FactorsControl, HelpersControl, RefitControl
from tsunagi.slot.edges import NOT_YET, ClosedStep
from tsunagi.slot.frames import Frame
from tsunagi.slot.models import Announce, LoadModel, ModelRegister
from tsunagi.slot.operators import Chain, build_chain
from tsunagi.slot.outputs import Letters, Output
from tsunagi.slot.ownership import Register
from tsunagi.slot.packed import PackedRows
from tsunagi.slot.parsing import Parsed, ParsedMany, alone, parse
from tsunagi.slot.recover import Recover


class Slot:
    """The state of one slot as of `position`.

    Attributes:
        position: offset of the next record to process.
        origin: the offset of the first record if the state was made of records alone; -1 = it comes from a context.
        appended_us: when the log appended the record processed last, microseconds; 0 = none was processed yet.
        last_name: name of the last output for `recovered`.
        register: the slot's ownership as of `position`.
        models: the recovery models in force.
        letters: makes the outputs for records that cannot be used or came too late.
        config, settings: the slot's configuration, and the record that brought it; None and empty = there is none yet.
        helpers: the sensors of other slots that the recovery uses.
        book: what is kept of the slot's edges; None = the slot has no settings yet.
        chain: the slot's operators; None = the slot has no settings yet.
    """

    def __init__(self, slot: int, load_model: LoadModel, announce: Announce = lambda _operations: None) -> None:
        self.slot = slot
        self.position = 0
        self.origin = 0
        self.appended_us = 0
        self.last_name = NO_NAME
        self.register = Register()
        self.models = ModelRegister(load_model, announce)
        self.letters = Letters(slot)
        self.config: SlotConfig | None = None
        self.settings = SlotSettings()
        self.helpers = Helpers()
        self.book: Book | None = None
        self.chain: Chain | None = None
        self._announce = announce
        self._before: Record | None = None
        self._digest = 0
        self._founded_at = -1
        self._set_aside: list[tuple[TupleBatch, int]] = []
        self._claimed_us = 0  # when the log appended the first owner's claim

    @property
    def model_sha256(self) -> str:
        """SHA-256 of the recovery model in force; "" = there is none."""
        return self.models.sha256

    @property
    def refit_of(self) -> str:
        """SHA-256 of the model that the one in force is a refit of; "" = it is no refit."""
        return self.models.refit_of

    @property
    def base_sha256(self) -> str:
        """SHA-256 of the model that calibration and helpers use: the one in force, or what that is a refit of."""
        return self.models.base_sha256

    @property
    def model(self) -> Model | None:
        """The model that calibration and helpers use, of the whole fleet; None = there is none."""
        return self.models.base

    @property
    def recover(self) -> Recover | None:
        """The chain's operator `recover`; None = the chain has none."""
        return None if self.chain is None else self.chain.recover

    @property
    def cursor(self) -> int:
        """The first open step; `NOT_YET` while the slot has no settings."""
        return self.book.cursor if self.book is not None else NOT_YET

    # ---- records in, outputs out -------------------------------------------------------------------------------

    def apply(self, record: Record, parsed: ParsedMany | None = None) -> list[Output]:
        """Process the next record of the log; return its outputs, in the order of names."""
        outputs = self._outputs(record, parse(record) if parsed is None else alone(record, parsed))
        self._move_on(record)
        return outputs

    def apply_run(self, items: Iterable[tuple[Record, ParsedMany]]) -> tuple[Sequence[Output], int]:
        """Process the next records of the log, as many as can go together; return the outputs and the records' number.

        The outputs are those of `apply` for each record. In lock-step one record is processed, without it several
        batches in a row.
        """
        remaining = iter(items)
        first = next(remaining)
        if self.book is None or self.book.together == 1:
            return self.apply(*first), 1
        records, batches = gather(first, remaining, self.book.together, self.register.quarantined)
        if not records:
            return self.apply(*first), 1
        appended_us = [record.appended_us for record in records]
        outputs = self._take_plain(batches, appended_us) if isinstance(batches, PlainRun) else None
        if outputs is None:
            outputs = []
            messages = batches.messages() if isinstance(batches, PlainRun) else batches
            self._take(records, messages, appended_us, outputs)
        self._move_on(records[-1])
        return outputs, len(records)

    def begin_at(self, offset: int, founded_at: int = -1) -> None:
        """Begin without a state at the record at this offset; control records before `founded_at` are void."""
        self.position = self.origin = offset
        self._founded_at = founded_at

    def _move_on(self, record: Record) -> None:
        self._before = record
        self.appended_us = record.appended_us
        self.position = record.offset + 1  # last: from here on a heartbeat says that the record is survived

    def _outputs(self, record: Record, parsed: Parsed) -> list[Output]:
        message, reason, kind = parsed
        # An Ownership record is processed even if it is quarantined. Otherwise the epoch would be wrong from here on.
        if record.offset in self.register.quarantined and kind != "ownership":
            return self._quarantined(record, parsed)
        outputs: list[Output] = []
        if message is None:
            return [self.letters.dead(Name(record.offset, 0), self.register.epoch, record, reason, kind)]
        if record.offset < self._founded_at and kind != "batch":
            return outputs
        before = self.register.copy() if kind == "model" else None
        if not self.register.read(record.offset, message):
            return outputs
        try:
            _TAKE[kind](self, record, message, outputs)
        except ModelError:
            self.register = before or self.register  # the record is not processed, since its model cannot be loaded
            raise
        self._close(record, outputs)
        return outputs

    # ---- one kind of record each ---------------------------------------------------------------------------------

    def _on_batch(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        batch = message.batch
        if self.book is None or self.book.in_steps:
            batch.offset = record.offset  # it may wait in a step that a quarantined record closes
        if self.book is None:
            self._set_aside.append((batch, record.appended_us))
        else:
            self._take([record], [batch], [record.appended_us], outputs)

    def _on_ownership(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        del outputs
        if self.register.epoch == 1 or message.ownership.founding.blank:
            self._claimed_us = record.appended_us

    def _on_settings(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        self._settings(record, message.settings, outputs)

    def _on_model(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        del record, outputs
        self._set_model(message.model)

    def _on_calibrated(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        del record, outputs
        if self.chain is not None and message.calibrated.model == self.base_sha256:
            self.chain.on_control(FactorsControl(Factors.read(message.calibrated)))

    def _on_sensor_out(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        del record, outputs
        told = message.sensor_out
        if self.chain is not None and told.model == self.base_sha256:
            self.chain.on_control(DistrustControl(told.sensor, told.out))

    def _on_helpers(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        del record, outputs
        if message.helpers.model == self.base_sha256:
            self._help(message.helpers)

    def _on_edge_out(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        del outputs
        if self.book is not None:
            self.book.edge_out(message.edge_out.edge, message.edge_out.from_step, record.appended_us)

    def _on_punctuation(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        """Let steps close up to the named one, unless it is further ahead of the log's time than any batch may be.

        Otherwise a wrong record could close steps without end.
        """
        del outputs
        config, step = self.config, message.punctuation.step
        in_time = config is not None and (step - 1) * config.slide_us <= record.appended_us + config.max_ahead_us
        if self.book is not None and in_time:
            self.book.punctuate(step)

    def _on_past(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        if self.chain is None or self.chain.stream is None:
            return
        for rows in self.chain.stream.fill(message.past, record.offset):
            self._put(record, rows, outputs)

    def _on_quarantine(self, record: Record, message: LogRecord, outputs: list[Output]) -> None:
        """Do nothing: the register has already taken it in."""

    def _quarantined(self, record: Record, parsed: Parsed) -> list[Output]:
        """Skip a record on which two owners died. The steps that it would have closed are closed without values.

        The value that kills need not stand in this record. It may have waited in an open step that this record closes,
        or for the slot's settings, which this record brings. It would otherwise kill the owner that closes the step
        with the next record, or each owner that brings the settings again.
        """
        epoch = self.register.epoch
        why = "two owners died on this record"
        outputs = [self.letters.dead(Name(record.offset, 0), epoch, record, "quarantined", why)]
        message, _, kind = parsed
        # The serial number of a control record counts even so: the same record, appended again, must be void.
        counts = message is not None and self.register.read(record.offset, message)
        waiting: list[tuple[TupleBatch, int]] = []
        if message is not None and counts and kind == "settings":
            waiting, self._set_aside = self._set_aside, []
            self._settings(record, message.settings, outputs)
        if message is None or self.book is None or self.chain is None:
            return outputs
        for batch, appended_us in waiting:
            if batch.sensor or batch.events:
                outputs.append(self.letters.buried(Name(record.offset, len(outputs)), epoch, record, batch))
            self.book.accept(bare(batch), appended_us)
        if kind == "batch":
            self.book.accept(bare(message.batch), record.appended_us)
        elif counts and kind in ("edge_out", "punctuation"):
            _TAKE[kind](self, record, message, outputs)
        elif counts and kind == "past" and self.chain.stream is not None:
            self.chain.stream.skip(message.past)
        for closed in self.book.close():
            for batch in closed.batches:
                if batch.sensor or batch.events:
                    name = Name(record.offset, len(outputs))
                    outputs.append(self.letters.buried(name, self.register.epoch, record, batch))
            self._emit(record, closed.step, np.full_like(closed.values, np.nan), outputs)
        return outputs

    # ---- batches and steps ---------------------------------------------------------------------------------------

    def _take_plain(self, batches: PlainRun, appended_us: Sequence[int]) -> Sequence[Output] | None:
        """Process batches of the usual form, and return the outputs; None = they are to be looked at one by one."""
        assert self.book is not None  # noqa: S101 - the caller has checked; for the type checker
        assert self.chain is not None  # noqa: S101
        outputs = self.book.take_plain(self.chain, batches, appended_us, self.register.epoch)
        if outputs:
            self.last_name = outputs[-1].name
        return outputs

    def _take(
        self,
        records: Sequence[Record],
        batches: Sequence[TupleBatch],
        appended_us: Sequence[int],
        outputs: list[Output],
    ) -> None:
        """Process batches, and add the outputs; the n-th batch's outputs are named by the n-th record."""
        book, operators = self.book, self.chain
        assert book is not None  # noqa: S101 - callers have checked; for the type checker
        assert operators is not None  # noqa: S101
        epoch, first = self.register.epoch, len(outputs)
        before, index = -1, first
        for place, reason, cursor, rows in book.take(operators, batches, appended_us):
            index = index + 1 if place == before else first
            before, record = place, records[place]
            name = Name(record.offset, index)
            if rows is None:
                outputs.append(self.letters.refused(name, epoch, record, batches[place], reason, cursor))
            else:
                outputs.append(Output(name, RECOVERED, epoch, record.appended_us, rows))
                self.last_name = name

    def _close(self, record: Record, outputs: list[Output]) -> None:
        if self.book is None or self.chain is None:
            return
        for closed in self.book.close():
            self._announce(self.chain.operations(closed.values))
            self._pass_on(record, closed, outputs)
            self._emit(record, closed.step, closed.values, outputs, closed.helpers)

    def _pass_on(self, record: Record, closed: ClosedStep, outputs: list[Output]) -> None:
        """Add the events of a step, which come before its values: whoever has read these has the events, too."""
        config = self.config
        assert config is not None  # noqa: S101 - steps close behind settings; for the type checker
        for batch in closed.batches:
            for events in batch.events:
                columns = Recovered(column=events.column).SerializeToString()
                rows = PackedRows(events.stream, closed.step, closed.step * config.slide_us, events.rows, columns)
                self._put(record, rows, outputs)

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
            self._put(record, frame, outputs)

    def _put(self, record: Record, body: Frame | PackedRows, outputs: list[Output]) -> None:
        """Add an output for `recovered`, named by the record that caused it."""
        name = Name(record.offset, len(outputs))
        outputs.append(Output(name, RECOVERED, self.register.epoch, record.appended_us, body))
        self.last_name = name

    # ---- settings, models, helpers -------------------------------------------------------------------------------

    def _settings(self, record: Record, settings: SlotSettings, outputs: list[Output]) -> None:
        config = SlotConfig.parse(settings.text)
        before, earlier = self.book, self.config
        self.settings, self.config, self.models.width = settings, config, len(config.sensors)
        if before is None or earlier is None:
            # The owner's clock may be fast, and all steps up to its time would close. So the log's clock is the limit.
            self.book = make_book(config, min(self.register.first_step, self._claimed_us // config.slide_us + 1))
        elif self.chain is not None and config.same_but_bounds(earlier):
            self.chain.on_control(BoundsControl(config))
            return
        else:
            self.book, dropped = renew_book(before, earlier, config)
            for batch in dropped:
                name = Name(record.offset, len(outputs))
                outputs.append(self.letters.refused(name, self.register.epoch, record, batch, "closed", before.cursor))
        self.models.announce_filter(self.models.base)
        running, self.chain = self.chain, build_chain(config, self.models.base)
        helpers = Helpers()
        if running is not None and earlier is not None:
            if config.same_but_statements(earlier):
                self.chain.take_over(running)
            elif config.changeable and config.same_but_sensors(earlier):
                self.chain.renew(running, self.cursor - 1)
                helpers = self.helpers
        self.models.drop_refit()
        self._help(helpers)
        waiting, self._set_aside = self._set_aside, []
        for batch, appended_us in waiting:
            self._take([record], [batch], [appended_us], outputs)

    def _set_model(self, change: ModelChange) -> None:
        """Put a model in force, unless it is a refit of a model that is not in force any more.

        Raises:
            ModelError: the model store lacks the model. Nothing has changed then.
        """
        if change.refit_of and change.refit_of != self.base_sha256:
            return
        model = self.models.put_in_force(change.sha256, change.refit_of)
        if self.chain is None:
            return
        if not change.refit_of:
            self.chain.set_model(model)
            self._help(Helpers())
        elif model is not None:
            self.chain.on_control(RefitControl(model, self.cursor - 1))

    def _help(self, helpers: Helpers) -> None:
        """Let the recovery use these sensors of other slots from now on."""
        ids = sensors(helpers.sensor).tolist()
        if self.chain is None or self.book is None or not len(ids) == len(helpers.name) == len(helpers.edge):
            return
        self.helpers = helpers
        self.models.announce_helpers(len(ids))
        self.chain.on_control(HelpersControl(ids, tuple(helpers.name), self.cursor - 1))
        self.book.use_helpers(dict(zip(ids, helpers.edge, strict=True)))

    # ---- contexts ------------------------------------------------------------------------------------------------

    def context(self) -> Context:
        """Return the slot's whole state before the record at `position`.

        Raises:
            ValueError: the slot has no settings yet.
        """
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
        self.models.width = len(self.config.sensors)
        self.models.restore(context.model_sha256, context.refit_of)
        self.book = make_book(self.config, context.cursor, context.punctuated)
        self.book.restore(list(context.edges), list(context.open))
        self.chain = build_chain(self.config, self.models.base)
        if self.refit_of:
            self.chain.on_control(RefitControl(self.models.load(self.model_sha256), self.cursor - 1))
        self._help(context.helpers)
        self.chain.restore(dict(context.operators))
        self.position = context.offset
        self.last_name = Name(context.last_offset, context.last_index)
        self._set_aside = []


_TAKE: dict[str, Callable[[Slot, Record, LogRecord, list[Output]], None]] = {
    "batch": Slot._on_batch,  # noqa: SLF001 - its own
    "ownership": Slot._on_ownership,  # noqa: SLF001
    "settings": Slot._on_settings,  # noqa: SLF001
    "model": Slot._on_model,  # noqa: SLF001
    "calibrated": Slot._on_calibrated,  # noqa: SLF001
    "sensor_out": Slot._on_sensor_out,  # noqa: SLF001
    "helpers": Slot._on_helpers,  # noqa: SLF001
    "edge_out": Slot._on_edge_out,  # noqa: SLF001
    "punctuation": Slot._on_punctuation,  # noqa: SLF001
    "past": Slot._on_past,  # noqa: SLF001
    "quarantine": Slot._on_quarantine,  # noqa: SLF001
}
"""The method that processes a record, by the field of the record's body."""
