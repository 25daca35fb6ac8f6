"""Which queries can be split over cores: those in which rows of different groups never meet."""

from __future__ import annotations

import pytest

from tsunagi.query.definitions import check, definitions_of
from tsunagi.query.placing import split_queries, together
from tsunagi.query.values import Kind

VIEW = "CREATE VIEW n AS SELECT sensor, group, COUNT(*) AS n FROM readings [RANGE 5 SECONDS] GROUP BY sensor, group;"
SITES = "CREATE VIEW s AS SELECT site, COUNT(*) AS n FROM readings [RANGE 5 SECONDS] GROUP BY site;"


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("SELECT sensor, value FROM readings ORDER WITHIN sensor", True),
        ("SELECT sensor, value FROM readings", False),  # all rows are in one order
        ("SELECT sensor, site, value FROM readings ORDER WITHIN site", False),
        ("SELECT group, AVG(value) AS mean FROM readings [RANGE 5 SECONDS] GROUP BY group ORDER WITHIN group", True),
        ("SELECT site, AVG(value) AS mean FROM readings [RANGE 5 SECONDS] GROUP BY site ORDER WITHIN site", False),
        ("SELECT COUNT(*) AS n FROM readings", False),
        ("SELECT r.sensor, n.n FROM readings r, n WHERE r.sensor = n.sensor ORDER WITHIN sensor", True),
        ("SELECT r.sensor, n.n FROM readings r, n WHERE r.group = n.group ORDER WITHIN sensor", True),
        ("SELECT r.sensor, n.n FROM readings r LEFT JOIN n ON r.sensor = n.sensor ORDER WITHIN sensor", True),
        ("SELECT r.sensor, n.n FROM readings r, n WHERE r.sensor = n.group ORDER WITHIN sensor", False),
        ("SELECT r.sensor, n.n FROM readings r, n WHERE r.value = n.n ORDER WITHIN sensor", False),
        ("SELECT a.sensor, b.value FROM readings a, readings b WHERE a.site = b.site ORDER WITHIN sensor", False),
        ("SELECT r.sensor, s.n FROM readings r, s WHERE r.site = s.site ORDER WITHIN sensor", False),
        ("SELECT group, value FROM readings [PARTITION BY site ROWS 3] ORDER WITHIN group", False),
        ("SELECT group, value FROM readings [ROWS 3] ORDER WITHIN group", True),
        ("SELECT UPPER(sensor) AS sensor, value FROM readings ORDER WITHIN sensor", False),
        ("SELECT DISTINCT group, value FROM readings ORDER WITHIN group", True),
    ],
)
def test_a_query_is_split_if_groups_never_meet(text: str, split: bool) -> None:
    whole = f"{VIEW} {SITES} CREATE QUERY q AS {text}"
    program = check(definitions_of(whole, "test"), 1_000_000, {"site": Kind.TEXT})
    assert split_queries(program) == ({"q"} if split else set())


def test_what_a_query_reads_runs_with_it() -> None:
    text = f"{VIEW} {SITES} CREATE QUERY q AS SELECT n.sensor FROM n; CREATE QUERY r AS SELECT s.site FROM s"
    program = check(definitions_of(text, "test"), 1_000_000, {"site": Kind.TEXT})
    assert together(program, ["q"]) == ["n", "q"]
    assert together(program, ["r", "q"]) == ["n", "s", "q", "r"]
