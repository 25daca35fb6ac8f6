"""Which source an edge reads: [source] kind. A new kind is a feed (services.edge.live.Feed) and a line here."""

from __future__ import annotations

import structlog

from services.edge.csv_open import CsvOpener
from services.edge.decode import Decoder
from services.edge.inbox import Inbox
from services.edge.kafka_topic import KafkaFeed
from services.edge.lines import Listener, StandardInput
from services.edge.live import Feed, LiveRules, LiveSource
from services.edge.mqtt import MqttFeed
from services.edge.position import EdgePosition
from services.edge.source import LiveProgress, Opener
from services.runtime.clock import Clock, SystemClock
from services.runtime.sensors import Sensor, SensorTable
from services.runtime.settings import Settings


class LiveOpener:
    """`services.edge.source.Opener` of a live source.

    Args:
        key_first: as for `services.edge.decode.Decoder`.
        clock: says when a reading arrived; None = the machine's.
    """

    def __init__(
        self,
        feed: Feed,
        settings: Settings,
        table: SensorTable,
        own: tuple[Sensor, ...],
        *,
        key_first: bool,
        clock: Clock | None = None,
    ) -> None:
        self.name = feed.scheme
        self.digest = ""
        self.letters_per_s: float | None = None
        self._feed = feed
        self._settings = settings
        self._own = own
        self._clock = clock or SystemClock()
        self._decoder = Decoder(table, own, settings.source, key_first=key_first)

    def open(self, now_us: int, position: EdgePosition | None, incarnation: int) -> LiveSource:
        settings = self._settings
        # Of another source only the step counts, which must not be sent twice: where it was means nothing here.
        progress = None if position is None or position.source != self.name else position.progress
        return LiveSource(
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

    def close(self) -> None:
        self._feed.close()


def make_opener(
    settings: Settings,
    edge: str,
    table: SensorTable,
    own: tuple[Sensor, ...],
    logger: structlog.stdlib.BoundLogger,
    clock: Clock | None = None,
) -> Opener:
    """Make the source that the settings name.

    Raises:
        SourceError: it cannot be used: a file, a pattern, an address.
    """
    source = settings.source
    feed: Feed
    match source.kind:
        case "csv":
            return CsvOpener(settings, edge, table, own)
        case "mqtt":
            feed = MqttFeed(source, edge, logger)
        case "lines":
            feed = Listener(source, logger) if source.lines.listen else StandardInput(source, logger)
        case "kafka":
            feed = KafkaFeed(settings, edge, logger)
    return LiveOpener(feed, settings, table, own, key_first=source.kind == "mqtt", clock=clock)
