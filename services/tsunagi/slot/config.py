"""A slot's configuration: what it computes. It stands as a canonical text in the slot's log (SlotSettings)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tsunagi.runtime.moving import HELD, SensorSlots, first_step
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings

MAX_SENSOR = (1 << 31) - 1
"""The greatest sensor id allowed, since a table with a row for each id up to a slot's greatest is in memory."""

STATE_BYTES = 512_000_000
"""The default of `[query] state_mb`, in bytes."""

FORMAT = 1
"""Version of the log's meaning, raised when that changes: else two releases might silently compute differently."""

_MOVES = ("move_us", "coming", "going", "held", "left")
"""The fields that say how sensors move between slots."""


@dataclass(frozen=True)
class SlotConfig:
    """Everything beside the slot's log that its outputs depend on.

    Attributes:
        slot: the slot's number.
        sensors: ids of the slot's sensors, ascending.
        names: the sensors' names.
        edges: the edge of each sensor.
        slide_us: length of a step, microseconds; 1 without steps, where a batch's number is usually its event time.
        max_ahead_us: a batch is refused if its event time is more than this after its append to the log, microseconds.
        max_skew_steps: how many steps edges' clocks may differ by. A slot begins so many steps before its first batch.
        max_gap_steps: if all edges jump forward by more steps than this, the steps in between are skipped.
        operators: the chain of operators in order, each as {"use": kind, ...its options}.
        eps: the error that a recovered value may have, in standard deviations of its sensor.
        delta: the probability with which a bound holds.
        format: the version of the log's meaning (`FORMAT`).
        mode: "steps" = in lock-step, or "tuples" = each tuple as it comes.
        statements: without steps: the statements in CQL that the slot runs, each behind those that it reads.
        fills: (query, event time in microseconds) for queries that are filled with the slot's past from there on.
        state_bytes: without steps: most state of a query in CQL, in bytes.
        unbounded: for values whose bound is wider than eps: "tag" = they are given out with a tag, "withhold" = not.
        auth: names the keys that verify the records of the slot's log (tsunagi.runtime.auth); "" = not verified.
        keys: the names by which models know the sensors, if some have been renamed; empty = `names`.
        former: (sensor, the edge that it had before) for sensors that were moved or removed. A batch of that edge may
            still have the sensor: edges and slots do not go by a new table at the same instant.
        changeable: whether the sensors table may change while the slot runs. Then no step waits for an edge that is new
            to the slot until its first batch comes, and of a batch only those values are refused whose sensors the
            slot does not know of this edge.
        move_us: the boundary of a move of sensors between slots, an event time in microseconds; 0 = no sensor of the
            slot is moving (tsunagi.runtime.moving).
        coming: sensors that are the slot's in steps that end after `move_us`.
        going: sensors that are the slot's in steps that end at `move_us` at the latest.
        held: no step closes that ends after `move_us`, since not all slots are known to be ready.
        left: sensors that have moved to other slots. Closed steps had them; their values for an open step have come to
            the wrong slot.
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
    statements: tuple[str, ...] = ()
    state_bytes: int = STATE_BYTES
    keys: tuple[str, ...] = ()
    former: tuple[tuple[int, str], ...] = ()
    changeable: bool = False
    fills: tuple[tuple[str, int], ...] = ()
    move_us: int = 0
    coming: tuple[int, ...] = ()
    going: tuple[int, ...] = ()
    held: bool = False
    left: tuple[int, ...] = ()

    @classmethod
    def make(
        cls,
        settings: Settings,
        table: SensorTable,
        slots: SensorSlots,
        slot: int,
        *,
        auth: str = "",
        statements: tuple[str, ...] = (),
        fills: tuple[tuple[str, int], ...] = (),
        changeable: bool = False,
    ) -> SlotConfig:
        """Make a slot's configuration from the settings, the sensors table and the slot of each sensor."""
        now, before = slots.now[: len(table)] == slot, slots.before[: len(table)] == slot
        moving = slots.moving and not np.array_equal(now, before)
        placed = [table.sensors[int(i)] for i in np.flatnonzero(now | before)]
        rows = [row for row in placed if not row.removed and (now[row.id] or moving)]
        left = [row for row in placed if not moving and not row.removed and not now[row.id]]
        former = [(row.id, row.before) for row in placed if row.before] + [(row.id, row.edge) for row in left]
        keys = tuple(row.key for row in rows)
        names = tuple(row.name for row in rows)
        return cls(
            slot=slot,
            sensors=tuple(row.id for row in rows),
            names=names,
            edges=tuple(row.edge for row in rows),
            slide_us=settings.slide_us,
            max_ahead_us=round(settings.steps.max_ahead_s * 1e6),
            max_skew_steps=settings.steps.max_skew_steps,
            max_gap_steps=settings.steps.max_gap_steps,
            operators=tuple({"use": item.use, **item.options} for item in settings.query.chain),
            eps=settings.recovery.eps,
            delta=settings.recovery.delta,
            auth=auth,
            mode=settings.query.mode,
            unbounded=settings.recovery.unbounded,
            statements=statements,
            state_bytes=round(settings.query.state_mb * 1e6) if statements else STATE_BYTES,
            keys=() if keys == names else keys,
            former=tuple(sorted(former)),
            changeable=changeable or moving,
            fills=fills,
            move_us=slots.from_us if moving else 0,
            coming=tuple(row.id for row in rows if moving and not before[row.id]),
            going=tuple(row.id for row in rows if moving and not now[row.id]),
            held=moving and slots.phase == HELD,
            left=tuple(row.id for row in left),
        )

    @property
    def move_step(self) -> int:
        """The first step after the boundary of a move; without a move it means nothing."""
        return first_step(self.move_us, self.slide_us)

    @property
    def last_step(self) -> int:
        """The last step that may close; without a limit it is later than any step."""
        return self.move_step - 1 if self.held else MAX_TIME_US

    def ready_for_us(self, cursor: int) -> int:
        """Return the boundary of the move that a slot is ready for whose first open step is this one; 0 = of none."""
        return self.move_us if self.held and cursor <= self.move_step else 0

    def absent(self, step: int) -> AbstractSet[int]:
        """Return those of `sensors` that are another slot's in this step, since they come later or have gone."""
        return self._absent[step >= self.move_step]

    @cached_property
    def _absent(self) -> tuple[AbstractSet[int], AbstractSet[int]]:
        return frozenset(self.coming), frozenset(self.going)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names by which models know the sensors."""
        return self.keys or self.names

    def same_but_bounds(self, other: SlotConfig) -> bool:
        """Return whether all but `eps`, `delta` and `unbounded` is equal."""
        return replace(self, eps=other.eps, delta=other.delta, unbounded=other.unbounded) == other

    def same_but_statements(self, other: SlotConfig) -> bool:
        """Return whether all but `statements` and their limit is equal."""
        mine = ("statements", "state_bytes", "fills")
        return replace(self, **{name: getattr(other, name) for name in mine}) == other

    def same_but_sensors(self, other: SlotConfig) -> bool:
        """Return whether all but the sensors, their names and their edges is equal."""
        mine = ("sensors", "names", "edges", "keys", "former", "changeable", *_MOVES)
        return replace(self, **{name: getattr(other, name) for name in mine}) == other

    def text(self) -> str:
        """Return the canonical JSON."""
        fields = asdict(self)
        # Fields of later releases are left out if they have their default. Otherwise a new release alone would change
        # the hash of each slot's settings.
        if not self.auth:
            del fields["auth"]
        if self.mode == "steps":
            del fields["mode"]
        if self.unbounded == "tag":
            del fields["unbounded"]
        if not self.statements:
            del fields["statements"]
        if self.state_bytes == STATE_BYTES:
            del fields["state_bytes"]
        for name in ("keys", "former", "changeable", "fills", *_MOVES):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the text. It is cached, since a replica compares it at each turn of its loop."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    @classmethod
    def parse(cls, text: str) -> SlotConfig:
        """Read the canonical JSON.

        Raises:
            ValueError: the text has another format, or is no valid configuration.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("slot settings: found no JSON object")  # noqa: TRY004 - wrong data, no bug
        if fields.get("format") != FORMAT:
            raise ValueError(f"slot settings: found format {fields.get('format')!r}, expected {FORMAT}")
        try:
            for name in ("sensors", "names", "edges", "operators"):
                fields[name] = tuple(fields[name])
            fields["statements"] = tuple(fields.get("statements", ()))
            for name in ("keys", "coming", "going", "left"):
                fields[name] = tuple(fields.get(name, ()))
            for name in ("former", "fills"):
                fields[name] = tuple((first, second) for first, second in fields.get(name, ()))
            config = cls(**fields)
            sound = (
                len(config.sensors) == len(config.names) == len(config.edges)
                and all(0 <= sensor <= MAX_SENSOR for sensor in config.sensors)
                and list(config.sensors) == sorted(set(config.sensors))
                and len(config.model_names) == len(config.names)
                and all(isinstance(name, str) for name in (*config.names, *config.edges, *config.statements))
                and all(isinstance(name, str) for name in config.keys)
                and all(0 <= sensor <= MAX_SENSOR and isinstance(edge, str) for sensor, edge in config.former)
                and all(0 < begin <= MAX_TIME_US for _, begin in config.fills)
                and 0 <= config.move_us <= MAX_TIME_US
                and {*config.coming, *config.going} <= set(config.sensors)
                and not {*config.left} & set(config.sensors)
                and (config.move_us > 0 or not (config.coming or config.going or config.held))
                and 0 < config.slide_us <= MAX_TIME_US
                and all(0 <= limit <= MAX_TIME_US for limit in (config.max_ahead_us, config.max_skew_steps))
                and 0 <= config.max_gap_steps <= MAX_TIME_US
                and 0 < config.state_bytes <= MAX_TIME_US
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"slot settings: {error}") from None
        if not sound:
            raise ValueError("slot settings: found a length, a name or sensors that cannot be")
        return config
