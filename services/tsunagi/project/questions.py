"""Asks on the terminal what nobody can find in readings: edges, groups, the length of a step."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tsunagi.project.arrangement import Arrangement, Division
from tsunagi.project.fleet import edges_of
from tsunagi.runtime.settings.section import LONGEST_S

_EDGE = "An edge is what fails together: a gateway, a cabinet, a machine. What divides sensors into edges?"
"""The question on edges."""
_GROUP = "Queries compute for each group; its results come in order of time. What divides sensors into groups?"
"""The question on groups."""
_WHOLE = 1e-6
"""A step is a whole number of intervals if it differs from one by less than this share of an interval."""


def ask(
    proposed: Arrangement, ways: Sequence[Division], *, edges_decided: bool = False, groups_decided: bool = False
) -> Arrangement:
    """Return an arrangement as the user wants it. Each question proposes what is proposed, and Return takes it.

    Args:
        proposed: what is taken where nothing is asked.
        ways: how sensors can be divided into edges or groups, the proposed way first.
        edges_decided, groups_decided: whether an option has decided on them, so that nobody is asked.
    """
    arranged = proposed
    if not edges_decided and len(ways) > 1:
        arranged = arranged._replace(edge_of=edges_of(_choose(_EDGE, "edge", ways).part_of))
    if not groups_decided and len(ways) > 1:
        way = _choose(_GROUP, "group", ways)
        arranged = arranged._replace(group_of=way.part_of, grouped_by=way.title)

    def readings(text: str) -> int:
        several = float(text) / proposed.interval_s
        if not (several > _WHOLE and float(text) <= LONGEST_S and abs(several - round(several)) < _WHOLE):
            raise ValueError
        return round(several)

    def window(text: str) -> int:
        try:
            return readings(text)
        except ValueError:
            expected = f"seconds, a multiple of {proposed.interval_s:g}, {LONGEST_S:g} at most"
            raise click.BadParameter(f"found {text!r}, expected {expected}") from None

    click.echo(f"Sensors have a reading every {proposed.interval_s:g} s. There is a result for each step.")
    asked: int = click.prompt("Seconds of a step", default=f"{proposed.step_s:g}", value_proc=window)
    return arranged._replace(window=asked)


def _choose(question: str, noun: str, ways: Sequence[Division]) -> Division:
    click.echo(question)
    for number, way in enumerate(ways, 1):
        count = len(set(way.part_of.values()))
        sensor, part = next(iter(way.part_of.items()))
        click.echo(f"  {number}  {way.title}: {count} {noun}{'s' * (count != 1)}, such as {part} with {sensor}")
    chosen: int = click.prompt(noun.capitalize(), type=click.IntRange(1, len(ways)), default=1)
    return ways[chosen - 1]
