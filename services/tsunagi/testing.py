"""Helps users test their own operators, sources and sinks: the laws of each, a log in memory, a clock to move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from tsunagi.edge.own_source import SourceReader
from tsunagi.edge.source_kit import check_source_reader
from tsunagi.operator_names import Given, name_of, tables_of
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.testing import MemoryLog, Network
from tsunagi.sink.base import Sink
from tsunagi.sink.kit import check_own_sink
from tsunagi.slot.testkit import LawError, check_operators

__all__ = ["LawError", "ManualClock", "MemoryLog", "Network", "check_operator", "check_sink", "check_source"]


def check_operator(
    *operators: Given, mode: Literal["steps", "tuples"] = "steps", count: int = 200, seed: int = 0
) -> None:
    """Check on made-up data that an operator, or a chain of operators, keeps the laws of docs/howto/operators.md.

    >>> from tsunagi import Operator, testing
    >>> class Count(Operator):
    ...     number = 0
    ...     def process(self, frame):
    ...         self.number += 1
    ...         return [frame.replace(mean=frame.mean + self.number)]
    >>> testing.check_operator(Count)
    Traceback (most recent call last):
        ...
    tsunagi.slot.testkit.LawError: not resumable: restored before input 1, it gives other rows than run straight through

    Args:
        operators: classes, names, or mappings of `use` and options, first to last.
        mode: the mode in which the operators run, as `[query] mode`.
        count: how many steps, or records of tuples, are processed.
        seed: the seed of the data.

    Raises:
        LawError: a law is broken; the message says which one, and where.
        OperatorError: an operator cannot be made from its options.
        Exception: any exception that an operator raises for the data.
    """
    check_operators(*tables_of(operators), mode=mode, count=count, seed=seed)


def check_source(
    source: str | type[SourceReader],
    sensors: Sequence[str],
    *,
    count: int = 100,
    position: int | None = None,
    settings: dict[str, Any] | None = None,
    **options: object,
) -> None:
    """Check that a source of one's own keeps the laws of docs/howto/sources.md.

    The source is read up to `count` messages. A resumable one is then opened again at some of them.

    Args:
        source: its class, or module:Class.
        sensors: the names of all sensors that it may give.
        count: how many messages are read at most. The source must have some of them at once.
        position: where a resumable source begins; None = as a new edge does, with what comes from now on.
        settings: further keys of `[source]`, such as `format` and `fields`.
        options: as `[source.options]`.

    Raises:
        LawError: a law is broken; the message says which one, and where.
        SourceError: the source cannot be made from its options.
        OSError: the source is away.
    """
    use = name_of(source) if isinstance(source, type) else source
    check_source_reader({"use": use, "options": options} | (settings or {}), sensors, count, position)


def check_sink(
    sink: str | type[Sink],
    read: Callable[[], Iterable[Mapping[str, Any]]],
    *,
    count: int = 30,
    seed: int = 0,
    **options: object,
) -> None:
    """Check that a sink of one's own keeps the laws of docs/howto/sinks.md.

    Made-up readings are written as the service does, and written again as after a kill.

    Args:
        sink: its class, or module:Class.
        read: returns what the target has, in its order: mappings with `time`, `sensor` and `value` at least. The target
            must be empty at first.
        count: how many steps of readings are written.
        seed: the seed of the values.
        options: as `[sinks.options]`.

    Raises:
        LawError: a law is broken; the message says which one, and where.
        SinkError: the sink cannot be made from its options.
        OSError: the target is away.
    """
    check_own_sink(name_of(sink) if isinstance(sink, type) else sink, options, read, count, seed)
