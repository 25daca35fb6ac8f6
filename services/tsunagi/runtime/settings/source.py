"""[source] of the configuration: where an edge reads. `docs/howto/sources.md` explains each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tsunagi.runtime.settings.fields import FieldSettings
from tsunagi.runtime.settings.section import Count, Few, File, Port, Positive, Seconds, SecondsOrNone, Section
from tsunagi.runtime.settings.table import TableSettings
from tsunagi.runtime.times import LATEST_US

_KINDS_OF = {"line-protocol": ("mqtt", "lines", "kafka", "own"), "sparkplug": ("mqtt",), "avro": ("kafka",)}
"""The kinds of sources that have messages of each format but JSON, which all of them have."""


class MqttSettings(Section):
    """An MQTT broker ([source] kind = "mqtt")."""

    host: str = Field("127.0.0.1", description="the broker's host name or address")
    port: Port = Field(1883, description="its port")
    topic: str = Field(
        "plant/{edge}/{sensor}",
        description="topics to read: the level {sensor} names the sensor, {edge} is this edge's name; + and # as usual",
    )
    qos: Annotated[int, Field(ge=0, le=2)] = Field(
        1, description="quality of service; with 1 or 2 the broker keeps readings while the edge is away"
    )
    client_id: str = Field("", description="of the persistent session; empty = tsunagi- and the edge's name")
    reconnect_s: Seconds = Field(5.0, description="longest pause between two attempts to connect")
    username: str = Field("", description="user name; empty = none")
    password_file: str = Field("", description="file with that user's password")
    ca_file: str = Field(
        "", description="certificates of the authority that the broker's is checked against; empty = no TLS"
    )
    rebirth: bool = Field(
        default=True, description="with format = sparkplug, ask a node for its births (NCMD) when its data need one"
    )


class LinesSettings(Section):
    """JSON lines ([source] kind = "lines")."""

    listen: str = Field(
        "", description="host:port to listen on for TCP clients that send lines; empty = read standard input"
    )
    max_clients: Few = Field(64, description="connections at a time; more wait to be accepted")


class TopicSettings(Section):
    """An existing Kafka topic ([source] kind = "kafka")."""

    topic: str = Field("", description="its full name; [kafka] prefix is not put before it")
    servers: str = Field("", description="its cluster's bootstrap servers; empty = that of [kafka], with its options")
    username: str = Field("", description="SASL user of that cluster, if servers is given")
    password_file: str = Field("", description="file with that user's password")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="librdkafka options of its own"
    )
    registry: str = Field("", description="URL of the schema registry, with format = avro")
    registry_options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="further options of confluent-kafka's SchemaRegistryClient"
    )


class SourceSettings(Section):
    """Where an edge reads."""

    kind: Literal["csv", "parquet", "mqtt", "lines", "kafka", "own"] = Field(
        "csv",
        description="csv, parquet: a file, replayed in time; live: mqtt, lines (JSON lines), kafka (a topic) or own",
    )
    use: str = Field("", description="own: the class that reads, as module:Class (a tsunagi.SourceReader)")
    options: dict[str, Any] = Field(default_factory=dict, description="own: keyword arguments of that class")
    format: Literal["json", "line-protocol", "sparkplug", "avro"] = Field(
        "json",
        description="live: of messages; line-protocol (InfluxDB's), sparkplug (B, of MQTT) and avro (of Kafka) need "
        "fields",
    )
    path: Path = Field(Path("data/guangzhou.csv"), description="the CSV or Parquet file to replay")
    table: TableSettings = Field(TableSettings(), description="how that file is read")
    events: dict[str, File] = Field(
        default_factory=dict, description="csv: of each stream of events (CREATE STREAM) a CSV with a column time"
    )
    speed: Positive = Field(1.0, description="how many times faster than its own times the data is replayed")
    origin_us: Annotated[int, Field(ge=0, lt=LATEST_US)] = Field(
        0, description="event time of the first row, microseconds; 0 = the start of the first edge"
    )
    when_behind: Literal["skip", "send"] = Field(
        "skip", description="after a pause, skip what is over (rows of a file, steps of a live source), or send it late"
    )
    first_row: Annotated[int, Field(ge=0, le=10**12)] = Field(0, description="replay from this row on")
    repeat: bool = Field(default=False, description="begin a file anew after its last row, for a stream without an end")
    disorder_s: SecondsOrNone = Field(
        0.5, description="live: a step closes so long after its end; readings may come so far out of order"
    )
    max_ahead_s: Seconds = Field(
        5.0, description="live: a reading further ahead of the edge's clock is unusable (ahead)"
    )
    max_behind_s: Seconds = Field(
        30.0, description="live: longest wait for readings known to be queued, before steps close without them"
    )
    sensor_key: str = Field("sensor", description="live: key of the sensor's name in JSON")
    time_key: str = Field("time", description="live: key of the reading's time in JSON")
    value_key: str = Field("value", description="live: key of the value in JSON")
    fields: tuple[FieldSettings, ...] = Field(
        (),
        description="live: tables that say where in messages readings stand, in place of the keys above",
    )
    stream_key: str = Field("stream", description="live: key of the stream's name in JSON, of events (CREATE STREAM)")
    time_unit: Literal["s", "ms", "us"] = Field(
        "s", description="live: unit of times given as numbers since the epoch (a text is ISO 8601 with a zone)"
    )
    plain_time: Literal["arrival", "refuse"] = Field(
        "arrival", description="live: a plain number gets the time of its arrival, or is unusable (no-time)"
    )
    foreign: Literal["keep", "count"] = Field(
        "keep", description="live: readings of other edges' sensors go to dead-letters, or are only counted"
    )
    queue: Count = Field(10_000, description="live: readings that wait for the edge's loop at most")
    max_bytes: Annotated[int, Field(ge=64, le=65536)] = Field(
        65536, description="live: a longer line or payload is unusable (too-long)"
    )
    mqtt: MqttSettings = Field(MqttSettings(), description="an MQTT broker")
    lines: LinesSettings = Field(LinesSettings(), description="JSON lines")
    kafka: TopicSettings = Field(TopicSettings(), description="an existing Kafka topic")

    @model_validator(mode="after")
    def _fitting(self) -> SourceSettings:
        if (self.kind == "own") != bool(self.use):
            raise ValueError(
                f"kind = {self.kind!r}, use = {self.use!r}: expected kind = 'own' with use = 'module:Class'"
            )
        if self.format == "json":
            return self
        if self.kind not in _KINDS_OF[self.format]:
            kinds = " or ".join(map(repr, _KINDS_OF[self.format]))
            raise ValueError(f"format = {self.format!r}: found kind = {self.kind!r}, expected {kinds}")
        if not self.fields:
            raise ValueError(f"format = {self.format!r}: found no [[source.fields]], expected where readings stand")
        if self.format == "avro" and not self.kafka.registry:
            raise ValueError("format = 'avro': found no [source.kafka] registry, expected the URL of a schema registry")
        return self
