"""Helps users test their own operators: the laws of operators, a log in memory, and a clock that a test moves."""

from __future__ import annotations

from typing import Literal

from tsunagi.operator_names import Given, tables_of
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.testing import MemoryLog, Network
from tsunagi.slot.testkit import LawError, check_operators

__all__ = ["LawError", "ManualClock", "MemoryLog", "Network", "check_operator"]


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
