"""Cutting a local process off: a rule that names its packets alone, and goes again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tsunagi.chaos import cut
from tsunagi.chaos.targets import ChaosError
from tsunagi.system.processes import group_of


class Filter:
    """iptables, as far as it is used."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:2] == ["iptables", "-w"]
        action, rule = command[2], " ".join(command[3:])
        if action == "-S":
            return subprocess.CompletedProcess(command, 0, "\n".join(f"-A {line}" for line in self.rules), "")
        if action == "-I":
            self.rules.append(rule)
        elif rule in self.rules:
            self.rules.remove(rule)
        else:
            return subprocess.CompletedProcess(command, 1, "", "Bad rule")
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def filter_(monkeypatch: pytest.MonkeyPatch) -> Filter:
    made = Filter()
    monkeypatch.setattr("tsunagi.chaos.cut.subprocess.run", made.run)
    return made


def test_a_node_is_cut_off_and_joined_again(filter_: Filter, tmp_path: Path) -> None:
    cut.cut_off(tmp_path, "gw-1")
    given_up, rule = filter_.rules
    assert f"--gid-owner {group_of(tmp_path, 'gw-1')} --suppl-groups" in rule
    assert "-o lo -p tcp -m owner ! --socket-exists" in given_up
    assert rule.endswith("-j DROP")
    assert given_up.endswith("-j DROP")
    cut.join(tmp_path, "gw-1")
    assert filter_.rules == []
    with pytest.raises(ChaosError, match=r"gw-1: .* failed: Bad rule"):
        cut.join(tmp_path, "gw-1")


def test_what_a_killed_run_left_is_taken_back_and_nothing_else(filter_: Filter, tmp_path: Path) -> None:
    cut.cut_off(tmp_path, "gw-1")
    cut.cut_off(tmp_path, "gw-1")
    cut.cut_off(tmp_path / "other", "gw-1")
    cut.clean(tmp_path, ["gw-1", "gw-2"])
    assert len(filter_.rules) == 2
    assert all(str(group_of(tmp_path / "other", "gw-1")) in rule for rule in filter_.rules)


def test_nodes_have_groups_of_their_own(tmp_path: Path) -> None:
    groups = {group_of(tmp_path, node) for node in ("gw-1", "gw-2", "sec-1")}
    assert len(groups) == 3
    assert all(1_000_000_000 <= group < 2_000_000_000 for group in groups)
