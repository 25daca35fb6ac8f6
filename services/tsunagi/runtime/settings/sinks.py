"""[[sinks]] of the configuration: where results go beside the topic. `docs/howto/sinks.md` explains each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tsunagi.runtime.settings.section import Count, Directory, Port, Seconds, Section

READINGS = "readings"
"""The value of `query` that means each reading with its bound, and not the rows of a query."""


class PostgresSettings(Section):
    """A table of a PostgreSQL database."""

    host: str = Field("127.0.0.1", description="the server's host name or address")
    port: Port = Field(5432, description="its port")
    database: str = Field("tsunagi", description="name of the database")
    user: str = Field("tsunagi", description="user; owns the table, which the sink makes")
    password_file: str = Field("", description="file with that user's password; empty = $PGPASSWORD, or none")
    tls: Literal["disable", "prefer", "require", "verify-full"] = Field(
        "prefer", description="as libpq's sslmode: disable | prefer | require | verify-full"
    )
    ca_file: str = Field("", description="certificates of the authority that the server's is checked against")
    table: str = Field("", description="TABLE or SCHEMA.TABLE; empty = the query's name")


class InfluxSettings(Section):
    """A database (InfluxDB 1) or bucket (2 and later), written in line protocol."""

    url: str = Field("http://127.0.0.1:8086", pattern=r"^https?://[^\s/]+.*$", description="address of the server")
    database: str = Field("tsunagi", description="InfluxDB 1: the database; 2 and later: the bucket, if org is given")
    org: str = Field("", description="InfluxDB 2 and later: the organisation; empty = it is InfluxDB 1")
    user: str = Field("", description="InfluxDB 1: user; empty = none")
    secret_file: str = Field("", description="file with that user's password, or with the token; empty = none")


class MqttSinkSettings(Section):
    """Messages to an MQTT broker."""

    host: str = Field("127.0.0.1", description="the broker's host name or address")
    port: Port = Field(1883, description="its port")
    topic: str = Field("tsunagi/{query}", description="topic; {query} and {names} of columns are put in")
    qos: Annotated[int, Field(ge=0, le=2)] = Field(1, description="quality of service; 0 may lose messages")
    retain: bool = Field(default=False, description="whether the broker keeps the last message of each topic")
    username: str = Field("", description="user name; empty = none")
    password_file: str = Field("", description="file with that user's password")
    ca_file: str = Field("", description="certificates that the broker's is checked against; empty = no TLS")


class WebhookSettings(Section):
    """HTTP requests with a JSON object for each row."""

    url: str = Field("", description="where each row is posted to", pattern=r"^(https?://[^\s/]+.*)?$")
    header_file: str = Field("", description="file with a header of each request, as Authorization: Bearer ...")
    timeout_s: Seconds = Field(10.0, description="longest wait for an answer; then the row is sent again")


class KafkaSinkSettings(Section):
    """A topic that other programs read: JSON with its schema (Kafka Connect's form), or Avro with a registry."""

    topic: str = Field("", description="its full name; [kafka] prefix is not put before it")
    format: Literal["json", "avro"] = Field("json", description="json: with schema, as Kafka Connect takes it; avro")
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


class LakeSettings(Section):
    """Parquet files in folders by query and date, or Delta tables."""

    directory: Directory = Field(Path("out/lake"), description="folder that has a folder for each query")
    files_s: Seconds = Field(60.0, description="event time in one file; when its day is over, its files become one")
    format: Literal["parquet", "delta"] = Field("parquet", description="parquet: plain files; delta: Delta tables")


class SinkSettings(Section):
    """One sink: which rows it takes, and where it writes them."""

    name: str = Field(description="what `tsunagi sink run --sink` calls it", pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")
    kind: Literal["postgres", "influxdb", "mqtt", "webhook", "kafka", "lake", "own"] = Field(
        description="postgres | influxdb | mqtt | webhook | kafka | lake | own"
    )
    query: str = Field(READINGS, description="readings, or the name of a query or of a window aggregate", min_length=1)
    batch_rows: Count = Field(10_000, description="most rows of one write")
    postgres: PostgresSettings = Field(PostgresSettings(), description="a PostgreSQL table")
    influxdb: InfluxSettings = Field(InfluxSettings(), description="an InfluxDB")
    mqtt: MqttSinkSettings = Field(MqttSinkSettings(), description="an MQTT broker")
    webhook: WebhookSettings = Field(WebhookSettings(), description="HTTP requests")
    kafka: KafkaSinkSettings = Field(KafkaSinkSettings(), description="a topic of Kafka")
    lake: LakeSettings = Field(LakeSettings(), description="Parquet files")
    use: str = Field("", description="own: the class that writes, as module:Class (a tsunagi.Sink)")
    options: dict[str, Any] = Field(default_factory=dict, description="own: keyword arguments of that class")

    @model_validator(mode="after")
    def _fitting(self) -> SinkSettings:
        if (self.kind == "own") != bool(self.use):
            raise ValueError(
                f"kind = {self.kind!r}, use = {self.use!r}: expected kind = 'own' with use = 'module:Class'"
            )
        if self.kind in ("mqtt", "webhook") and self.query == READINGS:
            raise ValueError(
                f"kind = {self.kind!r}, query = 'readings': expected a query whose rows are worth a message each"
            )
        if self.kind == "webhook" and not self.webhook.url:
            raise ValueError("kind = 'webhook': found no url, expected where rows are posted to")
        if self.kind == "kafka" and not self.kafka.topic:
            raise ValueError("kind = 'kafka': found no topic, expected the name of one")
        if self.kind == "kafka" and self.kafka.format == "avro" and not self.kafka.registry:
            raise ValueError("format = 'avro': found no registry, expected the URL of a schema registry")
        return self
