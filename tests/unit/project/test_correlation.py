"""Groups of sensors whose readings move together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tsunagi.cli import cli
from tsunagi.edge.inbox import Message
from tsunagi.project import correlation
from tsunagi.project.arrangement import arrange
from tsunagi.project.correlation import correlations, group_by_correlation
from tsunagi.project.finding import FoundFleet, find_in_file, find_in_messages
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import ConfigError

STEPS = 60


def readings() -> dict[str, Floats]:
    """Return the readings of sensors, of which a, b and f move together, and c and d do; NaN where one has none."""
    random = np.random.default_rng(5)
    one, other = random.normal(size=(2, STEPS))
    noise = random.normal(size=(4, STEPS))
    found = {
        "a": one + 0.1 * noise[0],
        "b": 1000 - 50 * one,
        "c": other + 0.1 * noise[1],
        "d": 1e-3 * other,
        "e": noise[2],
        "f": np.where(np.arange(STEPS) % 2, one, np.nan),
        "new": np.where(np.arange(STEPS) < 19, one, np.nan),
        "steady": np.full(STEPS, 3.5),
    }
    return dict(sorted(found.items()))


def file_of(folder: Path) -> Path:
    """Write a CSV with half a second between two rows."""
    columns = readings()
    lines = [
        ",".join("" if np.isnan(value) else repr(float(value)) for value in row)
        for row in zip(*columns.values(), strict=True)
    ]
    file = folder / "history.csv"
    file.write_text("\n".join([",".join(["time", *columns]), *(f"{row / 2},{line}" for row, line in enumerate(lines))]))
    return file


def messages() -> FoundFleet:
    start_s = 1_700_000_000
    sent = []
    for row, values in enumerate(zip(*readings().values(), strict=True)):
        body = {name: value for name, value in zip(readings(), values, strict=True) if not np.isnan(value)}
        payload = json.dumps(body | {"time": start_s + row}).encode()
        sent.append(Message(payload, "", (start_s + row) * 1_000_000, topic="hub", offset=row))
    return find_in_messages({"kind": "mqtt", "mqtt": {"host": "broker", "topic": "hub"}}, sent)


def test_sensors_that_move_together_are_a_group_and_others_keep_theirs() -> None:
    found = messages()
    arranged = group_by_correlation(found, arrange(found.by_name()))
    groups = {name.rpartition(".")[2]: group for name, group in arranged.group_of.items()}
    together = {"a": "correlated-1", "b": "correlated-1", "f": "correlated-1", "c": "correlated-2", "d": "correlated-2"}
    assert groups == together | dict.fromkeys(("e", "new", "steady"), "hub")
    assert set(arranged.edge_of.values()) == {"hub"}
    assert "of 8 sensors 3 move with no other one" in arranged.grouped_by


def test_readings_of_a_file_are_compared_by_the_means_of_steps(tmp_path: Path) -> None:
    found = find_in_file(file_of(tmp_path))
    arranged = arrange(found.by_name())._replace(interval_s=0.5, window=1)
    groups = group_by_correlation(found, arranged).group_of
    assert [groups[name] for name in "abcdef"] == [f"correlated-{number}" for number in (1, 1, 2, 2)] + [
        "plant",
        "correlated-1",
    ]
    hourly = arranged._replace(window=7200)  # one step has them all, which says nothing
    assert group_by_correlation(found, hourly).group_of == arranged.group_of


def test_a_name_that_an_area_has_is_given_to_no_group() -> None:
    found = messages()
    proposed = arrange(found.by_name())
    taken = proposed._replace(group_of=dict.fromkeys(proposed.group_of, "correlated-1"))
    assert set(group_by_correlation(found, taken).group_of.values()) == {f"correlated-{n}" for n in (1, 2, 3)}


def test_correlations_are_those_of_the_steps_that_both_sensors_have() -> None:
    random = np.random.default_rng(1)
    means = random.normal(size=(200, 6)) @ random.normal(size=(6, 6)) + 1e6
    means[random.random(means.shape) < 0.3] = np.nan
    found = correlations(means)
    for one in range(6):
        for other in range(one):
            both = np.isfinite(means[:, one]) & np.isfinite(means[:, other])
            expected = np.corrcoef(means[both, one], means[both, other])[0, 1]
            assert found[one, other] == found[other, one] == pytest.approx(expected, abs=1e-9)


def test_numbers_near_the_largest_float_say_nothing() -> None:
    means = np.random.default_rng(1).uniform(-1, 1, size=(50, 2)) * [1e308, 1]
    assert correlations(means)[0, 1] == 0


def test_too_many_sensors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = messages()
    monkeypatch.setattr(correlation, "_MOST_SENSORS", 7)
    with pytest.raises(ConfigError, match="--group correlation: found 8 sensors, expected 7 at most"):
        group_by_correlation(found, arrange(found.by_name()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "groups: 1 (none: all are in one)"),
        (["--group", "correlation"], "groups: 3 (readings that move together; of 8 sensors 3"),
    ],
)
def test_init_says_how_groups_were_made(tmp_path: Path, options: list[str], says: str) -> None:
    command = ["init", str(tmp_path / "plant"), "--csv", str(file_of(tmp_path)), *options]
    shown = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert says in shown.output
    groups = {row.split(",")[2] for row in (tmp_path / "plant" / "sensors.csv").read_text().splitlines()[1:]}
    assert len(groups) == (3 if options else 1)
