"""What workers make of the plan, in the simulated world and without faults but those named."""

from __future__ import annotations

from typing import Any

from tests.simulation.world import World
from tsunagi.runtime import log as topics
from tsunagi.runtime.messages import VERSION, Assignment, Plan, StandbyTarget
from tsunagi.standby.stages.base import ReplicaStage

SLOT = 0


def hosting(world: World) -> dict[str, ReplicaStage]:
    """Return who hosts the slot, and as what."""
    made = {name: node.made for name, node in world.nodes.items() if node.made is not None}
    return {name: host.replicas[SLOT].stage for name, host in made.items() if SLOT in host.replicas}


def test_a_standby_stays_until_the_one_that_is_to_follow_it_is_ready() -> None:
    world = World(3)
    world.run(12.0)
    stages = hosting(world)
    (owner,) = (name for name, stage in stages.items() if stage is ReplicaStage.OWN)
    (standby,) = (name for name, stage in stages.items() if stage is ReplicaStage.WATCH)
    (other, *_) = (name for name in world.nodes if name not in stages)
    world.scaler.paused = True
    world.nodes[other].paused = True
    plan = Plan(
        version=VERSION, assignment=Assignment(slot=SLOT, owner=owner, secondary=other, serial=10_000, reason="protect")
    )
    producer = world.log.client("user").producer()
    producer.send(topics.PLAN, 0, f"assignment/{SLOT}".encode(), plan.SerializeToString())
    world.run(3.0)
    assert hosting(world)[standby] is ReplicaStage.WATCH
    world.nodes[other].paused = False
    world.run(3.0)
    assert hosting(world) == {owner: ReplicaStage.OWN, other: ReplicaStage.WATCH}


def test_a_node_that_is_to_let_go_of_a_slot_claims_it_no_more() -> None:
    world = World(3)
    world.run(12.0)
    stages = hosting(world)
    (first,) = (name for name, stage in stages.items() if stage is ReplicaStage.OWN)
    (second,) = (name for name, stage in stages.items() if stage is ReplicaStage.WATCH)
    (other, *_) = (name for name in world.nodes if name not in stages)
    world.scaler.paused = True
    producer = world.log.client("user").producer()
    for serial, (owner, secondary) in enumerate([(second, first), (first, other)], 10_000):
        world.nodes[other].paused = secondary == other  # so that the second must stay, until there is another
        move = Assignment(slot=SLOT, owner=owner, secondary=secondary, serial=serial, reason="move")
        plan = Plan(version=VERSION, assignment=move)
        producer.send(topics.PLAN, 0, f"assignment/{SLOT}".encode(), plan.SerializeToString())
        for _ in range(8):
            world.run(0.5)
            if hosting(world)[owner] is ReplicaStage.OWN:
                break
        else:
            raise AssertionError(f"{owner} does not own the slot: {hosting(world)}")
    for _ in range(6):
        world.run(0.5)
        assert hosting(world) == {first: ReplicaStage.OWN, second: ReplicaStage.WATCH}


def test_after_a_takeover_the_dead_owner_is_not_wished_back() -> None:
    world = World(3)
    world.run(12.0)
    before = world.log.records(topics.PLAN)
    dead = world.owner(SLOT)
    world.kill(dead)
    world.nodes[dead].restart_at = world.now + 10.0
    world.run(6.0)
    wishes = [
        Plan.FromString(record.value or b"").assignment for record in world.log.records(topics.PLAN)[len(before) :]
    ]
    mine = [wish for wish in wishes if wish.slot == SLOT and wish.owner]
    assert [wish.reason for wish in mine] == ["protect"]
    assert world.owner(SLOT) == mine[0].owner
    assert dead not in (mine[0].owner, mine[0].secondary)


def test_a_standbys_target_is_changed_while_it_runs_and_set_back() -> None:
    world = World(3)
    world.run(6.0)
    producer = world.log.client("user").producer()

    def ask(**target: Any) -> set[float]:
        wish = Plan(version=VERSION, target=StandbyTarget(slot=SLOT, **target))
        producer.send(topics.PLAN, 0, f"target/{SLOT}".encode(), wish.SerializeToString())
        world.run(1.0)
        hosts = [node.made for node in world.nodes.values() if node.made is not None]
        return {host.replicas[SLOT].batching.batch_tuples for host in hosts if SLOT in host.replicas}

    assert ask(batch_size=77) == {77.0}
    assert ask(batch_size=0) == {float("inf")}
    assert ask(as_configured=True) == {20.0}
