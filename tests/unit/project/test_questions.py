"""What `tsunagi init` asks on a terminal: Return takes the proposal, another answer changes the files."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tsunagi.cli import cli
from tsunagi.project.arrangement import Arrangement, arrange, divisions
from tsunagi.project.fleet import Series
from tsunagi.project.questions import ask

NOW_US = 1_700_000_000_000_000


def fleet(every_s: float, *topics: str) -> list[Series]:
    """Return a sensor for each topic, whose name has the levels behind the first."""
    found = [Series(topic.partition("/")[2].replace("/", "."), tuple(topic.split("/"))) for topic in topics]
    for item in found:
        for number in range(10):
            item.add(NOW_US + round(number * every_s * 1e6), float(number))
    return found


HALLS = [f"plant/{hall}/{device}/{kind}" for hall in "ab" for device in ("boiler", "pump") for kind in ("t", "p")]


def answered(series: list[Series], text: str, **decided: bool) -> tuple[Arrangement, str]:
    """Return what comes of answers, and what the screen shows."""
    found: list[Arrangement] = []
    command = click.Command("asked", callback=lambda: found.append(ask(arrange(series), divisions(series), **decided)))
    shown = CliRunner().invoke(command, input=text, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return found[0], shown.output


def test_return_takes_what_is_proposed() -> None:
    series = fleet(0.2, *HALLS)
    found, shown = answered(series, "\n\n\n")
    assert found == arrange(series)
    assert "  1  level 2 of topics: 2 edges, such as a with a.boiler.t\n" in shown
    assert "  1  level 2 of topics: 2 groups, such as a with a.boiler.t\n" in shown
    assert "Seconds of a step [1]:" in shown


def test_answers_choose_levels_and_the_length_of_a_step() -> None:
    found, shown = answered(fleet(0.2, *HALLS), "2\n3\n0.5\n-1\nsoon\n1e12\n0.6\n")
    assert "  2  level 3 of topics: 2 edges, such as boiler with a.boiler.t\n" in shown
    assert "  3  level 4 of topics: 2 groups, such as t with a.boiler.t\n" in shown
    assert "  4  none: all are in one: 1 group, such as plant with a.boiler.t\n" in shown
    assert (found.edge_of["b.pump.p"], found.group_of["b.pump.p"]) == ("pump", "p")
    assert (found.interval_s, found.window) == (0.2, 3)
    assert shown.count("expected seconds, a multiple of 0.2") == 4


def test_what_an_option_has_decided_is_not_asked() -> None:
    series = fleet(1, *HALLS)
    found, shown = answered(series, "2\n\n", edges_decided=True)
    assert ("2 edges" in shown, "2 groups" in shown) == (False, True)
    assert (found.edge_of, set(found.group_of.values())) == (arrange(series).edge_of, {"boiler", "pump"})
    assert "Group" not in answered(series, "\n", edges_decided=True, groups_decided=True)[1]


def test_one_way_alone_is_no_question() -> None:
    found, shown = answered(fleet(1, "plant/a", "plant/b"), "5\n")
    assert ("Edge" in shown, found.step_s) == (False, 5.0)


@pytest.mark.parametrize(
    ("names", "ways"),
    [
        (["a.x.t", "a.y.t", "b.x.t", "b.y.p"], ["part 1 of names", "part 2 of names", "part 3 of names", "none"]),
        (["a_x", "a_y", "b_z"], ["part 1 of names", "none"]),
        (["a.x.t", "a.t", "b.t", "b.p"], ["part 1 of names", "part 2 of names", "last part of names", "none"]),
        (["a", "b"], ["none"]),
    ],
)
def test_parts_of_names_that_sensors_share_are_ways(names: list[str], ways: list[str]) -> None:
    series = [Series(name) for name in names]
    found = divisions(series)
    assert [way.title.partition(":")[0] for way in found] == ways
    assert found[0].part_of == arrange(series).group_of


def test_a_proposal_that_is_no_single_level_stands_first() -> None:
    series = fleet(1, "plant/a/x", "plant/a/y", "plant/b/x", "ha/z/x")
    first, *others = divisions(series)
    assert (first.title, first.part_of) == ("what topics and names suggest", arrange(series).group_of)
    assert "level 1 of topics" in [way.title for way in others]


def history(folder: Path) -> Path:
    file = folder / "history.csv"
    file.write_text("time,a.x,a.y,b.x,b.y\n" + "".join(f"{row},1,2,3,4\n" for row in range(5)))
    return file


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["init", str(tmp_path / "plant"), "--csv", str(history(tmp_path))])
    assert found.exit_code == 0, found.output
    assert "Seconds of a step" not in found.output


@pytest.mark.parametrize("options", [[], ["--yes"]])
def test_on_a_terminal_it_asks_unless_told_not_to(tmp_path: Path, options: list[str]) -> None:
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "tsunagi.cli", "init", str(tmp_path / "plant"), "--csv", str(history(tmp_path))]
    with subprocess.Popen([*command, *options], stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        if not options:
            os.write(ours, b"\n2\n2\n")
        shown = b""
        try:
            while some := os.read(ours, 65_536):
                shown += some
        except OSError:  # Linux says so when nobody has the terminal any more
            pass
    os.close(ours)
    assert process.returncode == 0, shown
    rows = (tmp_path / "plant" / "sensors.csv").read_text().splitlines()
    config = (tmp_path / "plant" / "tsunagi.toml").read_text()
    asked = not options
    assert (b"Seconds of a step" in shown) == asked
    assert rows[2] == ("a.y,a,y,," if asked else "a.y,a,a,,")
    assert ("window = 2\n" if asked else "window = 1\n") in config
