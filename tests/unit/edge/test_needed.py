"""What an edge leaves out of tuples if it may ([query] at_edge): nothing that a query could use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tsunagi.edge.needed import Needed
from tsunagi.edge.source import SourceRow
from tsunagi.edge.tuple_form import form_of
from tsunagi.pipeline import Pipeline
from tsunagi.runtime.messages import QueryChange
from tsunagi.runtime.settings import ConfigError, Settings, make

STREAM = "CREATE STREAM s (k TEXT KEY, x DOUBLE, y BIGINT, note TEXT);"
AVERAGES = "CREATE VIEW v AS SELECT k, AVG(x) AS m FROM s [ROWS 2] GROUP BY k;"
NAMES = ["a", "b"]


def needed(tmp_path: Path, statements: str) -> Needed:
    file = tmp_path / "q.sql"
    file.write_text(STREAM + statements, encoding="utf-8")
    settings = Settings(query={"mode": "tuples", "files": [file], "at_edge": True})
    form = form_of(settings)
    assert form is not None
    return Needed(settings, form, NAMES)


def row(key: str, **cells: Any) -> SourceRow:
    place = np.array([NAMES.index(key)])
    return SourceRow(0, 5_000_000, place, np.array([0.0]), cells={"x": None, "y": None, "note": None, **cells})


ROWS = [row("a", x=1.0), row("b", x=3.0), row("a", y=7), row("b", note="rain"), row("a")]


@pytest.mark.parametrize(
    ("statements", "columns", "kept"),
    [
        ("CREATE QUERY q AS SELECT k, y FROM s WHERE x > 2", ["x", "y"], [1]),
        (
            "CREATE QUERY q AS SELECT k FROM s WHERE x > 2; CREATE QUERY r AS SELECT note FROM s WHERE y = 7",
            ...,
            [1, 2],
        ),
        ("CREATE QUERY q AS SELECT k FROM s WHERE k = 'a' AND time > TIMESTAMP '1970-01-01 00:00:04'", [], [0, 2, 4]),
        ("CREATE QUERY q AS SELECT k, MAX(x) AS m FROM s [ROWS 3] WHERE y = 7 GROUP BY k", ["x", "y"], ...),
        ("CREATE QUERY q AS SELECT k, COUNT(*) AS n FROM s [RANGE UNBOUNDED] GROUP BY k", [], ...),
        ("CREATE QUERY q AS SELECT * FROM s", ["x", "y", "note"], ...),
        ("CREATE VIEW v AS SELECT k, x FROM s WHERE x > 2; CREATE QUERY q AS SELECT k FROM v", ["x"], [1]),
        (
            AVERAGES + "CREATE QUERY q AS SELECT t.k, t.note FROM s t, v WHERE t.k = v.k AND v.m > 1",
            ["x", "note"],
            ...,
        ),
        ("CREATE QUERY q AS SELECT k, x FROM s [PARTITION BY k, note ROWS 2]", ["x", "note"], ...),
        ("", [], []),
    ],
)
def test_columns_that_queries_name_and_tuples_that_one_keeps(
    tmp_path: Path, statements: str, columns: Any, kept: Any
) -> None:
    found = needed(tmp_path, statements)
    assert sorted(found.form.kinds) == sorted(["x", "y", "note"] if columns is ... else columns)
    wanted = list(range(len(ROWS))) if kept is ... else kept
    assert np.flatnonzero(found.choose(ROWS, 0)).tolist() == wanted
    assert found.dropped == len(ROWS) - len(wanted)
    assert len(found.choose([], 0)) == 0


def test_a_query_that_is_added_or_dropped_counts(tmp_path: Path) -> None:
    found = needed(tmp_path, "CREATE QUERY q AS SELECT k FROM s WHERE x > 2")
    found.on_query(QueryChange(name="r", text="CREATE QUERY r AS SELECT k, note FROM s WHERE y = 7"))
    assert sorted(found.form.kinds) == ["note", "x", "y"]
    assert np.flatnonzero(found.choose(ROWS, 0)).tolist() == [1, 2]
    found.on_query(QueryChange(name="r", text=""))
    assert sorted(found.form.kinds) == ["x"]
    assert np.flatnonzero(found.choose(ROWS, 0)).tolist() == [1]


def test_of_what_is_not_understood_anything_may_be_needed(tmp_path: Path) -> None:
    found = needed(tmp_path, "CREATE QUERY q AS SELECT k FROM s WHERE x > 2")
    found.on_query(QueryChange(name="r", text="CREATE QUERY r AS SELECT later(note) AS l FROM s"))
    assert sorted(found.form.kinds) == ["note", "x", "y"]
    assert found.choose(ROWS, 0).all()


def odd(values: Any) -> Any:
    """Fail, as users' functions do."""
    raise KeyError(float(values[0]))


def test_a_function_that_fails_ends_no_edge(tmp_path: Path) -> None:
    own = "CREATE FUNCTION odd AS 'tests.unit.edge.test_needed:odd';"
    found = needed(tmp_path, own + "CREATE QUERY q AS SELECT k FROM s WHERE ODD(x) > 2")
    assert found.choose(ROWS, 0).all()


def test_results_are_the_same_and_less_is_sent(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    lines = [f"{'ab'[number % 2]},{number % 10},{number},{'text ' * 20}" for number in range(60)]
    data.write_text("\n".join(["k,x,y,note", *lines]) + "\n", encoding="utf-8")
    sensors = [{"sensor": "a", "edge": "e"}, {"sensor": "b", "edge": "f"}]
    found = []
    for at_edge in (False, True):
        pipeline = Pipeline(data, sensors=sensors, query={"mode": "tuples", "at_edge": at_edge})
        results = pipeline.query(STREAM + "CREATE QUERY q AS SELECT k, y FROM s WHERE x > 7").run(memory=True)
        rows = [tuple(row.values()) for row in results.query("q")]
        log: Any = results._log
        sent = [item.value for slot in range(2) for item in log.records("tuples", slot)]
        found.append((sorted(rows), len(sent), sum(map(len, sent))))
    (plain, all_records, all_bytes), (chosen, records, size) = found
    assert plain == chosen == sorted(("ab"[number % 2], number) for number in range(60) if number % 10 > 7)
    assert records < all_records / 3
    assert size < all_bytes / 5


def test_operators_see_all_columns_so_it_is_refused_with_them() -> None:
    with pytest.raises(ConfigError, match="at_edge = true: expected no operators"):
        make({"query": {"mode": "tuples", "at_edge": True, "operators": [{"use": "select"}]}}, "x")
