"""Fault schedules: what happens when, drawn from a seed."""

from __future__ import annotations

from tests.simulation.world import EDGES, SLOTS, WORKERS, World

KINDS = (
    "kill-owner",
    "kill-sending",
    "kill-sending",
    "kill-inside",
    "kill-any",
    "pause-owner",
    "pause-any",
    "cut-owner",
    "cut-any",
    "broker",
    "edge",
    "cut-edge",
    "repeat-edge",
    "clock",
    "scaler",
    "kill-pair",
    "cut-writing",
    "cut-writing",
)

WITH_RESCALES = (*KINDS, "rescale", "rescale", "rescale", "rescale-kill", "rescale-kill", "rescale-kill", "rival")
"""In a quarter of the runs workers come and go as well."""

OF_BROKER = ("broker", "broker", "broker", "edge", "cut-edge", "clock", "scaler")
"""Strikes that no worker may be blamed for."""

OF_EDGES = ("edge", "edge", "cut-edge", "repeat-edge", "clock", "scaler")
"""Strikes that no worker and no broker has a part in: the steps must go on in time."""


def run_schedule(world: World, faults: int | None = None) -> None:
    """Start, let it settle, strike `faults` times (None = by the seed), heal, let it settle again."""
    rng = world.rng
    rescales = world.seed % 11 in (6, 7, 8)
    kinds = {1: OF_BROKER, 5: OF_EDGES}.get(world.seed % 8, WITH_RESCALES if rescales else KINDS)
    world.run(2.5)
    for _ in range(1 + world.seed % 7 if faults is None else faults):
        _strike(world, rng.choice(kinds))
        world.run(rng.uniform(0.05, 2.0))
    world.heal_all()
    world.run(7.0)


def _strike(world: World, kind: str) -> None:
    rng = world.rng
    owner = world.owner(rng.randrange(SLOTS)) or WORKERS[0]
    anybody = rng.choice(WORKERS)
    if kind == "kill-owner":
        world.kill(owner)
    elif kind == "kill-sending":
        # Outputs are on their way, and the secondary has heard how far the owner had come.
        for _ in range(100):
            if world.sending(owner):
                break
            world.run(0.01)
        world.run(0.11)
        world.kill(owner)
    elif kind == "kill-inside":
        world.kill_inside(rng.choice((owner, anybody)), rng.randrange(12))
    elif kind == "kill-any":
        world.kill(anybody)
    elif kind == "kill-pair":
        world.kill(owner)
        world.kill(anybody)
    elif kind in ("pause-owner", "pause-any"):
        name = owner if kind == "pause-owner" else anybody
        world.pause(name, paused=True)
        world.run(rng.uniform(0.1, 3.0))
        world.pause(name, paused=False)
    elif kind in ("cut-owner", "cut-any"):
        name = owner if kind == "cut-owner" else anybody
        world.cut_off(name)
        world.run(rng.uniform(0.1, 3.0))
        world.join(name)
    elif kind == "broker":
        world.broker(up=False)
        world.run(rng.uniform(0.1, 4.0))
        world.broker(up=True)
    elif kind == "cut-writing":
        # An edge is down, so the owner has something to write; what is on its way may arrive long after its fall.
        world.kill_edge(rng.randrange(EDGES), rng.uniform(0.5, 3.0))
        world.cut_off_writing(owner)
        world.run(rng.uniform(1.0, 3.0))
        world.join(owner)
    elif kind == "clock":
        node = world.nodes[anybody]
        node.clock.skew_us = rng.randrange(-600_000_000, 600_000_000)
        world.note(f"clock of {anybody} off by {node.clock.skew_us / 1e6:.0f} s")
    elif kind == "scaler":
        world.kill("scaler")
    elif kind in ("rescale", "rescale-kill", "rival"):
        _strike_plan(world, kind, rng.choice((owner, anybody)))
    else:
        _strike_edge(world, kind)


def _strike_plan(world: World, kind: str, victim: str) -> None:
    """Slots move to other workers, or their secondaries do, and meanwhile somebody may die, or two scalers may act."""
    rng = world.rng
    if kind == "rival":
        world.rival(rng.uniform(0.5, 6.0))
        return
    world.rescale(rng.randrange(2, len(WORKERS) + 1))
    world.run(rng.uniform(0.0, 2.5))
    if kind == "rescale-kill":
        world.kill_inside(victim, rng.randrange(12))


def _strike_edge(world: World, kind: str) -> None:
    rng = world.rng
    if kind == "edge":
        world.kill_edge(rng.randrange(EDGES), rng.uniform(0.2, 5.0))
    elif kind == "cut-edge":
        name = world.edges[rng.randrange(EDGES)].name
        world.cut_off(name)
        world.run(rng.uniform(0.1, 2.0))
        world.join(name)
    elif kind == "repeat-edge":
        # Steps are open, since one edge is away, when another starts anew and sends its last ones again.
        number = rng.randrange(EDGES)
        name = world.edges[number].name
        world.cut_off(name)
        world.run(rng.uniform(0.2, 0.6))
        world.kill_edge((number + 1) % EDGES, rng.uniform(0.0, 0.1), repeats=True)
        world.run(rng.uniform(0.0, 1.0))
        world.join(name)
