"""The one configuration: ``tsunagi.toml``, every value overridable by an environment variable.

``[kafka] servers`` is ``TSUNAGI_KAFKA__SERVERS`` in the environment (two underscores between section and key; lists and
tables as JSON). Nothing is read at import; a service calls `load` once and passes the frozen result on.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from tsunagi.runtime.explain import DEBUG_VARIABLE
from tsunagi.runtime.settings.edge import Edge
from tsunagi.runtime.settings.kafka import Kafka
from tsunagi.runtime.settings.metrics import Metrics
from tsunagi.runtime.settings.paper import Paper
from tsunagi.runtime.settings.query import Query
from tsunagi.runtime.settings.recovery import Recovery
from tsunagi.runtime.settings.results import Results
from tsunagi.runtime.settings.scaler import Scaler
from tsunagi.runtime.settings.section import ConfigError, Directory, File
from tsunagi.runtime.settings.security import Security
from tsunagi.runtime.settings.slots import Slots
from tsunagi.runtime.settings.source import Source
from tsunagi.runtime.settings.spark import Spark
from tsunagi.runtime.settings.standby import Standby
from tsunagi.runtime.settings.steps import Steps

CONFIG_VARIABLE = "TSUNAGI_CONFIG"
DEFAULT_CONFIG = "tsunagi.toml"

_BENCH = "is gone: only benchmarks compare with it (tests/bench)"
_MOVED: dict[tuple[str, ...], str] = {
    ("scaler", "hour_s"): "has moved to [paper] hour_s",
    ("spark", "order", "none"): 'none has moved to [paper] order = "none"',
    ("spark", "order", "full"): 'full has moved to [paper] order = "full"',
    ("standby", "policy", "step"): "step has moved to [paper] batch_steps = true",
    ("standby", "step_tuples"): "is gone: [paper] batch_steps = true changes B by 5 tuples",
    ("standby", "step_interval_s"): "is gone: [paper] batch_steps = true changes B each 10 ms",
    ("source", "keepalive_s"): "is gone: a connection that is silent for 15 s is asked whether it lives",
    ("spark", "trigger_s"): "is gone: batches follow one another as fast as records come",
    ("standby", "costs"): "is gone: the secondary measures what tuples cost it",
    **{("scaler", "policy", name): f"{name} {_BENCH}" for name in ("always-on", "lag")},
    **{("slots", "placement", name): f"{name} {_BENCH}" for name in ("proposed", "vanilla", "random", "single")},
}
"""What became of settings of earlier versions: section, key and, where only one value is gone, the value."""


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
    paper: Paper = Paper()

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
            place = (str(item["loc"][0]), str(item["loc"][-1]))
            hint = "unknown key" if item["type"] == "extra_forbidden" else item["msg"]
            hint = _MOVED.get(place) or _MOVED.get((*place, str(item["input"]))) or hint
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
        if (section, key) in _MOVED:
            raise ConfigError(f"environment variable {variable}: {_MOVED[section, key]}")
        if not known:
            raise ConfigError(f"environment variable {variable}: no such setting; see tsunagi.toml for the names")
