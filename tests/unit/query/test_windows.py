"""Windows cost per row, not per window, and keep what they need and no more."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.query import aggregates, windows
from tsunagi.query.aggregates import AggregateFunction, CellRows, State
from tsunagi.query.values import Column, Kind
from tsunagi.query.windows import Piece, SlidingWindow

KEYS = 4


def feed(window: SlidingWindow, measure: AggregateFunction, steps: range, chance: np.random.Generator) -> np.ndarray:
    """Add a value of each key at each step; return the values, [steps, keys]."""
    values = chance.normal(size=(len(steps), KEYS)).round(3)
    count = values.size
    rows = CellRows(np.arange(count), count, steps[0] * KEYS + np.arange(count))
    state = measure.of_rows(rows, Column(Kind.DOUBLE, values.ravel()))
    pane = (np.repeat(np.array(steps), KEYS) - 1) // window.pane
    assert window.pane == 1
    window.add(pane, np.tile(np.arange(KEYS), len(steps)), state, KEYS)
    return values


@pytest.mark.parametrize("length", [1, 2, 7, 60, 3600])
@pytest.mark.parametrize("function", ["SUM", "MIN", "MAX", "FIRST", "LAST", "AVG", "STDDEV"])
def test_a_window_gives_what_its_rows_give(length: int, function: str) -> None:
    chance = np.random.default_rng(length)
    window, measure = SlidingWindow(length, 1), AggregateFunction("m", function, Kind.DOUBLE)
    values, low = np.zeros((0, KEYS)), 0
    for size in (1, 3, 50, 400, 2, 1000):
        values = np.concatenate((values, feed(window, measure, range(low + 1, low + size + 1), chance)))
        for ends, state in window.advance(low, low + size):
            found = measure.result(state, (len(ends), KEYS)).values
            for row, end in zip(found, ends.tolist(), strict=True):
                part = values[max(0, end - length) : end]
                expected = {
                    "SUM": part.sum(axis=0),
                    "MIN": part.min(axis=0),
                    "MAX": part.max(axis=0),
                    "FIRST": part[0],
                    "LAST": part[-1],
                    "AVG": part.mean(axis=0),
                    "STDDEV": part.std(axis=0, ddof=1) if len(part) > 1 else np.zeros(KEYS),
                }[function]
                np.testing.assert_allclose(row, expected, rtol=1e-9, atol=1e-12)
        low += size


def test_equal_values_have_no_deviation() -> None:
    measure = AggregateFunction("m", "STDDEV", Kind.DOUBLE)
    for value in (0.1, 8.5 / 2.5 / 7.5, -1e-300, 1e150):
        rows = CellRows(np.zeros(7, np.int64), 1, np.arange(7))
        assert measure.result(measure.of_rows(rows, Column(Kind.DOUBLE, np.full(7, value))), (1,)).values[0] == 0.0


def test_what_is_kept_does_not_grow_with_time() -> None:
    window, measure, kept = SlidingWindow(60, 1), AggregateFunction("m", "SUM", Kind.DOUBLE), []
    chance = np.random.default_rng(1)
    for low in range(0, 2000, 10):
        feed(window, measure, range(low + 1, low + 11), chance)
        for _ in window.advance(low, low + 10):
            pass
        kept.append((sum(len(piece.pane) for piece in window.history), len(window.blocks)))
    assert max(kept[100:]) <= max(kept[20:100])
    assert kept[-1][0] <= 3 * 60 * KEYS


def test_a_piece_that_is_put_away_gives_the_same_cells() -> None:
    chance = np.random.default_rng(5)
    count = 500
    values = np.where(chance.random(count) < 0.02, np.inf, chance.normal(size=count))
    rows = CellRows(np.arange(count), count, np.arange(count))
    state: State = {}
    for number, function in enumerate(("COUNT", "SUM", "AVG", "MIN", "STDDEV", "LAST")):
        for finite in (True, False):
            given = Column(Kind.DOUBLE, np.where(np.isinf(values), 0.0, values) if finite else values)
            state |= AggregateFunction(f"m{number}{finite}", function, Kind.DOUBLE).of_rows(rows, given)
    piece = Piece(8_500_000_000 + np.arange(count) // 10, np.arange(count) % 10, state)
    compact = piece.compact()
    assert sum(array.nbytes for array in compact.state.values()) < sum(array.nbytes for array in state.values())
    assert (compact.first, compact.last) == (piece.first, piece.last)
    one, other = (item.between(8_500_000_005, 8_500_000_020) for item in (piece, compact))
    assert one.pane.tolist() == other.pane.tolist()
    assert one.key.tolist() == other.key.tolist()
    shape = (len(one.pane),)
    for number, function in enumerate(("COUNT", "SUM", "AVG", "MIN", "STDDEV", "LAST")):
        for finite in (True, False):
            measure = AggregateFunction(f"m{number}{finite}", function, Kind.DOUBLE)
            found = [measure.result(item.state, shape) for item in (one, other)]
            assert found[0].values.tobytes() == found[1].values.tobytes()


def test_a_longer_window_takes_no_more_joins_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that are joined, per row: the work that could grow with the window."""
    counts: dict[int, int] = {}
    plain = aggregates.join
    for length in (60, 3600):
        counts[length] = 0

        def counted(earlier, later, length=length):
            counts[length] += sum(array.size for array in later.values())
            return plain(earlier, later)

        monkeypatch.setattr(windows, "join", counted)
        window, measure = SlidingWindow(length, 1), AggregateFunction("m", "MAX", Kind.DOUBLE)
        chance = np.random.default_rng(1)
        for low in range(0, 7200, 10):
            feed(window, measure, range(low + 1, low + 11), chance)
            for _ in window.advance(low, low + 10):
                pass
    assert counts[3600] < 2 * counts[60]
