"""[steps] of the configuration: interval, window and slide of the readings, and how long a step waits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tsunagi.runtime.settings.section import LONGEST_S, MICROSECONDS, Count, Seconds, Section


class StepsSettings(Section):
    """How event time is cut into windows and steps; both are counted in readings at the nominal interval."""

    interval_s: Seconds = Field(1.0, description="nominal time between two readings of a sensor")
    window: Count = Field(10, description="readings in a window")
    slide: Count = Field(2, description="readings between two windows; one step")
    aggregate: Literal["mean", "sum", "min", "max", "last"] = Field(
        "mean", description="what becomes of the readings in a window: mean, sum, min, max or last"
    )
    grace_s: Seconds = Field(0.5, description="how long a step waits for an edge that has gone silent")
    max_skew_s: Seconds = Field(2.0, description="largest clock difference between edges that is waited for")
    max_ahead_s: Seconds = Field(
        5.0,
        description="a batch whose event time is further ahead of the time the log appended it goes to dead-letters",
    )
    max_gap_s: Seconds = Field(
        600.0, description="a longer time without any edge is skipped, not filled in step by step"
    )

    @property
    def slide_us(self) -> int:
        """Length of a step in microseconds."""
        return round(self.slide * self.interval_s * MICROSECONDS)

    @property
    def slide_s(self) -> float:
        """Length of a step in seconds."""
        return self.slide_us / MICROSECONDS

    @property
    def window_us(self) -> int:
        """Length of a window in microseconds."""
        return round(self.window * self.interval_s * MICROSECONDS)

    @property
    def max_gap_steps(self) -> int:
        """`max_gap_s` in whole steps, at least 1."""
        return max(1, round(self.max_gap_s * MICROSECONDS / self.slide_us))

    @property
    def max_skew_steps(self) -> int:
        """`max_skew_s` in whole steps, rounded up."""
        return -(-round(self.max_skew_s * MICROSECONDS) // self.slide_us)

    @model_validator(mode="after")
    def _whole_windows(self) -> StepsSettings:
        if self.slide > self.window:
            raise ValueError(f"slide = {self.slide} is greater than window = {self.window}: readings would be lost")
        if self.window * self.interval_s > LONGEST_S:
            raise ValueError(
                f"window = {self.window} readings of interval_s = {self.interval_s:g} are longer than {LONGEST_S:g} s"
            )
        return self
