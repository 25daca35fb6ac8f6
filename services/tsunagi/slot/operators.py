"""The operators of a slot's chain. They are deterministic and turn each frame into frames (A-SAS: the operator part).

A frame holds the rows of one step. Without lock-step ([query] mode = "tuples") it is a `Run`: the tuples of several
records in a row.

Each operator can return its whole state between two frames (`context`) and go on from it (`restore`). Each is tested by
this law: from the start, or restored at any step's boundary, the same frames follow.

A user's operator is any class with this interface, named in `[query]` as ``use = "module:Class"``. It is made with the
slot's configuration and, as keyword arguments, the other keys of its entry in `[query]`.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats, Sensors, pack_arrays, unpack_arrays
from tsunagi.runtime.messages import EXACT
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.controls import BoundsControl, Control
from tsunagi.slot.frames import Frame, OperatorError, OperatorFailedError, Run, place_of
from tsunagi.slot.recover import Recover
from tsunagi.slot.tuple_windows import TupleAggregate

if TYPE_CHECKING:
    from tsunagi.slot.stream import SlotStream

__all__ = ["Chain", "Frame", "Operator", "OperatorError", "OperatorFailedError", "Run", "Stateless", "build_chain"]


class Operator(Protocol):
    """One operator of a chain. A user's operator inherits from it and has at least `process`.

    This class has no state. An operator with a state overrides `context` and `restore` as well. A class that has these
    methods without inheriting them works, too.

    Args:
        config: the slot's configuration: its sensors, their names and edges. An operator with options defines its own
            `__init__`, which takes them as keyword arguments behind `config`.
    """

    def __init__(self, config: SlotConfig) -> None:
        del config

    @abstractmethod
    def process(self, frame: Frame) -> Sequence[Frame]:
        """Process one frame; return the frames that follow from it: none, one or several."""

    def context(self) -> bytes:
        """Return the operator's whole state between two frames."""
        return b""

    def restore(self, context: bytes) -> None:
        """Go on from a state that `context` returned.

        Raises:
            OperatorError: the operator has no state, but is given one.
        """
        if context:
            raise OperatorError(f"found a context of {len(context)} bytes for an operator that has no state")


@runtime_checkable
class Controlled(Protocol):
    """An operator that control records of the slot's log change: models, calibration, helpers, bounds."""

    def on_control(self, control: Control) -> None:
        """Obey this control from the next frame on."""


@runtime_checkable
class Successor(Protocol):
    """An operator that goes on from the state of one that had other sensors (`tsunagi apply`); others begin anew."""

    def take_over(self, earlier: Any, step: int) -> None:  # noqa: ANN401 - an operator of the same class
        """Take over what `earlier` knows of the sensors that both have.

        Args:
            step: the last step that has closed.
        """


Stateless = Operator
"""In earlier releases operators without a state inherited from this name."""


class Select(Operator):
    """Keeps the rows whose value lies in [at_least, at_most] (selection), and of those the given `share`.

    A hash of sensor and event time decides which rows are in the share. So all replicas keep the same rows.
    """

    def __init__(
        self, config: SlotConfig, *, at_least: float = -np.inf, at_most: float = np.inf, share: float = 1.0
    ) -> None:
        del config
        if not 0.0 <= share <= 1.0:
            raise OperatorError(f"select: share: found {share}, expected 0 to 1")
        self._at_least, self._at_most, self._share = float(at_least), float(at_most), float(share)

    def process(self, frame: Frame) -> Sequence[Frame]:
        kept = (frame.mean >= self._at_least) & (frame.mean <= self._at_most)
        if self._share < 1.0:
            time_us = frame.time_us if isinstance(frame, Run) else np.int64(frame.event_time_us)
            kept &= _uniform(frame.sensor, time_us) < self._share
        return (frame if kept.all() else frame.keep(kept),)


def _uniform(sensor: Sensors, time_us: npt.NDArray[np.int64] | np.int64) -> Floats:
    """Return float64[n] in [0, 1) that look random and depend only on the arguments (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        mixed = (sensor.astype(np.uint64) << np.uint64(40)) ^ np.asarray(time_us).astype(np.uint64)
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Floats = (mixed ^ (mixed >> np.uint64(31))) / 2.0**64
    return found


class Project(Operator):
    """Keeps the named sensors (projection)."""

    def __init__(self, config: SlotConfig, *, sensors: Sequence[str]) -> None:
        wanted = set(sensors)
        self._ids = np.array(
            [sensor for sensor, name in zip(config.sensors, config.names, strict=True) if name in wanted],
            dtype=np.uint32,
        )

    def process(self, frame: Frame) -> Sequence[Frame]:
        return (frame.keep(np.isin(frame.sensor, self._ids)),)


_AGGREGATES: dict[str, Callable[..., Floats]] = {
    "sum": np.nansum,
    "mean": np.nanmean,
    "min": np.nanmin,
    "max": np.nanmax,
}
"""The functions by which the operator `aggregate` reduces a sensor's values in a window, by name."""


class Aggregate:
    """Aggregates each sensor over the last `window` steps, every `slide` steps.

    It is not known how the values of one sensor in successive steps are correlated. So the standard deviation of a sum
    is given as the sum of the standard deviations, which is an upper bound for any correlation. The quality is the
    worst one in the window.
    """

    def __init__(self, config: SlotConfig, *, function: str = "mean", window: int = 10, slide: int = 1) -> None:
        if function not in (*_AGGREGATES, "count"):
            raise OperatorError(f"aggregate: function: found {function!r}, expected sum, count, mean, min or max")
        if not 1 <= slide <= window:
            raise OperatorError(f"aggregate: found slide = {slide}, window = {window}; expected 1 <= slide <= window")
        self._function, self._window, self._slide = function, int(window), int(slide)
        self._sensor = np.array(config.sensors, dtype=np.uint32)
        self._rows: deque[Floats] = deque(maxlen=self._window)  # each float64[4, n]

    def process(self, frame: Frame) -> Sequence[Frame]:
        row = np.full((4, len(self._sensor)), np.nan)
        places = np.searchsorted(self._sensor, frame.sensor)
        row[:, places] = (frame.mean, frame.sd, frame.quality, frame.bound)
        self._rows.append(row)
        if len(self._rows) < self._window or frame.step % self._slide:
            return ()
        window = np.stack(self._rows)
        present = ~np.isnan(window[:, 0])
        some = present.any(axis=0)
        window = window[:, :, some]
        count = present[:, some].sum(axis=0)
        spread = {"mean": 1.0 / count, "sum": 1.0, "count": 0.0}
        if self._function == "count":
            mean = count.astype(np.float64)
        else:
            mean = _AGGREGATES[self._function](window[:, 0], axis=0)
        if self._function in spread:
            sd = np.nansum(window[:, 1], axis=0) * spread[self._function]
            bound = np.nansum(window[:, 3], axis=0) * spread[self._function]
        else:
            sd, bound = np.nanmax(window[:, 1], axis=0), np.nanmax(window[:, 3], axis=0)
        quality = np.nanmax(window[:, 2], axis=0).astype(np.uint8)
        return (Frame(frame.step, frame.event_time_us, self._sensor[some], mean, sd, quality, bound),)

    def take_over(self, earlier: Aggregate, step: int) -> None:
        """Go on with the rows of the last steps; a sensor that is new has none in them."""
        del step
        _, mine, places = np.intersect1d(self._sensor, earlier._sensor, return_indices=True)
        for row in earlier._rows:
            own = np.full((4, len(self._sensor)), np.nan)
            own[:, mine] = row[:, places]
            self._rows.append(own)

    def context(self) -> bytes:
        rows = np.stack(self._rows) if self._rows else np.empty((0, 4, len(self._sensor)))
        return pack_arrays({"rows": rows})

    def restore(self, context: bytes) -> None:
        self._rows = deque(unpack_arrays(context)["rows"].astype(np.float64), maxlen=self._window)


_LEAVE_ROWS_OUT = frozenset({"select", "project", "aggregate"})
"""Operators that may leave rows out. Behind them `recover` could not tell such a row from a lost one."""
_KINDS: dict[str, Any] = {"select": Select, "project": Project, "aggregate": Aggregate, "recover": Recover}
"""The built-in operators with steps, by their name in [query]."""
_TUPLE_KINDS: dict[str, Any] = {"select": Select, "project": Project, "aggregate": TupleAggregate}
"""The built-in operators without steps. There a window is a number of tuples, and nothing can be recovered."""


class Chain:
    """The operators of a slot, in order.

    Attributes:
        mode: "steps" or "tuples", as `SlotConfig.mode`.
        recover: the operator that estimates missing values; None = the chain has none.
        stream: runs the queries over tuples, behind the operators; None = there are no statements.
    """

    def __init__(self, config: SlotConfig, model: Model | None) -> None:
        self.mode = config.mode
        self._config = config
        self._sensor = np.array(config.sensors, dtype=np.uint32)
        self._kinds = [str(options["use"]) for options in config.operators]
        if "recover" in self._kinds and set(self._kinds[: self._kinds.index("recover")]) & _LEAVE_ROWS_OUT:
            found = ", ".join(self._kinds)
            raise OperatorError(
                f"[query] operators: found {found}; expected recover before select, project and aggregate, since it "
                "cannot tell a row that they left out from one that was lost"
            )
        if "recover" in self._kinds and config.mode == "tuples":
            raise OperatorError('[query] operators: recover needs steps, found mode = "tuples"')
        self._operators = [_make(config, dict(options), model) for options in config.operators]
        self.stream = _make_stream(config)
        self.recover: Recover | None = None
        if "recover" in self._kinds:
            self.set_model(model)

    @property
    def gives_rows(self) -> bool:
        """Whether what leaves the operators goes out; tuples of several columns do not, unless there are operators."""
        return bool(self._kinds) or self.stream is None or not self.stream.typed

    def take_over(self, earlier: Chain) -> None:
        """Go on with the state of a chain that differs in nothing but its statements."""
        self._operators = earlier._operators
        if self.stream is not None and earlier.stream is not None:
            self.stream.take_over(earlier.stream)

    def renew(self, earlier: Chain, step: int) -> None:
        """Go on from the state of a chain that differs in its sensors alone, as far as its operators can.

        Args:
            step: the last step that has closed.
        """
        for mine, before in zip(self._operators, earlier._operators, strict=True):
            if isinstance(mine, Successor):
                mine.take_over(before, step)
        if self.stream is not None and earlier.stream is not None:
            self.stream.take_over(earlier.stream)

    def set_model(self, model: Model | None) -> None:
        """Put another model in force. The operator `recover` starts anew with it; the others keep their state."""
        if "recover" in self._kinds:
            self.recover = Recover(self._config, model=model)
            self._operators[self._kinds.index("recover")] = self.recover

    def on_control(self, control: Control) -> None:
        """Hand a control of the slot's log to each operator; all operators keep their state."""
        if isinstance(control, BoundsControl):
            self._config = control.config
        for operator in self._operators:
            if isinstance(operator, Controlled):
                operator.on_control(control)

    def operations(self, values: Floats) -> float:
        """Return about how many multiplications a step with these readings takes: float64[n], NaN = missing."""
        return 0.0 if self.recover is None else self.recover.operations(values)

    def process(self, step: int, values: Floats, helpers: Mapping[int, float] = MappingProxyType({})) -> list[Frame]:
        """Process a closed step; return the frames that leave the chain, without sensors that are another slot's then.

        Args:
            values: float64[n], by the slot's sensors; NaN = missing.
            helpers: readings of sensors of other slots, by sensor id.
        """
        if self.recover is not None:
            self.recover.hear(helpers)
        zeros = np.zeros(len(values))
        exact = np.full(len(values), EXACT, dtype=np.uint8)
        frames = self._through(Frame(step, step * self._config.slide_us, self._sensor, values, zeros, exact, zeros))
        absent = self._config.absent(step)
        return [frame.keep(~np.isnan(frame.mean)).without(absent) for frame in frames]

    def process_run(self, run: Run) -> list[Run]:
        """Process the tuples of several records; return the runs that leave the chain.

        Raises:
            TypeError: a user's operator returned something else than a `Run`.
        """
        runs = []
        for frame in self._through(run):
            if not isinstance(frame, Run):
                raise TypeError(f"[query] operators: found {type(frame).__name__} made of a Run, expected a Run")
            runs.append(frame)
        return runs

    def _through(self, first: Frame) -> list[Frame]:
        frames = [first]
        with np.errstate(all="ignore"):  # infinite readings are data; numpy must not fill the log with warnings
            for kind, operator in zip(self._kinds, self._operators, strict=True):
                frames = [out for frame in frames for out in _process(kind, operator, frame)]
        return frames

    def operator(self, kind: str) -> Operator:
        """Return the first operator with this name in [query]."""
        return self._operators[self._kinds.index(kind)]

    def context(self) -> dict[str, bytes]:
        """Return the state of each operator, by its place and name."""
        names = (f"{place}:{kind}" for place, kind in enumerate(self._kinds))
        found = {name: operator.context() for name, operator in zip(names, self._operators, strict=True)}
        return found if self.stream is None else found | self.stream.context()

    def restore(self, contexts: dict[str, bytes]) -> None:
        """Go on from the states that `context` returned."""
        for place, (kind, operator) in enumerate(zip(self._kinds, self._operators, strict=True)):
            operator.restore(contexts[f"{place}:{kind}"])
        if self.stream is not None:
            self.stream.restore(contexts)


def _make_stream(config: SlotConfig) -> SlotStream | None:
    if not config.statements:
        return None
    from tsunagi.slot.stream import SlotStream  # the parser: most slots do not need it

    return SlotStream(config)


def _process(kind: str, operator: Operator, frame: Frame) -> Sequence[Frame]:
    """Let an operator process a frame.

    Raises:
        OperatorFailedError: a user's operator raises an exception, or does not return frames.
    """
    if ":" not in kind:
        return operator.process(frame)
    try:
        found = operator.process(frame)
        frames = () if isinstance(found, Frame) or found is None else tuple(found)
    except Exception as error:
        raise OperatorFailedError(kind, frame, f"{type(error).__name__}: {error}{place_of(error)}") from error
    if isinstance(found, Frame) or found is None:
        raise OperatorFailedError(kind, frame, f"process: found {type(found).__name__}, expected a list of frames")
    return frames


def _make(config: SlotConfig, options: dict[str, Any], model: Model | None) -> Operator:
    kind = str(options.pop("use"))
    if kind == "recover":
        options["model"] = model
    made = (_TUPLE_KINDS if config.mode == "tuples" else _KINDS).get(kind)
    if made is None:
        module, colon, name = kind.partition(":")
        if not colon:
            raise OperatorError(
                f"[query] operators: found use = {kind!r}, expected {', '.join(_KINDS)} or module:Class"
            )
        try:
            made = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise OperatorError(f"[query] operators: use = {kind!r}: {error}") from None
    try:
        operator: Operator = made(config, **options)
    except TypeError as error:
        raise OperatorError(f"[query] operators: {kind}: {error}") from None
    return operator


def build_chain(config: SlotConfig, model: Model | None) -> Chain:
    """Make a slot's chain.

    Raises:
        OperatorError: an operator is unknown or cannot be made from its options.
    """
    return Chain(config, model)
