"""The fleet changes by `tsunagi apply` while owners and edges die; nobody restarts, and no other sensor notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.changes import Changes, judge, table_of
from tests.e2e.stream import Inputs
from tests.e2e.system import Rig
from tsunagi.broker.broker import Broker
from tsunagi.local.apply import apply_table
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.log import DEAD_LETTERS
from tsunagi.runtime.messages import DeadLetter
from tsunagi.runtime.sensors import SensorsError
from tsunagi.system.topics import read_partition

NEW_EDGE = "hall-5"


def test_sensors_and_edges_come_go_move_and_are_renamed(tmp_path: Path, broker: Broker, inputs: Inputs) -> None:
    changes, own = Changes.of(inputs, tmp_path, left_out=2)
    came, other = changes.left_out
    # An edge that an overloaded machine holds up sends everything, late, and skips nothing.
    rig = Rig(tmp_path, own, servers=broker.servers, prefix="apply.", changes={"source": {"when_behind": "send"}})
    try:
        rig.start()
        rig.wait_protected()
        pids = rig.pids()
        assert not apply_table(rig.settings, changes.said.append, agreed=lambda: True, timeout_s=1), changes.said

        changes.change("add", came, edge="edge-2")
        changes.change("move", "s01", edge="edge-3")
        changes.change("rename", "s03", now="hall 3, door")
        changes.apply(rig)
        rig.advance()

        changes.change("add", other, edge=NEW_EDGE)
        changes.change("move", "s05", edge=NEW_EDGE)
        changes.change("remove", "s07")
        killed = rig.kill_owner(0)
        changes.apply(rig)
        assert any(NEW_EDGE in line for line in changes.said if "do not run" in line), changes.said
        rig.start_edge(NEW_EDGE)
        rig.wait(lambda: rig.published_us(NEW_EDGE) > killed.at_us, "batches of the new edge")
        rig.wait_protected()
        rig.advance()

        rig.kill_edge("edge-4")
        changes.change("remove", "s09")
        changes.change("move", "s11", edge="edge-1")  # from the dead edge: it is measured again
        changes.apply(rig)
        rig.advance()
        changes.change("add", "s07", edge="edge-1")
        changes.change("rename", "s03", now="s03")
        changes.apply(rig)
        rig.edge_back("edge-4")
        rig.advance()

        changes.rows["s01"][2] = "group-9"
        changes.write()
        with pytest.raises(SensorsError, match="a sensor keeps its group"):
            changes.apply(rig)

        lived = {node: pid for node, pid in pids.items() if node not in ("edge-4", killed.node)}
        assert lived.items() <= rig.pids().items(), "somebody was restarted"
        found = judge(rig, changes, away=frozenset({"edge-4"}))
        assert found.wrong == [], found.wrong[:5]
        assert found.exact > 0.8 * found.rows > 500
        last = {name: [item for item in found.series[name] if item[2]][-1][0] for name in found.series}
        end = max(last.values())
        for name in ("s01", "s03", "s05", "s07", "s11", came, other):
            assert last[name] > end - 12, f"{name} is not measured again"
        assert found.series["s09"][-1][0] < end - 30, "a removed sensor still has results"
        assert [sensor.name for sensor in table_of(rig).sensors if sensor.removed] == ["s09"]
        letters = [DeadLetter.FromString(record.value or b"") for record in read_partition(rig.log, DEAD_LETTERS, 0)]
        assert [letter for letter in letters if letter.topic.endswith("tuples")] == []
        said: list[str] = []
        assert replay_slots(rig.settings, (), said.append) == 0, said
    finally:
        rig.close()
