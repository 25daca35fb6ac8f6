"""The one configuration: ``tsunagi.toml``, every value overridable by an environment variable.

``[kafka] servers`` is ``TSUNAGI_KAFKA__SERVERS`` in the environment (two underscores between section and key; lists and
tables as JSON). Nothing is read at import; a service calls `load` once and passes the frozen result on.
"""

from __future__ import annotations

import math
import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from tsunagi.runtime.explain import DEBUG_VARIABLE
from tsunagi.runtime.section import (
    Bytes,
    Count,
    Directory,
    Few,
    File,
    Limit,
    NotNegative,
    Port,
    Positive,
    Seconds,
    SecondsOrNone,
    Section,
)
from tsunagi.runtime.source_settings import Source

MICROSECONDS = 1_000_000
LONGEST_S = 1e9
"""Longest time that the configuration may say, seconds (`tsunagi.runtime.section.Seconds`)."""
EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - recognised here, not bound

CONFIG_VARIABLE = "TSUNAGI_CONFIG"
DEFAULT_CONFIG = "tsunagi.toml"


class ConfigError(ValueError):
    """The configuration cannot be used; the message names file, key, what was found and what was expected."""


class Kafka(Section):
    """Where the log is."""

    servers: str = Field("127.0.0.1:9092", min_length=1, description="bootstrap servers, host:port, comma-separated")
    prefix: str = Field("", description="put before every topic's name", pattern=r"^[A-Za-z0-9._-]*$", max_length=200)
    group_prefix: str = Field("tsunagi", max_length=100, description="put before every consumer group's name")
    topics: Literal["create", "check"] = Field("create", description="make missing topics, or only check them")
    replication: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="replication factor of topics that we create"
    )
    retention_s: Seconds = Field(7 * 86400.0, description="how long tuples, recovered and results are kept")
    flush_messages: Annotated[int, Field(ge=0, le=1_000_000_000)] = Field(
        0, description="records a partition after which the broker flushes it to disk; 0 = it leaves it to the system"
    )
    max_message_bytes: Annotated[int, Field(ge=1024, le=1_000_000_000)] = Field(
        1_048_576, description="largest record of tuples; for topics that we create"
    )
    security: Literal["plaintext", "tls", "sasl_plaintext", "sasl_tls"] = Field(
        "plaintext", description="plaintext | tls | sasl_plaintext | sasl_tls: encryption, and SASL for who we are"
    )
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism, for sasl_plaintext and sasl_tls"
    )
    username: str = Field("", description="SASL user")
    password: SecretStr = Field(SecretStr(""), description="SASL password; a file is better: password_file")
    password_file: str = Field("", description="file that holds the SASL password and nothing else")
    ca_file: str = Field("", description="PEM file of the certificates that sign the brokers'; empty = the system's")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="any librdkafka option, passed on as it stands"
    )

    def read_password(self) -> str:
        """Return the SASL password, of the file if one is given.

        Raises:
            ConfigError: the file cannot be read, or is empty.
        """
        if not self.password_file:
            return self.password.get_secret_value()
        try:
            found = Path(self.password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{self.password_file} ([kafka] password_file): {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.password_file} ([kafka] password_file): found other than UTF-8") from None
        if not found:
            raise ConfigError(f"{self.password_file} ([kafka] password_file): found nothing, expected a password")
        return found

    @model_validator(mode="after")
    def _complete(self) -> Kafka:
        secret = self.password.get_secret_value()
        if secret and self.password_file:
            raise ValueError("password and password_file are both given; expected one of them")
        if self.security.startswith("sasl") and not (self.username and (secret or self.password_file)):
            raise ValueError(f'security = "{self.security}" needs username and password_file')
        return self


class Security(Section):
    """Who may say what: keyed hashes of records (docs/security.md)."""

    auth: Literal["none", "hmac"] = Field("none", description="none | hmac: sign what is written, verify what is read")
    key_file: str = Field("", description="master key; for an edge its own key alone (deploy/secure)")

    @model_validator(mode="after")
    def _keyed(self) -> Security:
        if self.auth != "none" and not self.key_file:
            raise ValueError(f'auth = "{self.auth}" needs key_file')
        return self


class Steps(Section):
    """How event time is cut (in readings of the nominal interval, as sensors' people speak of it)."""

    interval_s: Seconds = Field(1.0, description="nominal time between two readings of a sensor")
    window: Count = Field(10, description="readings in a window")
    slide: Count = Field(2, description="readings between two windows; one step")
    aggregate: Literal["mean", "sum", "min", "max", "last"] = Field(
        "mean", description="what becomes of the readings in a window: mean, sum, min, max or last"
    )
    grace_s: Seconds = Field(0.5, description="how long a step waits for an edge that has gone silent")
    max_skew_s: Seconds = Field(2.0, description="largest clock difference between edges that is waited for")
    max_ahead_s: Seconds = Field(
        5.0,
        description="a batch whose event time is further ahead of the time the log appended it goes to dead-letters",
    )
    max_gap_s: Seconds = Field(
        600.0, description="a longer time without any edge is skipped, not filled in step by step"
    )

    @property
    def slide_us(self) -> int:
        """Length of a step in microseconds."""
        return round(self.slide * self.interval_s * MICROSECONDS)

    @property
    def slide_s(self) -> float:
        """Length of a step in seconds."""
        return self.slide_us / MICROSECONDS

    @property
    def window_us(self) -> int:
        """Length of a window in microseconds."""
        return round(self.window * self.interval_s * MICROSECONDS)

    @property
    def max_gap_steps(self) -> int:
        """`max_gap_s` in whole steps, at least 1."""
        return max(1, round(self.max_gap_s * MICROSECONDS / self.slide_us))

    @property
    def max_skew_steps(self) -> int:
        """`max_skew_s` in whole steps, rounded up."""
        return -(-round(self.max_skew_s * MICROSECONDS) // self.slide_us)

    @model_validator(mode="after")
    def _whole_windows(self) -> Steps:
        if self.slide > self.window:
            raise ValueError(f"slide = {self.slide} is greater than window = {self.window}: readings would be lost")
        if self.window * self.interval_s > LONGEST_S:
            raise ValueError(
                f"window = {self.window} readings of interval_s = {self.interval_s:g} are longer than {LONGEST_S:g} s"
            )
        return self


class Edge(Section):
    """What an edge does while the broker is away."""

    spool_bytes: Bytes = Field(
        33_554_432, description="of batches that may wait to be sent, in memory and on disk; the oldest go first"
    )


class Slots(Section):
    """Units of work: partitions of `tuples`, fixed when the topics are made."""

    count: Few = Field(2, description="slots, and partitions of tuples and recovered")
    most: int = Field(
        0,
        ge=0,
        le=10_000,
        description="slots at most: more than count are made where a slot's recovery would take longer than half a "
        "step, by measured cost; 0 = count as it is",
    )

    @property
    def grow(self) -> bool:
        """Whether the topics may have been made with more slots than `count`."""
        return self.most > self.count

    placement: Literal["spread", "proposed-swap", "proposed", "vanilla", "random", "single"] = Field(
        "spread",
        description="which slot a sensor gets at first: spread (each edge over all slots), or by the recovery model",
    )


class Operator(Section):
    """One operator of the chain; `use` names it, the other keys are its own."""

    model_config = ConfigDict(frozen=True, extra="allow")
    use: str = Field(description="select | project | aggregate | recover, or module:Class of your own")

    @property
    def options(self) -> dict[str, Any]:
        """The operator's own keys."""
        return dict(self.model_extra or {})


class Aggregate(Section):
    """One window aggregate that the job computes: count, sum, mean, minimum and maximum (docs/psort.md)."""

    name: str = Field(description="the query's name in results", pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)
    range_s: Seconds = Field(description="length of a window")
    slide_s: Seconds | None = Field(None, description="time between two windows; none = range_s: they tumble")
    by: Literal["sensor", "group"] = Field("sensor", description="sensor | group: what a row is of")

    @model_validator(mode="after")
    def _usable(self) -> Aggregate:
        if self.name in ("readings", "tuples"):
            raise ValueError(f"name = {self.name!r} is taken")
        if self.slide_s is not None and self.slide_s > self.range_s:
            raise ValueError(
                f"slide_s = {self.slide_s:g} is greater than range_s = {self.range_s:g}: values would be lost"
            )
        return self


class Query(Section):
    """What a slot computes, first to last."""

    mode: Literal["steps", "tuples"] = Field(
        "steps",
        description="steps: in lock-step, a window of each sensor a step; tuples: each reading as it comes, no Spark",
    )
    operators: tuple[Operator, ...] = Field(
        (Operator(use="recover"),),
        description="tables with `use`: select | project | aggregate | recover, or module:Class",
    )
    range_s: Seconds = Field(60.0, description="the range of q1 and q2")
    aggregates: tuple[Aggregate, ...] = Field(
        (), description="window aggregates: tables with `name`, `range_s`, and optionally `slide_s` and `by`"
    )

    @model_validator(mode="after")
    def _named_apart(self) -> Query:
        names = [item.name for item in self.aggregates]
        if len(set(names)) < len(names):
            raise ValueError(f"aggregates: found a name twice among {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _stepwise(self) -> Query:
        if self.mode == "tuples" and any(operator.use == "recover" for operator in self.operators):
            raise ValueError(
                'mode = "tuples" has no steps in which a value could be missing: name operators without recover'
            )
        return self


JavaBytes = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,9}[kmgKMG]$")]
Batch = Annotated[int, Field(ge=1, le=10**12)] | Literal["inf"]


class Target(Section):
    """What a slot's secondary aims at (A-SAS, algorithm 3)."""

    batch_size: Batch = Field(
        100,
        description="B in tuples: the secondary reads the log when it holds B; 1 = active standby, inf = never before",
    )
    policy: Literal["model", "step", "fixed"] = Field(
        "model",
        description="how B is kept within the limits: model (best B at once), step (the paper's), fixed (it is not)",
    )
    max_bandwidth: Limit = Field(math.inf, description="limit of what a slot's secondary reads, bytes/s")
    max_recovery_s: Limit = Field(math.inf, description="limit of the recovery time, detection not counted")
    priority: Literal["recovery", "bandwidth"] = Field(
        "recovery", description="which limit is kept where both cannot be: recovery or bandwidth"
    )

    @property
    def batch_tuples(self) -> float:
        """B as a number; infinity for upstream backup."""
        return float(self.batch_size)

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return math.isfinite(self.max_bandwidth) or math.isfinite(self.max_recovery_s)


class SlotTarget(Section):
    """What one slot has otherwise."""

    batch_size: Batch | None = None
    policy: Literal["model", "step", "fixed"] | None = None
    max_bandwidth: Limit | None = None
    max_recovery_s: Limit | None = None
    priority: Literal["recovery", "bandwidth"] | None = None


class Standby(Target):
    """A-SAS: how the slots' secondaries stand by."""

    costs: Literal["measured", "symmetric"] = Field(
        "measured",
        description="who measures S_time and R_ptime: measured (the secondary), symmetric (the primary, as the paper)",
    )
    cost_period_s: Seconds = Field(2.0, description="period over which the costs are measured")
    step_tuples: Count = Field(5, description="policy step: by how much B changes")
    step_interval_s: Seconds = Field(0.01, description="policy step: how often at most")
    slots: dict[Annotated[int, Field(ge=0, lt=10_000)], SlotTarget] = Field(
        default_factory=dict, description="slots that have batch_size, policy, limits or priority of their own"
    )
    heartbeat_s: Seconds = Field(0.1, description="interval of heartbeats")
    detect_s: Seconds = Field(0.75, description="silence of the primary after which it counts as dead")
    speculate: bool = Field(
        default=False,
        description="write a silent owner's outputs before it is known to be dead; repeats are dropped by name",
    )
    speculate_s: Seconds = Field(0.25, description="silence of the primary after which its secondary does so")
    ack_s: Seconds = Field(0.25, description="interval of Level-0- and Level-1-Acks")
    context_s: Seconds = Field(1.0, description="least time between two contexts of a slot")
    context_bytes: Bytes = Field(262_144, description="a context above this size is written in parts of this size")
    poll_s: Seconds = Field(0.05, description="how often a secondary asks for the log's end when no heartbeat tells it")

    def target(self, slot: int) -> Target:
        """Return what a slot aims at: what it has of its own, and the rest as all."""
        common = {name: getattr(self, name) for name in Target.model_fields}
        own = self.slots.get(slot)
        return Target(**common | ({} if own is None else own.model_dump(exclude_none=True)))

    @model_validator(mode="after")
    def _detectable(self) -> Standby:
        if self.detect_s < 3 * self.heartbeat_s:
            raise ValueError(f"detect_s = {self.detect_s} is less than three heartbeats of {self.heartbeat_s} s")
        return self


class Recovery(Section):
    """Filling in what dead edges lost."""

    model: str = Field("", description="model file to put in force; empty = values pass through as `unmodelled`")
    store: Directory = Field(Path("out/models"), description="directory of models that every worker sees")
    eps: Positive = Field(1.0, description="tolerated error, in each sensor's standard deviations")
    delta: Annotated[float, Field(ge=1e-3, lt=1)] = Field(0.9, description="probability with which the bound must hold")
    calibrate: bool = Field(
        default=True,
        description="measure on living edges how wide bounds must be, and follow it; false = as the model was fitted",
    )
    refit: bool = Field(
        default=False,
        description="let the owner make models that follow the data; each comes into force through the slot's log",
    )
    refit_s: Seconds = Field(300.0, description="least time between two of them; each takes a file in the store")
    helpers: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        100,
        description="sensors of other slots that a slot may ask for while values it lost miss eps and delta; 0 = none",
    )
    unbounded: Literal["tag", "withhold"] = Field(
        "tag", description="values whose bound is wider than eps: tag (they go out, tagged) or withhold (they do not)"
    )
    suspects: bool = Field(
        default=False,
        description="let readings count as missing of sensors that fail alone, until they are plausible again",
    )


class Results(Section):
    """What leaves the system."""

    format: Literal["blocks", "json"] = Field(
        "blocks", description="blocks: protobuf ResultBlock; json: a row a message"
    )
    files: str = Field("", description="directory that the job also writes results to, as Parquet files; empty = none")
    files_s: Seconds = Field(60.0, description="event time in one file of a partition")


class Spark(Section):
    """The aggregation job."""

    master: str = Field("local[*]", description="Spark master URL")
    cores: Few = Field(2, description="P-SORT cores; partitions of results")
    order: Literal["auto", "none", "basic", "optimised", "full"] = Field(
        "auto",
        description="auto | none | basic | optimised | full: P-SORT (docs/psort.md); auto takes basic or optimised",
    )
    rebalance_s: SecondsOrNone = Field(
        60.0, description="least time between two changes of which core works on what, by measured rates; 0 = never"
    )
    checkpoint: Directory = Field(
        Path("out/checkpoint"), description="directory for checkpoint and state, seen by all Spark workers"
    )
    trigger_s: SecondsOrNone = Field(0.0, description="least time between batches; 0 = as fast as they come")
    max_offsets: Count = Field(20_000, description="records of `recovered` in one batch at most")
    max_bytes: Bytes = Field(268_435_456, description="bytes of these records in one batch at most")
    wait_s: Seconds = Field(30.0, description="how long the frontier waits for a slot that gives nothing")
    max_carried: Count = Field(
        10_000_000, description="rows that may wait for a lagging slot; beyond it the slot is left behind at once"
    )
    unknown_group: str = Field("ungrouped", description="group of sensors without one in the sensors table")
    ungrouped: Literal["group", "refuse"] = Field(
        "group",
        description="sensors without a group: group (they make up unknown_group), refuse (the job does not run)",
    )
    memory: JavaBytes = Field("512m", description="heap of the driver")
    executor_memory: JavaBytes = Field(
        "512m", description="heap of an executor, on a cluster; less than its worker has"
    )
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, description="any Spark option")


LOCAL = "local"
"""The type of the workers that no type of the settings describes: of this machine, or started by somebody else."""


class Size(Section):
    """One type of worker; its name is its key in `[scaler.sizes]`, and "local" is that of this machine's own."""

    rate: Positive | None = Field(None, description="tuples/s that one can process (`tsunagi scaler capacity`)")
    limit: Positive | None = Field(None, description="tuples/s that a local one keeps itself to: a smaller machine")
    price_h: NotNegative = Field(0.0, description="price of an hour")
    price_gb: NotNegative = Field(0.0, description="price of a gigabyte sent to it")
    boot_s: Seconds | None = Field(None, description="from launch to ready; none = as [scaler] boot_s")
    most: Few | None = Field(None, description="so many at once at most; none = as many as wanted")
    cpus: Positive = Field(1.0, description="processors that a container of it may use")
    memory_bytes: Bytes = Field(1 << 30, description="memory that a container of it may use")


class Containers(Section):
    """Workers as containers that the scaler starts (launcher = "docker")."""

    url: str = Field("unix:///var/run/docker.sock", description="Docker Engine's API: unix://FILE or tcp://HOST:PORT")
    image: str = Field("tsunagi-services", description="image of the workers; it is not pulled")
    network: str = Field("", description="network that they join; empty = Docker's default")
    volumes: tuple[str, ...] = Field((), description="what they see of others: VOLUME-OR-DIRECTORY:PATH[:ro]")
    environment: dict[str, str] = Field(default_factory=dict, description="variables of theirs, as TSUNAGI_CONFIG")
    project: str = Field("tsunagi", description="label by which this system's containers are told from another's")
    like: str = Field(
        "",
        description="node of the compose project `project` whose container they are to be like: its image, network, "
        "volumes and environment, instead of those above; only command and limits differ",
    )


class Scaler(Section):
    """How many workers, and who starts them."""

    workers: Few = Field(3, description="gateway workers kept alive: primaries, secondaries and idle ones")
    launcher: Literal["none", "local", "docker"] = Field(
        "local", description="who starts a worker that is missing: none, local (a process), docker (a container)"
    )
    boot_s: Seconds = Field(20.0, description="a launched worker that has not reported by then is started again")
    dead_s: Seconds = Field(2.0, description="silence after which the scaler plans without a worker")
    sizes: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=40)], Size] = Field(
        default_factory=dict, description="types of workers, each with rate, price_h, boot_s, limit, most, ..."
    )
    containers: Containers = Field(Containers(), description="workers as containers")
    policy: Literal["fixed", "lookahead", "elasticstream", "always-on", "threshold", "lag"] = Field(
        "fixed",
        description="how many workers: fixed (`workers`, or `tsunagi scaler scale`), or a policy of docs/scaler.md",
    )
    forecast: str = Field(
        "", description="mixture, sdar, seasonal, ewma, last or module:Class; empty = the policy's own"
    )
    slot_s: Seconds = Field(300.0, description="TimeSlot: how often a policy decides")
    slo_s: Seconds = Field(10.0, description="longest delay of a tuple that a policy promises")
    billing: Literal["hourly", "second"] = Field(
        "hourly", description="hourly: begun hours are paid; second: what is used"
    )
    hour_s: Seconds = Field(3600.0, description="what a paid hour lasts; less for trials on a compressed clock")
    history: str = Field(
        "", description="CSV file of rates from before (t_s,rate_per_s) that a policy learns at the start; empty = none"
    )
    solver: Literal["marginal", "program"] = Field(
        "marginal", description="policy lookahead: marginal (greedy solution), program (the integer program)"
    )
    solve_s: Seconds = Field(5.0, description="time after which a stated rule stands in for a program's solution")

    def boot_of(self, kind: str) -> float:
        """Return how long a worker of a type may take to report, seconds."""
        size = self.sizes.get(kind)
        return self.boot_s if size is None or size.boot_s is None else size.boot_s


class Metrics(Section):
    """Prometheus metrics, /healthz and /readyz of every service."""

    host: str = Field("127.0.0.1", description="address that every service listens on")
    port: Port = Field(0, description="0 = any free port, shown by `tsunagi status`")
    advertise: str = Field(
        "",
        description="host name or address at which Prometheus reaches this service; empty = host, or this machine's "
        "name where host means every address",
        pattern=r"^[A-Za-z0-9._:-]*$",
    )

    @property
    def advertised(self) -> str:
        """Where others reach what listens on `host`."""
        return self.advertise or (socket.gethostname() if self.host in EVERY_ADDRESS else self.host)


class Settings(BaseSettings):
    """Everything a service may be told."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="TSUNAGI_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    state: Directory = Field(
        Path("out/run"), description="directory for process files, logs, spools and source positions"
    )
    sensors: File = Field(Path("data/guangzhou-sensors.csv"), description="the sensors table")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that services log: debug | info | warning | error"
    )
    kafka: Kafka = Kafka()
    security: Security = Security()
    steps: Steps = Steps()
    edge: Edge = Edge()
    slots: Slots = Slots()
    query: Query = Query()
    standby: Standby = Standby()
    recovery: Recovery = Recovery()
    results: Results = Results()
    spark: Spark = Spark()
    scaler: Scaler = Scaler()
    metrics: Metrics = Metrics()
    source: Source = Source()

    @property
    def slide_us(self) -> int:
        """What a step's number is counted in, microseconds; 1 where there are no steps."""
        return self.steps.slide_us if self.query.mode == "steps" else 1

    @field_validator("state", "sensors")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        if "\0" in str(value):
            raise ValueError("a path has no NUL characters")
        try:
            return value.expanduser()
        except RuntimeError:  # no HOME, and a user without an entry in the system's table
            raise ValueError("~ stands for no directory here: set HOME, or write the path out") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic-settings'
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over file over defaults; `init` carries the file's name."""
        return (env_settings, init_settings)


def load(path: Path | str | None = None) -> Settings:
    """Read the configuration.

    Args:
        path: the file; None = ``$TSUNAGI_CONFIG``, or ``tsunagi.toml`` if there is one, else defaults alone.

    Raises:
        ConfigError: naming the file, the key, what was found and what was expected.
    """
    named = path if path is not None else os.environ.get(CONFIG_VARIABLE)
    file = Path(named) if named else Path(DEFAULT_CONFIG)
    table: dict[str, Any] = {}
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise ConfigError(f"{file}: no such configuration file") from None
    except OSError as error:
        raise ConfigError(f"{file}: the configuration cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of the TOML, its encoding, or its numbers
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    return make(table, str(file))


def make(tables: Mapping[str, Any], origin: str) -> Settings:
    """Return the settings of nested tables, with the environment over them.

    Args:
        origin: where the tables stand, for messages: a file's name.

    Raises:
        ConfigError: naming the origin, the key, what was found and what was expected.
    """
    _refuse_unknown_variables()
    try:
        return Settings(**tables)
    except SettingsError as error:
        name = re.search(r'field "(\w+)"', str(error))
        variable = f"TSUNAGI_{name[1].upper()}" if name else "TSUNAGI_..."
        raise ConfigError(
            f"environment variables {variable}...: found what is no JSON, expected JSON for lists and tables"
        ) from None
    except ValidationError as error:
        lines = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"])
            # Of a whole table the message tells what is wrong; its values may hold a password.
            shown = item["type"] != "missing" and not isinstance(item["input"], dict) and "password" not in item["loc"]
            found = f" (found {item['input']!r:.80})" if shown else ""
            hint = "unknown key" if item["type"] == "extra_forbidden" else item["msg"]
            lines.append(f"{_origin(origin, item['loc'])}: [{key}] {hint}{found}")
        raise ConfigError("\n".join(lines)) from None


def _origin(origin: str, key: tuple[int | str, ...]) -> str:
    """Return where a value stands: in an environment variable, which wins, or where the tables do."""
    for end in range(len(key), 0, -1):
        variable = "TSUNAGI_" + "__".join(str(part).upper() for part in key[:end])
        if variable in os.environ:
            return f"environment variable {variable}"
    return origin


def _refuse_unknown_variables() -> None:
    """A mistyped variable would otherwise be ignored in silence."""
    sections = Settings.model_fields
    for variable in os.environ:
        if not variable.startswith("TSUNAGI_") or variable in {CONFIG_VARIABLE, DEBUG_VARIABLE}:
            continue
        section, _, key = variable.removeprefix("TSUNAGI_").lower().partition("__")
        field = sections.get(section)
        known = field is not None
        if field is not None and key:
            model = field.annotation
            keys = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
            known = key.partition("__")[0] in keys
        if not known:
            raise ConfigError(f"environment variable {variable}: no such setting; see tsunagi.toml for the names")


__all__ = ["ConfigError", "Settings", "Source", "load", "make"]
