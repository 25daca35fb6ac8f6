"""Says what an edge reads in messages, without a broker: for `tsunagi edge try`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from tsunagi.edge.decode import Decoder, ReadingFault
from tsunagi.edge.fields import with_fields
from tsunagi.edge.formats import BINARY
from tsunagi.edge.inbox import Message
from tsunagi.edge.source import SourceError
from tsunagi.edge.topic_pattern import TopicPattern
from tsunagi.edge.tuple_form import form_of, streams_of
from tsunagi.runtime.clock import SystemClock
from tsunagi.runtime.sensors import SensorsError, read_sensors
from tsunagi.runtime.settings import Settings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The moment from which times in microseconds are counted."""


def try_messages(
    settings: Settings, edge: str, topic: str, key: str, messages: Iterable[bytes], say: Callable[[str], object]
) -> bool:
    """Say what each message has, a line a reading; return whether all of it can be used.

    Args:
        edge: the edge that reads them; "" = all sensors count as its own.
        topic, key: of the messages.
        messages: their payloads; of a binary format the topic (or nothing), a space, and the payload's bytes in
            hexadecimal digits.

    Raises:
        SensorsError, SourceError: the sensors table, the settings or the hexadecimal digits cannot be used.
    """
    table = read_sensors(settings.sensors)
    own = table.of_edge(edge) if edge else table.sensors
    if not own:
        raise SensorsError(
            f"{settings.sensors}: found no sensor of edge {edge!r}, expected one of {', '.join(table.edges)}"
        )
    source = settings.source
    by_topic = source.kind == "mqtt"
    decoder = with_fields(
        Decoder(table, own, source, key_first=by_topic, form=form_of(settings), streams=streams_of(settings)),
        source,
    )
    pattern = TopicPattern(source.mqtt.topic, own[0].edge) if by_topic else None
    usable = True
    for given in messages:
        where, payload = _unpacked(given, topic) if source.format in BINARY else (topic, given)
        sensor = pattern.sensor(where) if pattern is not None and where else None
        for found in decoder.readings(
            Message(payload, where, SystemClock().now_us(), sensor=sensor or key or None, topic=where)
        ):
            if isinstance(found, ReadingFault):
                usable = False
                say(
                    f"{found.reason}: {found.sensor}: {found.detail}"
                    if found.sensor
                    else f"{found.reason}: {found.detail}"
                )
                continue
            name = found.stream or own[found.place].name
            cells = found.value if found.cells is None else dict(found.cells)
            moment = (_EPOCH + timedelta(microseconds=found.time_us)).isoformat().replace("+00:00", "Z")
            say(f"{name}  {moment}  {cells}" + "  (time of arrival)" * found.arrival)
    return usable


def _unpacked(given: bytes, topic: str) -> tuple[str, bytes]:
    """Return (topic, payload) of a message in hexadecimal digits, which may have its topic before them."""
    before, _, digits = given.decode("utf-8", "replace").rpartition(" ")
    try:
        return before or topic, bytes.fromhex(digits)
    except ValueError:
        raise SourceError(f"found {digits[:80]!r}, expected hexadecimal digits, perhaps with a topic before") from None
