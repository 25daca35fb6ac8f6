"""Makes the source that `[source] kind` names. A new kind is a feed (tsunagi.edge.live.LiveFeed) and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import structlog

from tsunagi.edge.csv_open import CsvOpener
from tsunagi.edge.decode import Decoder
from tsunagi.edge.fields import FieldsDecoder, with_fields
from tsunagi.edge.formats import make_format
from tsunagi.edge.inbox import Inbox
from tsunagi.edge.kafka_topic import KafkaFeed
from tsunagi.edge.lines import Listener, StandardInput
from tsunagi.edge.live import LiveFeed, LiveRules, LiveSource
from tsunagi.edge.mqtt import MqttFeed
from tsunagi.edge.own_feed import OwnFeed
from tsunagi.edge.payload_format import PayloadFormat
from tsunagi.edge.source import EdgePosition, LiveProgress, Opener, SourceError
from tsunagi.query.form import TupleForm
from tsunagi.runtime.clock import Clock, SystemClock
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings


class LiveOpener:
    """The `tsunagi.edge.source.Opener` of a live source.

    Args:
        key_first, form, streams: as in `tsunagi.edge.decode.Decoder`.
        payloads: the format of the messages; None = as the settings say.
        clock: stamps the arrival of a reading; None means the machine's clock.
    """

    def __init__(
        self,
        feed: LiveFeed,
        settings: Settings,
        table: SensorTable,
        own: tuple[Sensor, ...],
        *,
        key_first: bool,
        clock: Clock | None = None,
        form: TupleForm | None = None,
        streams: Mapping[str, TupleForm] = MappingProxyType({}),
        payloads: PayloadFormat | None = None,
    ) -> None:
        self.name = feed.scheme
        self.digest = ""
        self.letters_per_s: float | None = None
        self.lacking = ""
        self._feed = feed
        self._settings = settings
        self._own = own
        self._clock = clock or SystemClock()
        if settings.source.fields and form is not None:
            raise SourceError("[source] fields: found a stream of tuples (CREATE STREAM), expected readings")
        if payloads is None and settings.source.fields:
            payloads = make_format(settings.source)
        self._key_first, self._form, self._streams, self._payloads = key_first, form, streams, payloads
        self._decoder = self._make_decoder(table)
        self._opened: LiveSource | None = None

    def _make_decoder(self, table: SensorTable) -> Decoder | FieldsDecoder:
        source = self._settings.source
        decoder = Decoder(table, self._own, source, key_first=self._key_first, form=self._form, streams=self._streams)
        return with_fields(decoder, source, self._payloads)

    def open(self, now_us: int, position: EdgePosition | None, incarnation: int) -> LiveSource:
        settings = self._settings
        # Of a position in another source only the step counts, which must not be sent twice: its offsets mean nothing
        # here.
        progress = None if position is None or position.source != self.name else position.progress
        self._opened = LiveSource(
            self._feed,
            Inbox(settings.source.queue, now_us=self._clock.now_us),
            self._decoder,
            LiveRules.of(settings.source),
            settings.steps,
            self._own,
            now_us,
            resume=progress if isinstance(progress, LiveProgress) else None,
            until_us=now_us if position is None else position.step * settings.slide_us,
            run=incarnation,
        )
        return self._opened

    def change(self, table: SensorTable, own: tuple[Sensor, ...], now_us: int) -> int:
        self._own = own
        self._decoder = self._make_decoder(table)
        if self._opened is None:
            return 0
        self._opened.change(self._decoder, own)
        return now_us  # as at the start: what devices send ahead of the clock may have come before

    def close(self) -> None:
        self._feed.close()


def make_opener(
    settings: Settings,
    edge: str,
    table: SensorTable,
    own: tuple[Sensor, ...],
    logger: structlog.stdlib.BoundLogger,
    clock: Clock | None = None,
    form: TupleForm | None = None,
    streams: Mapping[str, TupleForm] = MappingProxyType({}),
) -> Opener:
    """Return the opener of the source that the settings name.

    Args:
        form: the columns of tuples (CREATE STREAM); None = the source has readings.
        streams: the columns of events, by stream, with lock-step.

    Raises:
        SourceError: the source cannot be used: its file, its topic pattern or its address.
    """
    source = settings.source
    feed: LiveFeed
    payloads = make_format(source)
    match source.kind:
        case "csv" | "parquet":
            return CsvOpener(settings, edge, table, own, form, streams)
        case "mqtt":
            feed = mqtt = MqttFeed(source, edge, logger)
            payloads.ask = mqtt.publish if source.mqtt.rebirth else None
        case "lines":
            feed = Listener(source, logger) if source.lines.listen else StandardInput(source, logger)
        case "kafka":
            feed = KafkaFeed(settings, edge, logger, payloads.fetch)
        case "own":
            feed = OwnFeed(source, logger)
    return LiveOpener(
        feed,
        settings,
        table,
        own,
        key_first=source.kind == "mqtt",
        clock=clock,
        form=form,
        streams=streams,
        payloads=payloads,
    )
