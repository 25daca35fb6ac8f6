"""A log is of one system: the first that says so; others are refused, and told whose it is."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import PLAN, TOPICS, Log
from tsunagi.runtime.messages import Placement, Plan, System
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.settings import ConfigError, KafkaSettings, Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.system import identity, plan
from tsunagi.system.identity import admit, belong, claim, first_of, introduce, kept_id, owner


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """The one broker, whoever asks."""
    made = MemoryLog(ManualClock(1_700_000_000_000_000), dict.fromkeys(TOPICS, 1))

    def there(_settings: Settings, _client_id: str) -> Log:
        return made

    monkeypatch.setattr(identity, "tool_log", there)
    monkeypatch.setattr(plan, "tool_log", there)
    return made


def at(directory: Path, **kafka: str) -> Settings:
    return Settings(state=directory / "run", kafka=KafkaSettings.model_validate(kafka))


def written(log: MemoryLog) -> int:
    """Return how many records `plan` has."""
    return log.reader().range(PLAN, 0)[1]


def append(log: MemoryLog, key: str, value: bytes) -> None:
    producer = log.producer()
    producer.send(PLAN, 0, key.encode(), value)
    producer.flush(1.0)


def test_who_comes_first_owns_the_log_and_comes_back(log: MemoryLog, tmp_path: Path) -> None:
    first = at(tmp_path / "a")
    for _ in range(3):
        admit(first)
        claim(first)
    found = owner(log)
    assert found is not None
    assert found.id == kept_id(first.state) == str(uuid.UUID(found.id))
    assert str(first.state) in found.by
    assert written(log) == 1


def test_another_is_refused_and_told_whose_log_it_is_and_what_to_do(log: MemoryLog, tmp_path: Path) -> None:
    first, second = at(tmp_path / "a"), at(tmp_path / "b", prefix="")
    claim(first)
    for refused in (admit, claim):
        with pytest.raises(ConfigError) as caught:
            refused(second)
        for said in (
            kept_id(first.state),
            str(first.state),
            str(second.state),
            "prefix",
            "--join",
            "Nothing was started",
        ):
            assert said in str(caught.value)
    assert not second.state.exists()
    admit(second, join=True)
    claim(second)
    assert kept_id(second.state) == kept_id(first.state)
    assert written(log) == 1


def test_a_service_joins_what_is_there_unless_its_state_directory_is_of_another_system(
    log: MemoryLog, tmp_path: Path
) -> None:
    first, second, nowhere = at(tmp_path / "a"), at(tmp_path / "b"), at(tmp_path / "c")
    identity.keep(second.state, str(uuid.uuid4()))
    belong(second, log)  # nobody's yet
    claim(first)
    belong(first, log)
    belong(nowhere, log)
    assert not nowhere.state.exists()
    with pytest.raises(ConfigError, match=f"is of the system {kept_id(second.state)}"):
        belong(second, log)


def test_a_system_that_has_a_log_of_its_own_is_refused_too(log: MemoryLog, tmp_path: Path) -> None:
    first, second = at(tmp_path / "a"), at(tmp_path / "b")
    claim(first)
    identity.keep(second.state, str(uuid.uuid4()))
    with pytest.raises(ConfigError, match=f"is of the system {kept_id(second.state)}"):
        admit(second)


def test_of_two_at_once_the_first_in_the_log_is_right(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = at(tmp_path / "a"), at(tmp_path / "b")
    asked = iter([None, *[0] * 9])  # the second looks just before the first has written
    looked = identity.owner
    monkeypatch.setattr(identity, "owner", lambda of: None if next(asked) is None else looked(of))
    write_plan = plan.write_plan

    def late(settings: Settings, records: dict[str, Plan]) -> None:
        monkeypatch.setattr(identity, "write_plan", write_plan)
        claim(first)
        write_plan(settings, records)

    monkeypatch.setattr(identity, "write_plan", late)
    with pytest.raises(ConfigError, match="of another system"):
        claim(second)
    assert written(log) == 2
    admit(first)


@pytest.mark.parametrize("repeat", [0, 1])
def test_what_comes_later_changes_nothing(log: MemoryLog, tmp_path: Path, repeat: int) -> None:
    """Neither a stranger's record, nor one that is written again, nor one that nobody can read."""
    append(log, "x", b"\xff\xff")
    append(log, "system/x", Plan(version=99, system=System(id=str(uuid.uuid4()))).SerializeToString())
    append(log, "system/x", Plan(version=1, system=System(id="../../no id")).SerializeToString())
    append(log, "placement", Plan(version=1, placement=Placement(serial=1)).SerializeToString())
    first = at(tmp_path / "a")
    claim(first)
    stranger = Plan(version=1, system=System(id=str(uuid.uuid4()))).SerializeToString()
    for _ in range(repeat + 1):
        append(log, "system/y", stranger)
    admit(first)
    found = owner(log)
    assert found is not None
    assert found.id == kept_id(first.state)


def test_nothing_says_whose_an_empty_log_is() -> None:
    assert first_of([]) is None


def test_topics_made_alone_are_of_the_state_directory_where_there_is_one(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = at(tmp_path / "a")
    introduce(settings)
    introduce(settings)
    claim(settings)
    assert written(log) == 1


def test_topics_made_in_a_container_are_somebody_elses(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(_state: Path, _identity: str) -> None:
        raise ConfigError("read-only")

    with monkeypatch.context() as inside:
        inside.setattr(identity, "keep", read_only)
        introduce(at(tmp_path / "a"))
    with pytest.raises(ConfigError, match="of another system"):
        admit(at(tmp_path / "b"))


@pytest.mark.parametrize("kafka", [{"topics": "check"}, {"security": "tls"}])
def test_nobody_speaks_for_others_where_users_are_asked_for(
    log: MemoryLog, tmp_path: Path, kafka: dict[str, str]
) -> None:
    introduce(at(tmp_path / "a", **kafka))
    assert owner(log) is None


@pytest.mark.parametrize("text", ["", "no id", "123"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    settings = at(tmp_path)
    settings.state.mkdir()
    (settings.state / "system").write_text(text)
    with pytest.raises(ConfigError, match=r"run/system: found no id of a system"):
        kept_id(settings.state)


@pytest.mark.parametrize("made_us", [0, MAX_TIME_US])
def test_whenever_it_says_it_was_made_it_is_refused_in_words(log: MemoryLog, tmp_path: Path, made_us: int) -> None:
    stranger = System(id=str(uuid.uuid4()), made_us=made_us, by="\x1b[31m" + "x" * 60_000)
    append(log, "system/x", Plan(version=1, system=stranger).SerializeToString())
    with pytest.raises(ConfigError) as caught:
        admit(at(tmp_path / "a"))
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)
