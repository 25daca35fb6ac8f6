"""Scalar functions give what DuckDB gives, NULLs included."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pytest

from tests.unit.query.oracle import CATALOG, rounded
from tsunagi.query.binding import Scope
from tsunagi.query.expressions import Evaluation
from tsunagi.query.plan import SourcePlan
from tsunagi.query.planning import make_program
from tsunagi.query.syntax import CreateQuery, parse
from tsunagi.query.values import Kind, column, texts

NUMBERS = [-2.5, -1.0, -0.5, 0.0, 0.5, 1.5, 2.5, 100.25, None]
TEXTS = ["", "pump", "Pump-7", " a b ", "éclair", "a%b_c", "PUMP", "xx", None]
TIMES = [0, 86_399_999_999, 951_782_400_000_000, 1_700_000_000_123_456, -1, 1_709_164_800_000_000, 1, 2, None]
EXPRESSIONS = [
    "ABS(x)", "SIGN(x)", "FLOOR(x)", "CEIL(x)", "ROUND(x)", "ROUND(x, 1)", "EXP(x)", "SIN(x)", "COS(x)", "ATAN(x)",
    "POWER(x, 2)", "x % 2", "-x", "x / 0", "x + NULL", "GREATEST(x, 1, NULL)", "LEAST(x, 1)", "COALESCE(x, 7)",
    "NULLIF(x, 1.5)", "CASE WHEN x > 0 THEN 'plus' WHEN x < 0 THEN 'minus' END", "CASE x WHEN 1.5 THEN 1 ELSE 0 END",
    "x BETWEEN -1 AND 1", "x IN (0.5, 2.5)", "x IS NULL", "x > 0 AND t = 'xx'", "x > 0 OR t = 'xx'", "NOT (x > 0)",
    "CAST(x AS BIGINT)", "UPPER(t)", "LOWER(t)", "TRIM(t)", "LENGTH(t)", "SUBSTRING(t, 2, 2)", "SUBSTRING(t, -2, 2)",
    "LEFT(t, 2)", "RIGHT(t, 2)", "REPLACE(t, 'p', 'b')", "t || '!'", "CONCAT(t, '-', t)", "t LIKE 'P%'",
    "t LIKE '%a_b%'", "t ILIKE 'pump%'", "REGEXP_MATCHES(t, 'u.p')", "REGEXP_EXTRACT(t, '([a-z]+)-([0-9])', 2)",
    "STARTS_WITH(t, 'Pu')", "CONTAINS(t, 'um')", "t < 'm'", "t = 'pump'", "t <> 'pump'", "t IN ('pump', 'xx')",
    "CAST(x AS TEXT) = '1.5'", "CAST('12' AS DOUBLE) + x", "EXTRACT(HOUR FROM m)", "EXTRACT(MINUTE FROM m)",
    "EXTRACT(DAY FROM m)", "EXTRACT(MONTH FROM m)", "EXTRACT(YEAR FROM m)", "EXTRACT(DOW FROM m)",
    "EXTRACT(WEEK FROM m)", "EPOCH(m)", "DATE_TRUNC('hour', m) = m", "EPOCH(DATE_TRUNC('month', m))",
    "EPOCH(DATE_TRUNC('week', m))", "m > '2000-01-01 00:00:00'", "EPOCH(m + INTERVAL 90 SECONDS)",
    "m < TIMESTAMP '1970-01-02'",
]  # fmt: skip


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect()
    found.execute("SET ieee_floating_point_ops = false")
    found.execute("SET error_on_division_by_zero = false")
    found.execute("CREATE TABLE rows (n BIGINT, x DOUBLE, t TEXT, us BIGINT)")
    rows = [(n, *row) for n, row in enumerate(zip(NUMBERS, TEXTS, TIMES, strict=True))]
    found.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)
    return found


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_function_gives_what_the_database_gives(text: str, database: duckdb.DuckDBPyConnection) -> None:
    expected = [
        row[0]
        for row in database.execute(
            f"SELECT {text} FROM (SELECT *, make_timestamp(us) AS m FROM rows) ORDER BY n"
        ).fetchall()
    ]
    (statement,) = parse(f"CREATE QUERY q AS SELECT {text} AS y FROM rows")
    kinds = {"x": Kind.DOUBLE, "t": Kind.TEXT, "m": Kind.TIMESTAMP}
    assert isinstance(statement, CreateQuery)
    scope = Scope(CATALOG, "q", {"rows": SourcePlan("rows", "rows", None, kinds)})
    expression = scope.bind(statement.select.expressions[0].this)
    columns = {"rows.x": column(Kind.DOUBLE, NUMBERS), "rows.t": texts(TEXTS), "rows.m": column(Kind.TIMESTAMP, TIMES)}
    found = Evaluation(columns, len(NUMBERS)).evaluate(expression).full(len(NUMBERS)).to_list()
    assert [rounded(value) for value in found] == [rounded(value) for value in expected]


def test_what_is_no_number_is_null() -> None:
    numbers = column(Kind.DOUBLE, [math.inf, -math.inf, 1.0])
    for text in ("x - x", "x + -x", "x / x", "x % 2", "ROUND(x, 400)", "SQRT(-ABS(x))", "LN(-ABS(x))", "x * 0"):
        (statement,) = parse(f"CREATE QUERY q AS SELECT {text} AS y FROM rows")
        assert isinstance(statement, CreateQuery)
        scope = Scope(CATALOG, "q", {"rows": SourcePlan("rows", "rows", None, {"x": Kind.DOUBLE})})
        expression = scope.bind(statement.select.expressions[0].this)
        found = Evaluation({"rows.x": numbers}, 3).evaluate(expression)
        assert not np.isnan(found.values).any(), text
        assert found.to_list()[0] is None, text


def test_a_function_of_ones_own_is_called_with_whole_columns() -> None:
    text = """
        CREATE FUNCTION hypotenuse AS 'numpy:hypot';
        CREATE QUERY q AS SELECT hypotenuse(value, 4) AS far FROM readings WHERE hypotenuse(value, 0) > 1
    """
    plan = make_program([("q", text)], 1_000_000, CATALOG).queries["q"]
    assert plan.columns == {"far": Kind.DOUBLE}
