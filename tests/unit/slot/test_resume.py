"""The law of resume points: from the start, or resumed at any record, the same outputs under the same names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.slot.small_slot import SLOT, load, make_config, play, random_log
from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.messages import Context, Recovered
from tsunagi.slot.slot import Slot

RECOVER: dict[str, Any] = {"use": "recover"}
CHAINS: dict[str, tuple[dict[str, Any], ...]] = {
    "nothing": (),
    "select": ({"use": "select", "at_least": -0.5, "at_most": 1.0},),
    "project": ({"use": "project", "sensors": ["a", "d"]},),
    "aggregate": ({"use": "aggregate", "function": "sum", "window": 4, "slide": 2},),
    "recover": (RECOVER,),
    "recover, aggregate": (RECOVER, {"use": "aggregate", "function": "max", "window": 3}),
    "recover, select, aggregate": (
        RECOVER,
        {"use": "select", "at_least": -1.0},
        {"use": "aggregate", "function": "count", "window": 5, "slide": 5},
    ),
    "aggregate, aggregate, project": (
        {"use": "aggregate", "function": "mean", "window": 2},
        {"use": "aggregate", "function": "min", "window": 3},
        {"use": "project", "sensors": ["b", "c", "e"]},
    ),
    "one's own": ({"use": "tests.unit.slot.example_operator:Smooth", "weight": 0.5}, {"use": "select"}),
}


@pytest.mark.parametrize(("chain", "helped"), [*((chain, False) for chain in CHAINS), ("recover", True)])
def test_resumed_at_any_record_the_same_follows(chain: str, *, helped: bool) -> None:
    seed = 1 + list(CHAINS).index(chain)
    records = random_log(seed, make_config(*CHAINS[chain]), turns=50, helped=helped)
    straight = Slot(SLOT, load)
    outputs = [play(straight, [record]) for record in records]
    assert sum(len(made) for made in outputs) > 15
    rows = [Recovered.FromString(value) for made in outputs for topic, _, value in made if topic == RECOVERED]
    assert any(message.query for message in rows) or not helped  # events; of the other logs few batches count
    source = Slot(SLOT, load)
    resumed = 0
    for place, record in enumerate(records):
        if source.book is not None:
            message = Context.FromString(source.context().SerializeToString())
            other = Slot(SLOT, load)
            other.restore(message)
            assert (other.position, other.last_name) == (place, source.last_name)
            assert other.context() == message
            reach = slice(place, place + 15)
            assert play(other, records[reach]) == [item for made in outputs[reach] for item in made]
            resumed += 1
        source.apply(record)
    assert resumed > len(records) - 10
    end = Slot(SLOT, load)
    end.restore(source.context())
    assert end.context().SerializeToString(deterministic=True) == straight.context().SerializeToString(
        deterministic=True
    )
