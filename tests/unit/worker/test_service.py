"""What a worker is told by its type, and what it says last: by whose fault it ends decides that."""

from __future__ import annotations

from typing import Any

import pytest

from tsunagi.runtime.heartbeat import ReplacedError
from tsunagi.runtime.log import LogError
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import ConfigError, ScalerSettings, Settings, SizeSettings
from tsunagi.worker import service
from tsunagi.worker.service import limit_of


@pytest.mark.parametrize(("kind", "limit"), [("", 800.0), ("local", 800.0), ("small", 400.0), ("large", None)])
def test_a_worker_keeps_to_its_type_s_limit(kind: str, limit: float | None) -> None:
    sizes = {"local": SizeSettings(limit=800.0), "small": SizeSettings(limit=400.0), "large": SizeSettings(rate=900.0)}
    assert limit_of(Settings(scaler=ScalerSettings(sizes=sizes)), kind) == limit


def test_without_types_a_worker_is_local_and_has_no_limit() -> None:
    assert limit_of(Settings(), "") is None
    assert limit_of(Settings(), "local") is None
    with pytest.raises(ConfigError, match="found 'small', expected one of none"):
        limit_of(Settings(), "small")


class Anything:
    """Stands for the log, the health server and what else a process has."""

    port = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def close(self) -> None: ...


class Dying(Anything):
    heartbeats = Anything()
    incarnation = 7
    ready = None
    error: Exception
    died: bool

    def start(self) -> None: ...

    def step(self) -> None:
        raise self.error

    def close(self, *, died: bool = False) -> None:
        type(self).died = died


@pytest.mark.parametrize(
    ("error", "died"),
    [(ZeroDivisionError("of a record"), True), (LogError("gone"), False), (ReplacedError("newer"), False)],
)
def test_only_what_may_be_a_record_s_fault_is_a_death(
    error: Exception, died: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings()
    Dying.error = error
    for name, value in {
        "ReplicaHost": Dying,
        "KafkaLog": Anything,
        "HealthServer": Anything,
        "authenticated": lambda log, _: log,
        "wait_for_topics": lambda *_: settings,
        "belong": lambda *_: None,
        "enrol": lambda *_: None,
        "relax": lambda: None,
        "sensors_in_force": lambda *_: SensorTable((Sensor(0, "a", "e"),)),
    }.items():
        monkeypatch.setattr(service, name, value)
    with pytest.raises(type(error)):
        service.run(settings, "gw-1")
    assert Dying.died is died
