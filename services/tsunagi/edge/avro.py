"""Reads Avro whose schemas stand in a registry, as Kafka producers with Confluent's serializers write it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal

import httpx2
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tsunagi.edge.decode import UNREADABLE, ReadingFault
from tsunagi.edge.inbox import Message
from tsunagi.edge.payload_format import PayloadFormat, SourceAwayError
from tsunagi.edge.source import SourceError
from tsunagi.runtime.settings.source import TopicSettings

_ID_BYTES = {0: 5, 1: 17}
"""Length of the schema's id at the beginning of a message, by the message's first byte; that byte is part of it."""
_NO_SUCH = frozenset({404, 422})
"""Answers of a registry that it has no such schema, or a broken one; asking again does not help."""
_OPTIONS = {"timeout": 2, "max.retries": 0}
"""Options of the registry's client: the feed asks again by itself. `[source.kafka] registry_options` count more."""


class Avro(PayloadFormat):
    """Reads a record as an object. Times become ISO 8601, decimals floating-point numbers, bytes hexadecimal digits.

    Raises:
        SourceError: the client of the registry does not take the settings.
    """

    def __init__(self, settings: TopicSettings) -> None:
        self._url = settings.registry
        options = {"url": settings.registry} | _OPTIONS | settings.registry_options
        try:
            self._deserialize = AvroDeserializer(SchemaRegistryClient.new_client(options))
        except (ValueError, TypeError, OSError) as error:
            raise SourceError(f"[source.kafka] registry, registry_options: {error}") from None
        self._asked: dict[bytes, str] = {}  # id of a schema -> why the registry does not have it; "" = it does

    def fetch(self, payload: bytes) -> None:
        schema = _schema(payload)
        if schema in self._asked or len(payload) == len(schema):
            return
        try:
            self._deserialize(payload)
        except SchemaRegistryError as error:
            if error.http_status_code not in _NO_SUCH:
                raise SourceAwayError(f"schema registry {self._url}: {error}") from None
            self._asked[schema] = f"the registry {self._url} says: {error.error_message}"
        except httpx2.HTTPError as error:
            raise SourceAwayError(f"schema registry {self._url}: {error}") from None
        except Exception:  # noqa: BLE001 - `bodies` finds it again, and says what is wrong with the message
            self._asked[schema] = ""
        else:
            self._asked[schema] = ""

    def bodies(self, message: Message) -> Iterator[object]:
        try:
            self.fetch(message.payload)
        except SourceAwayError as error:
            yield ReadingFault(UNREADABLE, message.sensor or "", str(error))
            return
        why = self._asked.get(_schema(message.payload), "")
        if not why:
            try:
                yield _plain(self._deserialize(message.payload))
            except Exception as error:  # noqa: BLE001 - whatever a foreign schema and foreign bytes make of it
                why = f"{type(error).__name__}: {str(error)[:200]}"
            else:
                return
        found = f"found {len(message.payload)} bytes that begin with {message.payload[:16].hex(' ')!r}"
        yield ReadingFault(
            UNREADABLE, message.sensor or "", f"{found}, expected Avro with the id of its schema ({why})"
        )


def _schema(payload: bytes) -> bytes:
    """Return the bytes that name the schema of a message."""
    return payload[: _ID_BYTES.get(payload[0], 1)] if payload else b""


def _plain(found: object) -> object:
    """Return what a record has as a JSON value."""
    if isinstance(found, dict):
        return {str(key): _plain(item) for key, item in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(item) for item in found]
    if isinstance(found, datetime | date | time):
        return found.isoformat()
    if isinstance(found, Decimal):
        return float(found)
    if isinstance(found, bytes):
        return found.hex()
    return found if found is None or isinstance(found, bool | int | float | str) else str(found)
