from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import annotated_types
import pytest
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tsunagi.runtime import example, settings_page
from tsunagi.runtime.settings import ConfigError, MetricsSettings, Settings, load

EXAMPLE = Path(__file__).resolve().parents[3] / "tsunagi.toml.example"
PAGE = EXAMPLE.parent / "docs" / "reference" / "settings.md"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for variable in list(os.environ):
        if variable.startswith("TSUNAGI_"):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_example_is_what_the_settings_say() -> None:
    assert EXAMPLE.read_text(encoding="utf-8") == example.document(), "run `make docs`"


def test_the_page_is_what_the_settings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page.document(), "run `make docs`"


def test_example_loads_to_exactly_the_defaults() -> None:
    assert load(EXAMPLE) == Settings()


def test_example_lists_every_key() -> None:
    table = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    assert table.keys() == Settings.model_fields.keys()
    for name, field in Settings.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            assert table[name].keys() == model.model_fields.keys()
            assert all(key.description for key in model.model_fields.values()), f"[{name}]: a key has no description"


def test_without_a_file_the_defaults_hold() -> None:
    settings = load()
    assert settings.kafka.servers == "127.0.0.1:9092"
    assert settings.steps.slide_us == 2_000_000
    assert settings.steps.window_us == 10_000_000
    assert settings.steps.slide_s == 2.0
    assert settings.steps.max_skew_steps == 1


def test_file_in_the_directory_or_named_by_the_variable_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tsunagi.toml").write_text("[slots]\ncount = 3\n", encoding="utf-8")
    assert load().slots.count == 3
    monkeypatch.setenv("TSUNAGI_CONFIG", str(written(tmp_path, "[slots]\ncount = 5\n")))
    assert load().slots.count == 5


def test_environment_wins_over_the_file_and_keeps_its_other_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = written(tmp_path, '[kafka]\nservers = "a:1"\nprefix = "p."\n')
    monkeypatch.setenv("TSUNAGI_KAFKA__SERVERS", "b:2")
    monkeypatch.setenv("TSUNAGI_STANDBY__BATCH_SIZE", "inf")
    monkeypatch.setenv("TSUNAGI_QUERY__OPERATORS", '[{"use": "select", "where": "x"}]')
    settings = load(path)
    assert settings.kafka.servers == "b:2"
    assert settings.kafka.prefix == "p."
    assert settings.standby.batch_tuples == float("inf")
    assert settings.query.chain[0].use == "select"
    assert settings.query.chain[0].options == {"where": "x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[kafka]\nserver = 'a:1'\n", ["kafka.server", "unknown key", "'a:1'"]),
        ("[kafak]\nservers = 'a:1'\n", ["kafak", "unknown key"]),
        ("[slots]\ncount = 0\n", ["slots.count", "greater than or equal to 1", "found 0"]),
        ("[slots]\ncount = 'many'\n", ["slots.count", "integer", "'many'"]),
        ("[steps]\nwindow = 2\nslide = 3\n", ["steps", "slide = 3 is greater than window = 2"]),
        ("[standby]\ndetect_s = 0.2\n", ["standby", "less than three heartbeats"]),
        ("[recovery]\ndelta = 1.0\n", ["recovery.delta", "less than 1"]),
        ("[kafka]\nprefix = 'a b'\n", ["kafka.prefix", "'a b'"]),
        ("[results]\nformat = 'xml'\n", ["results.format", "'blocks' or 'json'", "'xml'"]),
        ("[kafka\n", ["not valid TOML"]),
    ],
)
def test_bad_value_is_refused_with_file_key_found_and_expected(tmp_path: Path, text: str, said: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    for part in [str(path), *said]:
        assert part in str(caught.value)


def test_a_value_of_the_environment_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSUNAGI_STEPS__INTERVAL_S", "inf")
    with pytest.raises(
        ConfigError, match=r"^environment variable TSUNAGI_STEPS__INTERVAL_S: \[steps.interval_s\] .*inf"
    ):
        load()


def test_a_refused_table_does_not_show_its_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both given") as caught:
        load(written(tmp_path, '[kafka]\npassword = "hunter2"\npassword_file = "x"\n'))
    assert "hunter2" not in str(caught.value)


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, "[slots]\ncount = 0\n[kafka]\nreplication = -1\n"))
    assert len(str(caught.value).splitlines()) == 2


def test_named_file_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSUNAGI_CONFIG", "none.toml")
    with pytest.raises(ConfigError, match=r"none\.toml: no such configuration file"):
        load()


@pytest.mark.parametrize("variable", ["TSUNAGI_KAFAK__SERVERS", "TSUNAGI_KAFKA__SERVER", "TSUNAGI_SERVERS"])
def test_mistyped_variable_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(ConfigError, match=variable):
        load()


def test_settings_are_frozen_and_hide_the_password(tmp_path: Path) -> None:
    settings = load(written(tmp_path, '[kafka]\nusername = "u"\npassword = "hunter2"\n'))
    assert "hunter2" not in repr(settings)
    assert settings.kafka.password.get_secret_value() == "hunter2"
    with pytest.raises(ValidationError):
        settings.kafka.prefix = "x"  # type: ignore[misc]


def _numbers(model: type[BaseModel], above: str) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield (key, type, constraints) of every number that a model takes, in its tables and behind names of them too."""
    for name, field in model.model_fields.items():
        yield from _numbers_of(field.annotation, field.metadata, f"{above}{name}")


def _numbers_of(kind: Any, metadata: list[Any], key: str) -> Iterator[tuple[str, Any, list[Any]]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from _numbers(kind, f"{key}.")
    elif kind in (int, float):
        yield (
            key,
            kind,
            [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])],
        )
    elif get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        yield from _numbers_of(inner, [*metadata, *more], key)
    elif not key.endswith(("options", "environment")):  # passed on as they stand, to libraries that check them
        for part in get_args(kind):
            yield from _numbers_of(part, metadata, key)


NUMBERS = list(_numbers(Settings, ""))


def test_numbers_are_found_at_every_depth() -> None:
    keys = [key for key, _, _ in NUMBERS]
    assert {"metrics.port", "standby.slots.batch_size", "scaler.sizes.rate", "source.mqtt.qos"} <= set(keys)
    assert len(keys) > 70


@pytest.mark.parametrize(("key", "constraints"), [pytest.param(key, found, id=key) for key, _, found in NUMBERS])
def test_every_number_has_a_lower_and_an_upper_end(key: str, constraints: list[Any]) -> None:
    low = [item for item in constraints if isinstance(item, annotated_types.Ge | annotated_types.Gt)]
    high = [item for item in constraints if isinstance(item, annotated_types.Le | annotated_types.Lt)]
    assert low, f"{key} has no lower end"
    assert high, f"{key} has no upper end"


@pytest.mark.parametrize("odd", ["nan", "1e-9", "1e300", "-1", "9" * 400])
@pytest.mark.parametrize(
    "key", ["steps.interval_s", "recovery.eps", "source.speed", "kafka.retention_s", "slots.count"]
)
def test_a_number_past_its_range_is_refused_naming_key_and_found(tmp_path: Path, key: str, odd: str) -> None:
    section, _, name = key.partition(".")
    with pytest.raises(ConfigError, match=re.escape(f"[{key}]")):
        load(written(tmp_path, f"[{section}]\n{name} = {odd}\n"))


def test_a_window_longer_than_any_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are longer than 1e"):
        load(written(tmp_path, "[steps]\ninterval_s = 1e6\nwindow = 1000000\n"))


@pytest.mark.parametrize(
    ("host", "advertise", "expected"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("10.0.0.7", "", "10.0.0.7"),
        ("0.0.0.0", "", socket.gethostname()),
        ("::", "", socket.gethostname()),
        ("0.0.0.0", "gateway-1", "gateway-1"),
    ],
)
def test_metrics_are_found_at_the_address_that_is_advertised(host: str, advertise: str, expected: str) -> None:
    assert MetricsSettings(host=host, advertise=advertise).advertised == expected


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="advertise"):
        MetricsSettings(advertise="http://gateway-1")


@pytest.mark.parametrize("value", ["", "  "])
@pytest.mark.parametrize(
    ("variable", "key", "kind"),
    [
        ("STATE", "state", "directory"),
        ("SENSORS", "sensors", "file"),
        ("SPARK__CHECKPOINT", "spark.checkpoint", "directory"),
        ("RECOVERY__STORE", "recovery.store", "directory"),
    ],
)
def test_an_empty_path_is_not_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, variable: str, key: str, kind: str, value: str
) -> None:
    monkeypatch.setenv(f"TSUNAGI_{variable}", value)
    with pytest.raises(ConfigError) as caught:
        load()
    assert f"environment variable TSUNAGI_{variable}: [{key}]" in str(caught.value)
    assert f"expected a {kind} (found {value!r})" in str(caught.value)


@pytest.mark.parametrize(
    ("section", "line", "said"),
    [
        ("scaler", "hour_s = 900", "[scaler.hour_s] has moved to [paper] hour_s (found 900)"),
        ("spark", 'order = "full"', "[spark.order] full has moved to [paper] order = \"full\" (found 'full')"),
        ("standby", 'policy = "step"', "[standby.policy] step has moved to [paper] batch_steps = true"),
        ("standby.slots.1", 'policy = "step"', "[standby.slots.1.policy] step has moved to [paper] batch_steps = true"),
        ("standby", 'costs = "symmetric"', "[standby.costs] is gone: the secondary measures"),
        ("spark", "trigger_s = 1", "[spark.trigger_s] is gone: batches follow one another"),
        ("source.mqtt", "keepalive_s = 60", "[source.mqtt.keepalive_s] is gone: a connection that is silent for 15 s"),
        ("slots", 'placement = "vanilla"', "[slots.placement] vanilla is gone: only benchmarks compare with it"),
        ("scaler", 'policy = "lag"', "[scaler.policy] lag is gone: only benchmarks compare with it"),
    ],
)
def test_of_what_is_gone_is_said_what_became_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, section: str, line: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(written(tmp_path, f"[{section}]\n{line}\n"))
    name, _, value = line.partition(" = ")
    monkeypatch.setenv(f"TSUNAGI_{section.replace('.', '__')}__{name}".upper(), value.strip('"'))
    with pytest.raises(ConfigError, match=r"has moved to|is gone"):
        load()
