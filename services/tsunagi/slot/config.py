"""What a slot computes, as one canonical text that stands in the slot's log (SlotSettings)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings

MAX_SENSOR = (1 << 31) - 1
"""A table with a row for each sensor up to it is in memory."""

FORMAT = 1
"""Raised when the meaning of the log changes, so that two releases never compute one slot differently in silence."""


@dataclass(frozen=True)
class SlotConfig:
    """Everything that a slot's outputs depend on and that is not a tuple.

    Attributes:
        sensors: ids of the slot's sensors, ascending.
        names: their names, which the model knows them by.
        edges: the edge of each.
        slide_us: length of a step; without steps 1, a batch's number being its event time as a rule.
        max_ahead_us: a batch whose event time is further ahead of the time at which the log appended it is refused.
        max_skew_steps: edges' clocks may differ by so many steps: a slot begins that long before the first batch.
        max_gap_steps: when all edges jump forward by more steps than this, the steps between are skipped, not computed.
        operators: the chain, first to last, each {"use": kind, ...its options}.
        eps: tolerated error in each sensor's standard deviations.
        delta: probability of the bounds.
        mode: "steps" = in lock-step, or "tuples" = each tuple as it comes.
        unbounded: what becomes of a value whose bound is wider than eps: "tag" = it goes out with its tag, "withhold" =
            it does not go out.
        auth: which keys the records of the slot's log are verified with (tsunagi.runtime.auth); "" = not verified.
    """

    slot: int
    sensors: tuple[int, ...]
    names: tuple[str, ...]
    edges: tuple[str, ...]
    slide_us: int
    max_ahead_us: int
    max_skew_steps: int
    max_gap_steps: int
    operators: tuple[dict[str, Any], ...]
    eps: float
    delta: float
    format: int = FORMAT
    auth: str = ""
    mode: str = "steps"
    unbounded: str = "tag"

    @classmethod
    def make(cls, settings: Settings, table: SensorTable, slot_of: Sensors, slot: int, *, auth: str = "") -> SlotConfig:
        """Make a slot's configuration from the settings, the sensors table and the placement uint32[n]."""
        ids = np.flatnonzero(slot_of[: len(table)] == slot)
        rows = [table.sensors[int(i)] for i in ids]
        return cls(
            slot=slot,
            sensors=tuple(row.id for row in rows),
            names=tuple(row.name for row in rows),
            edges=tuple(row.edge for row in rows),
            slide_us=settings.slide_us,
            max_ahead_us=round(settings.steps.max_ahead_s * 1e6),
            max_skew_steps=settings.steps.max_skew_steps,
            max_gap_steps=settings.steps.max_gap_steps,
            operators=tuple({"use": item.use, **item.options} for item in settings.query.operators),
            eps=settings.recovery.eps,
            delta=settings.recovery.delta,
            auth=auth,
            mode=settings.query.mode,
            unbounded=settings.recovery.unbounded,
        )

    def same_but_bounds(self, other: SlotConfig) -> bool:
        """Return whether only eps, delta and what becomes of unbounded values differ, if anything."""
        return replace(self, eps=other.eps, delta=other.delta, unbounded=other.unbounded) == other

    def text(self) -> str:
        """Return the canonical JSON."""
        fields = asdict(self)
        # What came later is left out where it says nothing new: a release must not change a slot's settings by itself.
        if not self.auth:
            del fields["auth"]
        if self.mode == "steps":
            del fields["mode"]
        if self.unbounded == "tag":
            del fields["unbounded"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the text; a replica compares it at every turn."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    @classmethod
    def parse(cls, text: str) -> SlotConfig:
        """Read the canonical JSON.

        Raises:
            ValueError: it is of another format, or not one at all.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("slot settings: found no JSON object")  # noqa: TRY004 - wrong data, no bug
        if fields.get("format") != FORMAT:
            raise ValueError(f"slot settings: found format {fields.get('format')!r}, expected {FORMAT}")
        try:
            for name in ("sensors", "names", "edges", "operators"):
                fields[name] = tuple(fields[name])
            config = cls(**fields)
            sound = (
                len(config.sensors) == len(config.names) == len(config.edges)
                and all(0 <= sensor <= MAX_SENSOR for sensor in config.sensors)
                and list(config.sensors) == sorted(set(config.sensors))
                and all(isinstance(name, str) for name in (*config.names, *config.edges))
                and 0 < config.slide_us <= MAX_TIME_US
                and all(0 <= limit <= MAX_TIME_US for limit in (config.max_ahead_us, config.max_skew_steps))
                and 0 <= config.max_gap_steps <= MAX_TIME_US
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"slot settings: {error}") from None
        if not sound:
            raise ValueError("slot settings: found a length, a name or sensors that cannot be")
        return config
