"""NEXMark's queries q0 to q5, q7 and q8 in CQL, and what each of them means in SQL: at every instant, of a database.

Where the benchmark keeps all people and auctions for ever (q3, q4), a window of ten minutes stands here.
"""

from __future__ import annotations

STREAMS = """
CREATE STREAM person (id TEXT KEY, name TEXT, city TEXT, state TEXT);
CREATE STREAM auction (id TEXT KEY, seller TEXT, category BIGINT, initial DOUBLE, expires TIMESTAMP);
CREATE STREAM bid (auction TEXT KEY, bidder TEXT, price DOUBLE);
"""

CQL = {
    "q0": "CREATE QUERY q0 AS SELECT auction, bidder, price, time FROM bid",
    "q1": "CREATE QUERY q1 AS SELECT auction, bidder, 0.908 * price AS price, time FROM bid",
    "q2": "CREATE QUERY q2 AS SELECT auction, price FROM bid WHERE CAST(auction AS BIGINT) % 123 = 0",
    "q3": """
        CREATE QUERY q3 AS ISTREAM (SELECT p.name, p.city, p.state, a.id
          FROM auction a [RANGE 10 MINUTES], person p [RANGE 10 MINUTES]
          WHERE a.seller = p.id AND a.category = 10 AND p.state IN ('OR', 'ID', 'CA'))""",
    "q4": """
        CREATE VIEW sold AS SELECT a.id, a.category, MAX(b.price) AS price
          FROM auction a [RANGE 10 MINUTES SLIDE 10 SECONDS], bid b [RANGE 10 MINUTES SLIDE 10 SECONDS]
          WHERE a.id = b.auction AND b.time BETWEEN a.time AND a.expires GROUP BY a.id, a.category;
        CREATE QUERY q4 AS SELECT category, AVG(price) AS mean FROM sold GROUP BY category""",
    "q5": """
        CREATE VIEW counts AS SELECT auction, COUNT(*) AS n
          FROM bid [RANGE 10 SECONDS SLIDE 2 SECONDS] GROUP BY auction;
        CREATE VIEW most AS SELECT MAX(n) AS n FROM counts;
        CREATE QUERY q5 AS SELECT c.auction, c.n FROM counts c, most m WHERE c.n = m.n""",
    "q7": """
        CREATE VIEW top AS SELECT MAX(price) AS price FROM bid [RANGE 10 SECONDS SLIDE 10 SECONDS];
        CREATE QUERY q7 AS SELECT b.auction, b.price, b.bidder FROM bid b [RANGE 10 SECONDS SLIDE 10 SECONDS], top t
          WHERE b.price = t.price""",
    "q8": """
        CREATE QUERY q8 AS SELECT DISTINCT p.id, p.name
          FROM person p [RANGE 10 SECONDS SLIDE 10 SECONDS], auction a [RANGE 10 SECONDS SLIDE 10 SECONDS]
          WHERE p.id = a.seller""",
}
"""The statements of each query; its views stand before it."""


def sql_of(per_s: int) -> dict[str, str]:
    """Return what a database must answer: the step, and the columns of the query.

    Args:
        per_s: steps a second.
    """
    long, short = 600 * per_s, 10 * per_s

    def at(every_s: int) -> str:
        """Return the instants of a query, in steps, as a table i(t)."""
        every = every_s * per_s
        return f"(SELECT unnest(range($first // {every} + 1, $last // {every} + 1)) * {every} AS t) i"

    return {
        "q0": "SELECT step, auction, bidder, price, time FROM bid",
        "q1": "SELECT step, auction, bidder, 0.908::DOUBLE * price, time FROM bid",
        "q2": "SELECT step, auction, price FROM bid WHERE auction::BIGINT % 123 = 0",
        "q3": f"""
            SELECT greatest(a.step, p.step), p.name, p.city, p.state, a.id
            FROM auction a JOIN person p ON a.seller = p.id
            WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA') AND abs(a.step - p.step) < {long}""",
        "q4": f"""
            WITH sold AS (SELECT i.t, a.id, a.category, max(b.price) AS price FROM {at(10)}
              JOIN auction a ON a.step > i.t - {long} AND a.step <= i.t
              JOIN bid b ON b.step > i.t - {long} AND b.step <= i.t AND b.auction = a.id
                AND b.time BETWEEN a.time AND a.expires GROUP BY ALL)
            SELECT t, category, avg(price) FROM sold GROUP BY ALL""",
        "q5": f"""
            WITH counts AS (SELECT i.t, b.auction, count(*) AS n FROM {at(2)}
              JOIN bid b ON b.step > i.t - {short} AND b.step <= i.t GROUP BY ALL)
            SELECT t, auction, n FROM counts QUALIFY n = max(n) OVER (PARTITION BY t)""",
        "q7": f"""
            SELECT i.t, b.auction, b.price, b.bidder FROM {at(10)}
              JOIN bid b ON b.step > i.t - {short} AND b.step <= i.t
            QUALIFY b.price = max(b.price) OVER (PARTITION BY i.t)""",
        "q8": f"""
            SELECT DISTINCT i.t, p.id, p.name FROM {at(10)} JOIN person p ON p.step > i.t - {short} AND p.step <= i.t
              JOIN auction a ON a.step > i.t - {short} AND a.step <= i.t AND a.seller = p.id""",
    }
