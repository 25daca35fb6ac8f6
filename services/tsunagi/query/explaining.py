"""Says in words what a query computes, where it runs, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tsunagi.query.expressions import TRUE, Call, Expression, Reference, references
from tsunagi.query.opk import opks
from tsunagi.query.placing import split_queries, summed_queries
from tsunagi.query.plan import QueryPlan, SourcePlan
from tsunagi.query.planning import Program

_WIDTH = 12
"""Width of the words before each line, in characters."""


def explain(plan: QueryPlan, program: Program, step_us: int | None, loads: Sequence[int] = ()) -> Iterator[str]:
    """Yield the lines that explain a query.

    Args:
        program: the program of which it is a part.
        step_us: length of a step, microseconds; None = the query is over tuples.
        loads: how many sensors each slot has, or each query core if the query is split; none = it is not known.
    """
    tuples = step_us is None
    step_us = step_us or 1  # of tuples, ranges are in microseconds
    kind = plan.streaming.upper() or f"relation; in results {'at each tuple of its key' if tuples else 'RSTREAM'}"
    yield f"{'query' if plan.published else 'view'} {plan.name} ({kind})"
    for source in plan.sources:
        yield _line("reads", _source(source, program, step_us))
        if source.where != TRUE:
            yield _line("  keeps", str(source.where))
    for join in plan.joins:
        pairs = [f"{left} = {right}" for left, right in zip(join.left, join.right, strict=True)]
        more = [str(join.where)] if join.where != TRUE else []
        yield _line(f"{join.kind} join", " AND ".join([*pairs, *more]) or "every pair")
    if plan.where != TRUE:
        yield _line("keeps", str(plan.where))
    if plan.grouped:
        yield _line("groups by", ", ".join(map(str, plan.groups)) or "nothing: one group")
    if plan.having != TRUE:
        yield _line("having", _behind(plan.having, plan))
    yield _line("gives", ", ".join(f"{name} {kind.value}" for name, kind in plan.columns.items()))
    yield _line("at", "each tuple" if tuples else _seconds(plan.period * step_us, "every step", "every"))
    apart = None if tuples else opks(program).get(plan.name)
    yield _line("OPK", ", ".join(_opk(plan) if apart is None else [str(apart)]) or "none: all rows belong together")
    yield _line("SPK", ", ".join(plan.within) or "none: all rows are in one order")
    where = "the slot of each key, behind its operators: a secondary stands by" if tuples else _spark(plan, program)
    yield _line("runs", where)
    if apart is not None and plan.name not in split_queries(program) and len(loads) > 1:
        yield _line("speed-up", f"at most {len(loads)} on {len(loads)} query cores: as far as its values spread alike")
    elif not tuples and len(loads) > 1 and plan.name in summed_queries(program) - split_queries(program):
        yield _line("speed-up", f"at most {len(loads)}: {len(loads)} P-SORT cores add up rows, one core their sums")
    elif any(loads) and plan.published:
        yield _line("speed-up", _speed_up(loads, tuples=tuples, split=tuples or plan.name in split_queries(program)))
    yield _line("keeps state", "; ".join(_state(plan, step_us, tuples=tuples)) or "none")


def _line(word: str, text: str) -> str:
    return f"  {word:<{_WIDTH}}{text}"


def _seconds(length_us: int, one: str, several: str) -> str:
    return one if length_us == 0 else f"{several} {length_us / 1e6:g} s"


def _source(source: SourcePlan, program: Program, step_us: int) -> str:
    name = source.name if source.alias == source.name else f"{source.name} {source.alias}"
    window = source.window
    if window is None:
        return f"{name}: the relation of a query"
    what = "the stream of a query" if source.name in program.queries else "a stream"
    if window.kind == "range":
        slide = "" if window.slide == 1 else f" SLIDE {window.slide * step_us / 1e6:g} SECONDS"
        return f"{name} [RANGE {window.length * step_us / 1e6:g} SECONDS{slide}]: {what}"
    if window.kind == "rows":
        keys = ", ".join(str(key) for key in window.keys)
        slide = "" if window.slide == 1 else f" SLIDE {window.slide}"
        return f"{name} [PARTITION BY {keys} ROWS {window.length}{slide}]: {what}"
    return f"{name} [{'NOW' if window.kind == 'now' else 'RANGE UNBOUNDED'}]: {what}"


def _behind(expression: Expression, plan: QueryPlan) -> str:
    """Return an expression behind GROUP BY with the names of the groups instead of their numbers."""
    if isinstance(expression, Reference):
        number = expression.name.removeprefix("group.")
        return str(plan.groups[int(number)]) if number.isdecimal() and number != expression.name else expression.name
    if isinstance(expression, Call):
        return str(Call(expression.kind, expression.name, tuple(_named(item, plan) for item in expression.arguments)))
    return str(expression)


def _named(expression: Expression, plan: QueryPlan) -> Expression:
    return Reference(expression.kind, _behind(expression, plan))


def _spark(plan: QueryPlan, program: Program) -> str:
    return f"Spark, behind the P-SORT cores: {_place(plan, program)}"


def _place(plan: QueryPlan, program: Program) -> str:
    if not plan.published:
        return "beside each query that reads it"
    if plan.name in split_queries(program):
        return "split over all query cores by group, since rows of different groups never meet in it; no merge"
    if plan.name in opks(program):
        return "on all query cores, apart by its OPK, since rows with different values never meet in it; no merge"
    if plan.name in summed_queries(program):
        return "on one query core, which gets sums: the P-SORT cores add up the rows of each step by its groups"
    return "on one query core, which gets all rows; no merge"


def _speed_up(loads: Sequence[int], *, tuples: bool, split: bool) -> str:
    """Return the predicted speed-up over one core: P-SORT's law (section 3.2) without a merge."""
    if not split:
        return "1: all rows on one core"
    found, where = sum(loads) / max(loads), "slots" if tuples else "query cores"
    return (
        f"{found:.1f} of {len(loads)} {where}, if all sensors send alike; the busiest has {max(loads) / sum(loads):.0%}"
    )


def _opk(plan: QueryPlan) -> list[str]:
    """Return what rows are computed apart by: rows that differ in it have nothing to do with each other."""
    if plan.grouped:
        return [str(group) for group in plan.groups]
    if plan.joins:
        return list(dict.fromkeys(str(item) for join in plan.joins for item in join.left))
    (source,) = plan.sources
    window = source.window
    if window is not None and window.kind == "rows":
        return [str(key) for key in window.keys]
    names = {name for item in plan.outputs.values() for name in references(item)}
    return [name for name in sorted(names) if name == f"{source.alias}.sensor"] or sorted(names)[:1]


def _state(plan: QueryPlan, step_us: int, *, tuples: bool) -> Iterator[str]:
    single = len(plan.sources) == 1
    for source in plan.sources:
        window = source.window
        if window is None and tuples:
            continue
        if window is None:
            yield f"the rows of {source.name} at its last instant"
        elif window.kind == "rows":
            yield f"the last {window.length} rows of each {', '.join(map(str, window.keys))}"
        elif window.kind == "unbounded":
            yield "one sum for each group, for ever"
        elif window.kind == "range" and plan.grouped and single and not tuples:
            panes = -(-window.length // max(1, window.slide))
            yield f"for each group {panes} panes of {window.slide * step_us / 1e6:g} s"
        elif window.kind == "range":
            yield f"the rows of {window.length * step_us / 1e6:g} s of {source.name}"
    if plan.streaming in ("istream", "dstream"):
        yield "its rows at the last instant"
