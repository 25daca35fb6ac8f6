"""[query] of the configuration: the operators of a slot and the aggregates of the Spark job."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from tsunagi.runtime.settings.section import File, Seconds, Section


class OperatorSettings(Section):
    """One operator of the chain; `use` names it, the other keys are its own."""

    model_config = ConfigDict(frozen=True, extra="allow")
    use: str = Field(description="select | project | aggregate | recover, or module:Class of your own")

    @property
    def options(self) -> dict[str, Any]:
        """The operator's own keys."""
        return dict(self.model_extra or {})


_RECOVER = (OperatorSettings(use="recover"),)
"""The default of `operators`."""


class AggregateSettings(Section):
    """One window aggregate that the job computes: count, sum, mean, minimum and maximum (docs/howto/results.md)."""

    name: str = Field(description="the query's name in results", pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)
    range_s: Seconds = Field(description="length of a window")
    slide_s: Seconds | None = Field(None, description="time between two windows; none = range_s: they tumble")
    by: Literal["sensor", "group"] = Field("sensor", description="sensor | group: what a row is of")

    @model_validator(mode="after")
    def _usable(self) -> AggregateSettings:
        if self.name in ("readings", "tuples"):
            raise ValueError(f"name = {self.name!r} is taken")
        if self.slide_s is not None and self.slide_s > self.range_s:
            raise ValueError(
                f"slide_s = {self.slide_s:g} is greater than range_s = {self.range_s:g}: values would be lost"
            )
        return self


class QuerySettings(Section):
    """What a slot computes, first to last."""

    mode: Literal["steps", "tuples"] = Field(
        "steps",
        description="steps: in lock-step, a window of each sensor a step; tuples: each reading as it comes, no Spark",
    )
    operators: tuple[OperatorSettings, ...] = Field(
        _RECOVER, description="tables with `use`: select | project | aggregate | recover, or module:Class"
    )
    range_s: Seconds = Field(60.0, description="the range of q1 and q2")
    aggregates: tuple[AggregateSettings, ...] = Field(
        (), description="window aggregates: tables with `name`, `range_s`, and optionally `slide_s` and `by`"
    )
    files: tuple[File, ...] = Field((), description="files with queries in CQL (docs/reference/cql.md)")
    at_edge: bool = Field(
        default=False,
        description="edges send only the columns and the tuples or events (CREATE STREAM) that queries use",
    )
    state_mb: float = Field(
        512.0, ge=1, le=1e6, description="most state of a query in CQL, MB (over tuples: in a slot); with more it stops"
    )

    @property
    def chain(self) -> tuple[OperatorSettings, ...]:
        """The operators in force: without steps, none in place of the default."""
        return () if self.mode == "tuples" and self.operators == _RECOVER else self.operators

    @model_validator(mode="after")
    def _named_apart(self) -> QuerySettings:
        names = [item.name for item in self.aggregates]
        if len(set(names)) < len(names):
            raise ValueError(f"aggregates: found a name twice among {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _stepwise(self) -> QuerySettings:
        if self.mode == "tuples" and any(operator.use == "recover" for operator in self.chain):
            raise ValueError(
                'mode = "tuples" has no steps in which a value could be missing: name operators without recover'
            )
        if self.at_edge and self.mode == "tuples" and self.chain:
            raise ValueError("at_edge = true: expected no operators, which see all columns")
        return self
