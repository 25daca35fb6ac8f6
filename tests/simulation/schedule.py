"""Fault schedules: what happens when, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation import moves, strikes
from tests.simulation.fleet import EDGES, PART_BYTES, SLOTS, WORKERS
from tests.simulation.world import World

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
    "clock-edge",
    "scaler",
    "kill-pair",
    "cut-writing",
    "cut-writing",
    "mute-edge",
    "mute-any",
    "namesake",
    "clean",
    "clean-die",
    "damage",
)

SETTINGS = ("settings", "settings", "settings-all", "settings-all")
TABLES = ("table",) * 6
MOVES = ("move",) * 12
RESCALES = ("rescale", "rescale", "rescale", "rescale-kill", "rescale-kill", "rescale-kill", "rival")
QUERIES = ("query",) * 30
POISON = ("die-of-reading", "die-of-reading", "wedge", "wedge")
PARTS = ("lose-parts",) * 5
"""Strikes of some of the runs only: each of them would change too many of the others."""

OF_BROKER = ("broker", "broker", "broker", "edge", "cut-edge", "clock", "clock-edge", "scaler", "damage", "clean")
"""Strikes that no worker may be blamed for."""

OF_EDGES = (
    *("edge", "edge", "cut-edge", "repeat-edge", "clock", "scaler"),
    *("clock-edge", "mute-edge", "mute-edge", "mute-edge", "damage", "clean"),
)
"""Strikes that no worker and no broker has a part in: the steps must go on in time."""


SPECIAL = frozenset(("clock-edge", "mute-edge", "mute-any", "namesake", "clean", "clean-die", "damage")).union(
    SETTINGS, POISON, PARTS, TABLES, QUERIES, MOVES
)
"""Strikes that find bugs of their own kind alone. `test_planted` looks for all other bugs without them."""

SETTLE_S = 7.0
"""A schedule runs for at least so long after everything was mended, seconds."""
PROOF_S = 6.0
"""Workers die one after the other until it is known of which record, each after its detection."""
MORE_S = 16.0
"""A slot that is not settled then may take so much longer, seconds. A slot whose contexts are lost waits for a living
owner before it begins anew (`standby.trust.PATIENCE_S`). Of `NARROW_PARTS` records that are announced alone each takes
three turns of the owner's loop."""
REST_S = 3.0
"""A slot must stay settled for so long, seconds: outputs are written, and somebody stands by again."""


def kinds_of(world: World, without: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return what may strike a world, by its seed; what stands there twice is twice as likely."""
    return tuple(kind for kind in _kinds(world) if kind not in without)


def _kinds(world: World) -> tuple[str, ...]:
    kinds: tuple[str, ...] = KINDS
    if world.seed % 8 in (1, 5):
        kinds = OF_BROKER if world.seed % 8 == 1 else OF_EDGES
        return (*kinds, "wedge") if world.poisonous else kinds
    if world.seed % 11 in (6, 7, 8):
        kinds += RESCALES
    if world.seed % 11 in (2, 3):
        kinds += SETTINGS
    if world.seed % 11 in (9, 10):
        kinds += TABLES
    if world.seed % 13 in (6, 11) and world.settings.query.mode == "steps":
        kinds += MOVES
    if world.settings.query.mode == "tuples" and not world.settings.query.chain:
        kinds += QUERIES
    if world.poisonous:
        kinds += POISON
    if world.settings.standby.context_bytes == PART_BYTES:
        kinds += PARTS
    return kinds


def run_schedule(world: World, faults: int | None = None, without: frozenset[str] = frozenset()) -> None:
    """Start, let it settle, strike `faults` times (None = by the seed), heal, let it settle again.

    Args:
        without: kinds of strikes that are not drawn.
    """
    rng = world.rng
    kinds = kinds_of(world, without)
    world.run(2.5)
    for _ in range(1 + world.seed % 7 if faults is None else faults):
        _strike(world, rng.choice(kinds))
        world.run(rng.uniform(0.05, 2.0))
    world.heal_all()
    moves.finish(world)
    world.run(SETTLE_S - REST_S + PROOF_S * bool(world.poisonings))
    until = world.now + REST_S + MORE_S
    calm = False
    while not calm and world.now < until:
        calm = world.settled()
        world.run(REST_S)
        calm = calm and world.settled()


def _die_of_reading(world: World) -> None:
    """Let a record kill whoever processes it, and let that be proven before anything else strikes.

    Whoever is killed by something else meanwhile, on a record that it has announced, would be evidence against that one
    (docs/reference/faults.md).
    """
    if strikes.kill_by_reading(world):
        world.run(PROOF_S)


def _strike(world: World, kind: str) -> None:
    rng = world.rng
    world.strikes += 1
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
    elif kind == "scaler":
        world.kill("scaler")
    elif kind in ("rescale", "rescale-kill", "rival"):
        _strike_plan(world, kind, rng.choice((owner, anybody)))
    elif kind in _FURTHER:
        _FURTHER[kind](world, anybody)
    else:
        _strike_edge(world, kind)


_FURTHER: dict[str, Callable[[World, str], None]] = {
    "clean": lambda world, _: strikes.clean(world, all_die=False),
    "clean-die": lambda world, _: strikes.clean(world, all_die=True),
    "clock": lambda world, _: strikes.jump(world, edges=False),
    "clock-edge": lambda world, _: strikes.jump(world, edges=True),
    "damage": lambda world, _: strikes.damage(world, world.rng.randrange(1, 6)),
    "die-of-reading": lambda world, _: _die_of_reading(world),
    "wedge": lambda world, _: strikes.wedge(world),
    "query": lambda world, _: strikes.query(world),
    "table": lambda world, _: strikes.retable(world),
    "move": lambda world, _: moves.move(world),
    "settings": lambda world, _: strikes.roll(world, strikes.of_one_node(world)),
    "settings-all": lambda world, _: strikes.roll(world, strikes.of_all(world)),
    "lose-parts": lambda world, _: strikes.lose_parts(world),
    "mute-any": lambda world, anybody: strikes.mute(world, anybody, world.rng.uniform(0.3, 3.0)),
    "mute-edge": lambda world, _: strikes.mute(world, world.rng.choice(world.edges).name, world.rng.uniform(1.0, 4.0)),
    "namesake": lambda world, anybody: strikes.namesake(world, world.rng.choice((anybody, anybody, "scaler"))),
}
"""Strikes of `tests.simulation.strikes`, by kind; each is given the world, and the name of some worker."""


def _strike_plan(world: World, kind: str, victim: str) -> None:
    """Slots move to other workers, or their secondaries do, and meanwhile somebody may die, or two scalers may act."""
    rng = world.rng
    if kind == "rival":
        strikes.rival(world, rng.uniform(0.5, 6.0))
        return
    strikes.rescale(world, rng.randrange(2, len(WORKERS) + 1))
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
