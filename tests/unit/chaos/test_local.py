"""Which processes a run on this machine takes for its units."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from tsunagi.chaos.local import LocalDriver
from tsunagi.runtime.birth import born
from tsunagi.runtime.settings import Settings, SlotsSettings
from tsunagi.system.processes import Process, pid_file


def test_a_dead_worker_that_the_scaler_had_launched_is_no_trouble(tmp_path: Path) -> None:
    """The scaler launches another under a name of its own; nobody starts this one again."""
    living = Process("gw-1", "worker", os.getpid(), born(os.getpid()))
    dead = replace(living, born="another")
    found = [living, replace(dead, node="sec-1"), replace(dead, node="worker-1"), replace(living, node="worker-2")]
    for process in found:
        file = pid_file(tmp_path, process.node)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(process)), encoding="utf-8")
    units = LocalDriver(Settings(state=tmp_path, slots=SlotsSettings(count=1)), None).units()
    assert {(unit.node, unit.trouble) for unit in units if unit.role == "worker"} == {
        ("gw-1", ""),
        ("sec-1", "dead"),
        ("worker-2", ""),
    }
