"""The running system gets more slots while owners and Spark die; nobody restarts, and each result comes once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.changes import Changes, judge
from tests.e2e.stream import Inputs
from tests.e2e.system import PATIENCE_S, SLOTS, Rig
from tsunagi.broker.broker import Broker
from tsunagi.local.slots import SlotsError, raise_slots, show_slots
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.columns import sensors
from tsunagi.runtime.log import DEAD_LETTERS, RECOVERED
from tsunagi.runtime.messages import DeadLetter, Recovered
from tsunagi.runtime.moving import DONE, SensorSlots
from tsunagi.runtime.placement import read_placement
from tsunagi.runtime.settings import CONFIG_VARIABLE
from tsunagi.system.topics import read_partition

MORE, MOST = 5, 7
CHANGES: dict[str, dict[str, Any]] = {"source": {"when_behind": "send"}, "standby": {"cells": 2}}
"""An edge that an overloaded machine holds up sends everything, late. Heartbeats go by cells, as in a large fleet."""


def raised(rig: Rig, count: int) -> list[str]:
    """Give the system so many slots; return what was said."""
    said: list[str] = []
    raise_slots(rig.settings, count, said.append, agreed=lambda: True, timeout_s=PATIENCE_S)
    return said


def test_a_running_system_gets_more_slots(tmp_path: Path, broker: Broker, inputs: Inputs) -> None:
    changes, own = Changes.of(inputs, tmp_path, left_out=0)
    changes.steady = tuple(changes.rows)
    rig = Rig(tmp_path, own, servers=broker.servers, prefix="slots.", changes=CHANGES)
    try:
        rig.start()
        rig.wait_protected()
        pids = rig.pids()
        with pytest.raises(SlotsError, match="no way back"):
            raised(rig, 1)

        said = raised(rig, MORE)  # all live
        assert said[0].startswith(f"{SLOTS} slots become {MORE}; ")
        assert said[-2].endswith(f": {MORE} slots")
        rig.advance()

        # An owner and Spark die while sensors move.
        mover = threading.Thread(target=raised, args=(rig, MOST))
        mover.start()
        killed = rig.kill_owner(0)
        rig.kill_spark()
        mover.join(PATIENCE_S)
        assert not mover.is_alive()
        rig.start_spark()
        rig.worker_back(killed.node)
        rig.wait_protected()
        rig.advance()

        lived = {node: pid for node, pid in pids.items() if node not in ("spark", killed.node)}
        assert lived.items() <= rig.pids().items(), "somebody was restarted"
        placement = read_placement(rig.log)
        assert placement is not None
        assert (placement.slots, placement.move) == (MOST, DONE)
        assert set(SensorSlots.of(placement).now.tolist()) == set(range(MOST))
        found = judge(rig, changes)
        assert found.wrong == [], found.wrong[:5]
        assert found.exact > 0.8 * found.rows > 500
        letters = [DeadLetter.FromString(record.value or b"") for record in read_partition(rig.log, DEAD_LETTERS, 0)]
        assert letters == [], letters[:3]
        said = []
        assert replay_slots(rig.settings, (), said.append) == 0, said
        check_each_value_once(rig)
        said = []
        show_slots(rig.settings, said.append)
        assert said[0].startswith(f"{MOST} slots, of ")
        shown = subprocess.run(
            [sys.executable, "-m", "tsunagi.cli", "slots"],
            env=os.environ | {CONFIG_VARIABLE: str(rig.config)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert shown.stdout.splitlines() == said
    finally:
        rig.close()


def check_each_value_once(rig: Rig) -> None:
    """Check in `recovered` that each sensor has its value of a step in one slot alone."""
    home: dict[tuple[int, int], int] = {}
    for slot in range(MOST):
        for record in read_partition(rig.log, RECOVERED, slot):
            message = Recovered.FromString(record.value or b"")
            for sensor in sensors(message.sensor).tolist():
                assert home.setdefault((message.step, sensor), slot) == slot, (message.step, sensor)
