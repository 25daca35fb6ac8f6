"""[recovery] of the configuration: the recovery model, its error bounds, and helpers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tsunagi.runtime.settings.section import Directory, Positive, Seconds, Section


class RecoverySettings(Section):
    """How values that dead edges did not send are estimated, and how good the estimates must be."""

    model: str = Field("", description="model file to put in force; empty = values pass through as `unmodelled`")
    store: Directory = Field(Path("out/models"), description="directory of models that every worker sees")
    eps: Positive = Field(1.0, description="tolerated error, in each sensor's standard deviations")
    delta: Annotated[float, Field(ge=1e-3, lt=1)] = Field(0.9, description="probability with which the bound must hold")
    calibrate: bool = Field(
        default=True,
        description="measure on living edges how wide bounds must be, and follow it; false = as the model was fitted",
    )
    learn: bool = Field(
        default=False,
        description="let the learner fit models to what edges send, and put them in force through the slots' logs",
    )
    learn_steps: Annotated[int, Field(ge=20, le=100_000_000)] = Field(
        200, description="steps of history to which it fits the first one; a later one comes when they have doubled"
    )
    refit: bool = Field(
        default=False,
        description="let the owner make models that follow the data; each comes into force through the slot's log",
    )
    refit_s: Seconds = Field(300.0, description="least time between two of them; each takes a file in the store")
    helpers: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        100,
        description="sensors of other slots that a slot may ask for while values it lost miss eps and delta; 0 = none",
    )
    unbounded: Literal["tag", "withhold"] = Field(
        "tag", description="values whose bound is wider than eps: tag (they go out, tagged) or withhold (they do not)"
    )
    suspects: bool = Field(
        default=False,
        description="let readings count as missing of sensors that fail alone, until they are plausible again",
    )
