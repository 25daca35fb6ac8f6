"""Makes the sink that the settings name. The library of a kind is imported only where that kind is used."""

from __future__ import annotations

import importlib

from tsunagi.runtime.settings import Settings, SinkSettings
from tsunagi.sink.base import Sink, SinkError


def sink_named(settings: Settings, name: str) -> SinkSettings:
    """Return the settings of a sink.

    Raises:
        SinkError: there is none of that name.
    """
    for sink in settings.sinks:
        if sink.name == name:
            return sink
    known = ", ".join(sink.name for sink in settings.sinks) or "none"
    raise SinkError(f"sink {name!r}: no such sink; [[sinks]] has {known}")


def make_sink(settings: Settings, wanted: SinkSettings) -> Sink:
    """Return the sink of some settings; it is not open yet.

    Raises:
        SinkError: it cannot be made from the settings.
        ModuleNotFoundError: the extra `sinks` is not installed.
    """
    if wanted.kind == "postgres":
        from tsunagi.sink.postgres import PostgresSink

        return PostgresSink(wanted)
    if wanted.kind == "influxdb":
        from tsunagi.sink.influxdb import InfluxSink

        return InfluxSink(wanted)
    if wanted.kind == "mqtt":
        from tsunagi.sink.mqtt import MqttSink

        return MqttSink(wanted)
    if wanted.kind == "webhook":
        from tsunagi.sink.webhook import WebhookSink

        return WebhookSink(wanted)
    if wanted.kind == "kafka":
        from tsunagi.sink.kafka import KafkaSink

        return KafkaSink(settings, wanted)
    if wanted.kind == "lake":
        return _lake(wanted)
    return own_sink(wanted)


def _lake(wanted: SinkSettings) -> Sink:
    from tsunagi.sink.lake import LakeSink

    if wanted.lake.format == "delta":
        from tsunagi.sink.delta import DeltaTables

        return LakeSink(wanted, DeltaTables)
    from tsunagi.sink.parquet import ParquetFiles

    return LakeSink(wanted, ParquetFiles)


def own_sink(wanted: SinkSettings) -> Sink:
    """Return a sink of the user's own.

    Raises:
        SinkError: it cannot be imported or made from its options.
    """
    where = f"[[sinks]] {wanted.name}: use = {wanted.use!r}"
    module, _, name = wanted.use.partition(":")
    try:
        kind: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SinkError(f"{where}: {error}, expected module:Class") from None
    if not (isinstance(kind, type) and issubclass(kind, Sink)):
        raise SinkError(f"{where}: found {kind!r}, expected a class that extends tsunagi.Sink")
    try:
        made: Sink = kind(**wanted.options)
    except (TypeError, ValueError) as error:
        raise SinkError(f"{where}: [sinks.options]: {error}") from None
    return made
