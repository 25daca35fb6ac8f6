"""Reads the configuration: ``tsunagi.toml``, of which an environment variable can override every value.

``[kafka] servers`` is ``TSUNAGI_KAFKA__SERVERS`` in the environment: two underscores separate section and key, and
lists and tables are written as JSON. Importing this module reads nothing. A service calls `load` once, and passes the
result on, which cannot be changed.
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
from tsunagi.runtime.settings.console import ConsoleSettings
from tsunagi.runtime.settings.edge import EdgeSettings
from tsunagi.runtime.settings.kafka import KafkaSettings
from tsunagi.runtime.settings.metrics import MetricsSettings
from tsunagi.runtime.settings.paper import PaperSettings
from tsunagi.runtime.settings.query import QuerySettings
from tsunagi.runtime.settings.recovery import RecoverySettings
from tsunagi.runtime.settings.results import ResultsSettings
from tsunagi.runtime.settings.scaler import ScalerSettings
from tsunagi.runtime.settings.section import ConfigError, Directory, File
from tsunagi.runtime.settings.security import SecuritySettings
from tsunagi.runtime.settings.sinks import SinkSettings
from tsunagi.runtime.settings.slots import SlotsSettings
from tsunagi.runtime.settings.source import SourceSettings
from tsunagi.runtime.settings.spark import SparkSettings
from tsunagi.runtime.settings.standby import StandbySettings
from tsunagi.runtime.settings.steps import StepsSettings

CONFIG_VARIABLE = "TSUNAGI_CONFIG"
"""The environment variable that names the configuration file."""
DEFAULT_CONFIG = "tsunagi.toml"
"""The configuration file that is read if no other one is named and it exists, in the working directory."""

_BENCH = "is gone: only benchmarks compare with it (tests/bench)"
"""What errors say about values that only benchmarks still need."""
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
"""What errors say about settings of earlier versions, by section and key, and by value if only that value is gone."""


class Settings(BaseSettings):
    """All settings, which every service reads."""

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
    kafka: KafkaSettings = KafkaSettings()
    security: SecuritySettings = SecuritySettings()
    steps: StepsSettings = StepsSettings()
    edge: EdgeSettings = EdgeSettings()
    slots: SlotsSettings = SlotsSettings()
    query: QuerySettings = QuerySettings()
    standby: StandbySettings = StandbySettings()
    recovery: RecoverySettings = RecoverySettings()
    results: ResultsSettings = ResultsSettings()
    spark: SparkSettings = SparkSettings()
    scaler: ScalerSettings = ScalerSettings()
    metrics: MetricsSettings = MetricsSettings()
    console: ConsoleSettings = ConsoleSettings()
    source: SourceSettings = SourceSettings()
    sinks: tuple[SinkSettings, ...] = Field(
        (), description="tables that say where results go beside the topic (docs/howto/sinks.md)"
    )
    paper: PaperSettings = PaperSettings()

    @property
    def slide_us(self) -> int:
        """The unit in which the numbers of steps are counted, in microseconds; 1 if the query has no steps."""
        return self.steps.slide_us if self.query.mode == "steps" else 1

    @field_validator("state", "sensors")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        if "\0" in str(value):
            raise ValueError("a path has no NUL characters")
        try:
            return value.expanduser()
        except RuntimeError:  # HOME is not set, and the system does not know the user
            raise ValueError("~ stands for no directory here: set HOME, or write the path out") from None

    @field_validator("sinks")
    @classmethod
    def _named_apart(cls, sinks: tuple[SinkSettings, ...]) -> tuple[SinkSettings, ...]:
        names = [sink.name for sink in sinks]
        if len(set(names)) < len(names):
            raise ValueError(f"found a name twice among {', '.join(names)}")
        return sinks

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic-settings'
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let environment variables override the tables of the file, which are the arguments of the class."""
        return (env_settings, init_settings)


def load(path: Path | str | None = None) -> Settings:
    """Read the configuration.

    Args:
        path: the file. None means ``$TSUNAGI_CONFIG``, or else ``tsunagi.toml`` if it exists, or else no file.

    Raises:
        ConfigError: the configuration cannot be used; the message names the file, the key, what was found and what was
            expected.
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
    except (ValueError, RecursionError) as error:  # the file is no TOML, or its encoding or a number is wrong
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    return make(table, str(file))


def make(tables: Mapping[str, Any], origin: str) -> Settings:
    """Return the settings that nested tables give. Environment variables override them.

    Args:
        tables: the values by key, and by section and key.
        origin: where the tables come from, such as the name of a file, for messages.

    Raises:
        ConfigError: a setting cannot be used; the message names the origin, the key, what was found and what was
            expected.
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
            # The values of a whole table are not shown, because one of them may be a password.
            shown = item["type"] != "missing" and not isinstance(item["input"], dict) and "password" not in item["loc"]
            found = f" (found {item['input']!r:.80})" if shown else ""
            place = (str(item["loc"][0]), str(item["loc"][-1]))
            hint = "unknown key" if item["type"] == "extra_forbidden" else item["msg"]
            hint = _MOVED.get(place) or _MOVED.get((*place, str(item["input"]))) or hint
            lines.append(f"{_origin(origin, item['loc'])}: [{key}] {hint}{found}")
        raise ConfigError("\n".join(lines)) from None


def _origin(origin: str, key: tuple[int | str, ...]) -> str:
    """Return where a value comes from: an environment variable that is set, or the origin of the tables."""
    for end in range(len(key), 0, -1):
        variable = "TSUNAGI_" + "__".join(str(part).upper() for part in key[:end])
        if variable in os.environ:
            return f"environment variable {variable}"
    return origin


def _refuse_unknown_variables() -> None:
    """Refuse variables that are no settings: a mistyped one would otherwise be ignored in silence."""
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
