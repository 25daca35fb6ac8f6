"""An error of a query says where it is, what was found and what was expected, and proposes the near name."""

from __future__ import annotations

import pytest

from tests.unit.query.oracle import CATALOG
from tsunagi.query.errors import QueryError
from tsunagi.query.planning import make_program

QUERY = "CREATE QUERY q AS "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "SELECT 1",
            "f.sql, line 1, column 1: found 'SELECT', expected CREATE STREAM, QUERY, VIEW, FUNCTION or AGGREGATE",
        ),
        (
            "CREATE TABLE t (a INT)",
            "f.sql, line 1, column 8: found 'TABLE', expected STREAM, QUERY, VIEW, FUNCTION or AGGREGATE",
        ),
        (QUERY + "SELECT value\nFROM", "line 2, column 1: found the end of the text, expected the name of a stream"),
        (QUERY + "SELECT (value FROM readings", "column 33: found 'FROM': Expecting )"),
        (QUERY + "SELECT 'value FROM readings", "f.sql: found text that does not end"),
        (QUERY + "SELECT value,, sd FROM readings", "column 32: found ',', expected a column"),
        (QUERY + "SELECT value, FROM readings", "column 33: found 'FROM', expected a column"),
        (
            QUERY + "SELECT value FROM readings [RANGE 1 FORTNIGHT]",
            "found 'FORTNIGHT', expected SECONDS, MINUTES, HOURS or DAYS",
        ),
        (
            QUERY + "SELECT value FROM readings [RANGE 1500 MILLISECONDS]",
            "RANGE: found 1.5 s, expected a multiple of a step, 1 s",
        ),
        (QUERY + "SELECT value FROM readings [RANGE 2 SECONDS SLIDE 3 SECONDS]", "SLIDE is longer than the window"),
        (
            QUERY + "SELECT a.value FROM readings a, readings b [RANGE 2 SECONDS SLIDE 3 SECONDS]",
            "column 63: found 'RANGE': SLIDE is longer than the window",
        ),
        (
            QUERY + "SELECT a.value FROM readings a, readings b [NWO]",
            "column 63: found 'NWO', expected RANGE, ROWS, NOW",
        ),
        (QUERY + "SELECT value FROM readings, ", "found the end of the text, expected the name of a stream or a query"),
        (QUERY + "SELECT value FROM readings [ROWS 0]", "expected a whole number above zero"),
        (QUERY + "SELECT value FROM (SELECT 1)", "column 37: found '(', expected a name"),
        (QUERY + "ISTREAM SELECT value FROM readings", "column 27: found 'SELECT', expected ("),
        (QUERY + "SELECT value FROM readings LIMIT 3", "CQL has no LIMIT"),
        (QUERY + "SELECT value FROM readings ORDER BY value", "CQL has no ORDER BY: results are in the order of time"),
        (QUERY + "SELECT senser FROM readings", "column 26: column senser is unknown; readings has sensor"),
        (QUERY + "SELECT senser FROM readings", "did you mean sensor?"),
        (QUERY + "SELECT value FROM reading", "column 37: stream or query reading is unknown; did you mean readings?"),
        (QUERY + "SELECT a.value FROM readings b", "found a.value, but FROM has no a"),
        (
            QUERY + "SELECT value FROM readings a, readings b",
            "column value is ambiguous; expected one of a.value, b.value",
        ),
        (QUERY + "SELECT a.value FROM readings a, readings a", "a stands twice in FROM"),
        (QUERY + "SELECT flor(value) FROM readings", "function flor is unknown; did you mean FLOOR?"),
        (QUERY + "SELECT sensor + 1 FROM readings", "+: found TEXT, BIGINT, expected two numbers"),
        (QUERY + "SELECT value FROM readings WHERE value", "WHERE: found 'value' of type DOUBLE, expected a condition"),
        (QUERY + "SELECT sensor, COUNT(*) FROM readings", "column sensor is neither in GROUP BY nor in an aggregate"),
        (QUERY + "SELECT SUM(sensor) FROM readings", "SUM: found TEXT, expected a number"),
        (QUERY + "SELECT value FROM readings WHERE COUNT(*) > 1", "COUNT: an aggregate cannot stand in WHERE"),
        (
            QUERY + "SELECT a.value FROM readings a RIGHT JOIN readings b ON a.sensor = b.sensor",
            "found RIGHT JOIN, expected JOIN",
        ),
        (QUERY + "SELECT value, value FROM readings", "column value stands twice in SELECT; expected an alias by AS"),
        (QUERY + "SELECT value FROM readings ORDER WITHIN sensor", "ORDER WITHIN: column sensor is not in SELECT"),
        (QUERY + "SELECT value FROM readings [RANGE UNBOUNDED]", "would keep every row for ever"),
        (QUERY + "SELECT value FROM readings; CREATE QUERY q AS SELECT sd FROM readings", "query q exists already"),
        (
            "CREATE VIEW v AS SELECT value FROM readings; CREATE QUERY q AS SELECT value FROM v [NOW]",
            "v is a relation, which has no window",
        ),
        (QUERY + "SELECT REGEXP_MATCHES(sensor, '(') AS x FROM readings", "found '(', expected a regular expression"),
        (QUERY + "SELECT DATE_TRUNC('era', time) AS x FROM readings", "DATE_TRUNC: found 'era', expected one of"),
        ("CREATE STREAM s (a TEXT KEY, b TEXT KEY)", "expected at most one TEXT column with KEY, found 2"),
        ("CREATE STREAM s (a BIGINT KEY)", "expected at most one TEXT column with KEY, found 1"),
        ("CREATE STREAM s (a TEXT KEY, b TEXTS)", "column b: found type TEXTS, expected"),
        ("CREATE FUNCTION f AS 'nowhere:f'", "nowhere:f: No module named 'nowhere'"),
        ("CREATE FUNCTION abs AS 'math:fabs'", "function abs exists already"),
    ],
)
def test_an_error_says_where_and_what(text: str, said: str) -> None:
    with pytest.raises(QueryError) as caught:
        make_program([("f.sql", text)], 1_000_000, CATALOG)
    assert said in str(caught.value)


def test_the_examples_of_the_reference_are_understood() -> None:
    text = """
        CREATE STREAM trades (symbol TEXT KEY, price DOUBLE, volume BIGINT);  -- of several columns
        CREATE VIEW minute_count AS SELECT sensor, COUNT(*) AS n FROM readings [RANGE 1 MINUTE] GROUP BY sensor;
        CREATE QUERY high AS
            SELECT sensor, COUNT(*) AS n FROM readings [RANGE 1 MINUTE] WHERE value > threshold GROUP BY sensor;
        CREATE QUERY high_rate AS ISTREAM (
            SELECT h.sensor, h.n / m.n AS rate FROM minute_count m, high h WHERE m.sensor = h.sensor
        );
        CREATE QUERY losses AS SELECT out.sensor, inflow.value - out.value AS leak FROM readings out, readings inflow
            WHERE out.role = 'out' AND inflow.role = 'in' AND out.site = inflow.site;
        CREATE QUERY vwap AS
            SELECT symbol, SUM(price * volume) / SUM(volume) AS vwap FROM trades [ROWS 100] GROUP BY symbol;
        CREATE QUERY alarms AS SELECT site, AVG(value) AS mean, MAX(value)
            FROM readings [RANGE 5 MINUTES SLIDE 1 MINUTE] GROUP BY site HAVING AVG(value) > 80 ORDER WITHIN site;
    """
    program = make_program([("f.sql", text)], 1_000_000, CATALOG)
    assert list(program.queries) == ["minute_count", "high", "high_rate", "losses", "vwap", "alarms"]
    assert [plan.name for plan in program.published] == ["high", "high_rate", "losses", "vwap", "alarms"]
    assert program.queries["alarms"].period == 60
    assert list(program.queries["alarms"].columns) == ["site", "mean", "max"]
    assert str(program.queries["losses"].joins[0].left[0]) == "out.site"
