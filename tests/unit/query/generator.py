"""Draws queries, and says of each what it means in SQL: the same relation at every instant, asked of a database.

The two texts are written side by side from one draw; nothing here comes from the code under test.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

SITES = ("north", "south", "east")
ROLES = ("in", "out")
COLUMNS = {
    "sensor": "text",
    "site": "text",
    "role": "text",
    "value": "number",
    "threshold": "number",
    "count": "whole",
}
"""Columns that queries may use, with what they hold."""


@dataclass
class Draw:
    """One query.

    Attributes:
        cql: the statements.
        sql: the database's query; its first column is the step, the others are those of the query.
    """

    cql: str
    sql: str


@dataclass
class Side:
    """A source: its alias, its columns by what they hold, and how it stands in both texts."""

    alias: str
    columns: dict[str, str]
    cql: str
    sql: str
    when: str
    period: int = 1


Drawn = tuple[str, str, dict[str, str], int]
"""A query in CQL, in SQL, its columns by what they hold, and its period."""


class Generator:
    """Draws queries over `readings`.

    Args:
        last: the last step.
    """

    def __init__(self, seed: int, last: int) -> None:
        self.chance = random.Random(seed)
        self.last = last
        self.rounds = True
        self.views: list[tuple[str, str, dict[str, str], int]] = []

    def draw(self) -> Draw:
        """Return one query, which may read a view."""
        statements, ctes = [], []
        self.views = []
        streaming = self.chance.choice(("", "", "RSTREAM", "ISTREAM", "DSTREAM"))
        # The database's own rounding hangs on the order of rows; what it calls a change must not be that.
        self.rounds = streaming not in ("ISTREAM", "DSTREAM")
        for number in range(self.chance.choice((0, 0, 0, 1, 1, 2))):
            name = f"v{number}"
            cql, sql, columns, period = self._query(view=True)
            statements.append(f"CREATE VIEW {name} AS {cql};")
            ctes.append(f"{name} AS ({sql})")
            self.views.append((name, name, columns, period))
        cql, sql, columns, period = self._query(view=False)
        names = ", ".join(f'"{name}"' for name in columns)
        if streaming in ("ISTREAM", "DSTREAM"):
            ctes.append(f"r AS ({sql})")
            now, before = f"SELECT step, {names} FROM r", f"SELECT step + {period}, {names} FROM r"
            first, second = (now, before) if streaming == "ISTREAM" else (before, now)
            sql = f"SELECT * FROM (({first}) EXCEPT ALL ({second})) d(step, {names}) WHERE step <= {self.last}"
        statements.append(f"CREATE QUERY q AS {streaming} ({cql})" if streaming else f"CREATE QUERY q AS {cql}")
        return Draw("\n".join(statements), (f"WITH {', '.join(ctes)} " if ctes else "") + sql)

    # ---- parts

    def _query(self, *, view: bool) -> Drawn:
        sides = [self._side("a")]
        if self.chance.random() < 0.35:
            sides.append(self._side("b"))
        period = math.gcd(*(side.period for side in sides))
        where = self._condition(sides) if self.chance.random() < 0.5 else ""
        join_cql = join_sql = ""
        outer = False
        if len(sides) == 2:
            on = self._equality(sides)
            if self.chance.random() < 0.3:
                on += f" AND {self._condition(sides)}"
            outer = self.chance.random() < 0.4
            if not outer and self.chance.random() < 0.5:
                join_cql = f", {sides[1].cql}"
                where = f"{on} AND {where}" if where else on
                join_sql = f" JOIN {sides[1].sql} ON {sides[1].when}"
            else:
                kind = "LEFT JOIN" if outer else "JOIN"
                join_cql = f" {kind} {sides[1].cql} ON {on}"
                join_sql = f" {kind} {sides[1].sql} ON {sides[1].when} AND {on}"
        grouped = self.chance.random() < 0.6
        from_cql = f"{sides[0].cql}{join_cql}"
        tail = f" WHERE {where}" if where else ""
        instants = f"(SELECT * FROM instants WHERE step % {period} = 0) i"
        if not grouped:
            return self._plain(sides, from_cql, tail, instants, join_sql, period)
        return self._grouped(sides, from_cql, where, instants, join_sql, period)

    def _plain(self, sides: list[Side], from_cql: str, tail: str, instants: str, join_sql: str, period: int) -> Drawn:
        distinct = "DISTINCT " if self.chance.random() < 0.2 else ""
        outputs: list[str] = []
        columns: dict[str, str] = {}
        for number in range(self.chance.randint(1, 3)):
            kind = self.chance.choice(("number", "text", "whole", "number"))
            outputs.append(f"{self._expression(sides, kind)} AS c{number}")
            columns[f"c{number}"] = kind
        text = ", ".join(outputs)
        cql = f"SELECT {distinct}{text} FROM {from_cql}{tail}"
        sql = f"SELECT {distinct}i.step, {text} FROM {instants} JOIN {sides[0].sql} ON {sides[0].when}{join_sql}{tail}"
        return cql, sql, columns, period

    def _grouped(
        self, sides: list[Side], from_cql: str, where: str, instants: str, join_sql: str, period: int
    ) -> Drawn:
        known = self._keys(sides)
        wanted = 0 if self.chance.random() < 0.15 else min(self.chance.choice((1, 1, 2)), len(known))
        keys = self.chance.sample(known, wanted)
        outputs: list[str] = []
        sql_outputs: list[str] = []
        columns: dict[str, str] = {}
        for number, (key, kind) in enumerate(keys):
            outputs.append(f"{key} AS k{number}")
            sql_outputs.append(f"{key} AS k{number}")
            columns[f"k{number}"] = kind
        measures = [self._measure(sides, bool(keys)) for _ in range(self.chance.randint(1, 3))]
        for number, (cql, sql, kind) in enumerate(measures):
            outputs.append(f"{cql} AS m{number}")
            sql_outputs.append(f"{sql} AS m{number}")
            columns[f"m{number}"] = kind
        having = having_sql = ""
        if keys and self.chance.random() < 0.3:
            cql, sql, kind = self._measure(sides, True, exact=True)
            limit = self.chance.choice((1, 2, 3, 10))
            having, having_sql = f" HAVING {cql} > {limit}", f" HAVING {sql} > {limit}"
        tail = f" WHERE {where}" if where else ""
        group = f" GROUP BY {', '.join(key for key, _ in keys)}" if keys else ""
        cql = f"SELECT {', '.join(outputs)} FROM {from_cql}{tail}{group}{having}"
        if keys:
            by = ", ".join(["i.step", *(key for key, _ in keys)])
            sql = (
                f"SELECT i.step, {', '.join(sql_outputs)} FROM {instants} JOIN {sides[0].sql} ON {sides[0].when}"
                f"{join_sql}{tail} GROUP BY {by}{having_sql}"
            )
        else:  # a query without GROUP BY has a row even where nothing is
            inner = (
                f"SELECT i.step AS at, 1 AS here, {self._all_columns(sides)} FROM {instants} "
                f"JOIN {sides[0].sql} ON {sides[0].when}{join_sql}{tail}"
            )
            renamed = [_flat(text, sides) for text in sql_outputs]
            sql = (
                f"SELECT i.step, {', '.join(renamed)} FROM {instants} LEFT JOIN ({inner}) x ON x.at = i.step "
                "GROUP BY i.step"
            )
        return cql, sql, columns, period

    def _all_columns(self, sides: list[Side]) -> str:
        names = [(side.alias, name) for side in sides for name in [*side.columns, "step", "rn"]]
        return ", ".join(f"{alias}.{name} AS {alias}_{name}" for alias, name in names)

    def _side(self, alias: str) -> Side:
        if self.views and self.chance.random() < 0.5:
            name, sql, columns, period = self.chance.choice(self.views)
            inner = f"(SELECT *, 0 AS rn FROM {sql}) {alias}"
            when = f"{alias}.step = floor(i.step / {period}) * {period}"
            return Side(alias, columns, f"{name} {alias}", inner, when, period)
        kind = self.chance.choice(("now", "now", "range", "range", "slide", "tumble", "rows", "unbounded"))
        columns = dict(COLUMNS)
        if kind == "now":
            text = self.chance.choice((f"readings {alias}", f"readings [NOW] {alias}"))
            return Side(alias, columns, text, f"readings {alias}", f"{alias}.step = i.step")
        if kind == "unbounded" and alias == "a":
            # Only grouped queries may have it; a long range is the same to the database.
            length = 10_000
            return Side(
                alias,
                columns,
                f"readings [RANGE {length} SECONDS] {alias}",
                f"readings {alias}",
                f"{alias}.step <= i.step AND {alias}.step > i.step - {length}",
            )
        if kind == "rows":
            return self._last_rows(alias, columns)
        length = self.chance.choice((2, 3, 5, 7, 8, 12))
        slide = {"range": 1, "unbounded": 1, "tumble": length}.get(kind) or self.chance.choice(
            [number for number in (1, 2, 3, 4, 5) if number <= length]
        )
        text = f"[RANGE {length} SECONDS]" if kind == "range" else f"[RANGE {length} SECONDS SLIDE {slide} SECONDS]"
        end = f"floor(i.step / {slide}) * {slide}"
        when = f"{alias}.step <= {end} AND {alias}.step > {end} - {length}"
        period = slide if kind not in ("range", "unbounded") else 1
        if kind == "unbounded":
            text = f"[RANGE {length} SECONDS]"
        return Side(alias, columns, f"readings {text} {alias}", f"readings {alias}", when, period)

    def _last_rows(self, alias: str, columns: dict[str, str]) -> Side:
        key = self.chance.choice(("sensor", "site"))
        length = self.chance.choice((1, 2, 4))
        slide = self.chance.choice((1, 1, 2)) if length > 1 else 1
        partition = f"PARTITION BY {key} " if key != "sensor" or self.chance.random() < 0.5 else ""
        sliding = f" SLIDE {slide}" if slide > 1 else ""
        numbered = f"SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY step, rn) AS o FROM readings"
        counted = (
            f"(SELECT j.step AS istep, x.*, "
            f"floor(max(x.o) OVER (PARTITION BY j.step, x.{key}) / {slide}) * {slide} AS c "
            f"FROM instants j JOIN ({numbered}) x ON x.step <= j.step) {alias}"
        )
        when = f"{alias}.istep = i.step AND {alias}.o <= {alias}.c AND {alias}.o > {alias}.c - {length}"
        return Side(alias, columns, f"readings [{partition}ROWS {length}{sliding}] {alias}", counted, when)

    def _of_kind(self, sides: list[Side], kind: str) -> list[str]:
        return [f"{side.alias}.{name}" for side in sides for name, holds in side.columns.items() if holds == kind]

    def _keys(self, sides: list[Side]) -> list[tuple[str, str]]:
        found = [(name, kind) for kind in ("text", "whole") for name in self._of_kind(sides, kind)]
        plain = [(f"{name} % 2", "whole") for name in self._of_kind(sides, "whole")[:1]]
        return found + plain or [
            (f"{sides[0].alias}.{next(iter(sides[0].columns))} IS NULL", "condition"),
            ("1 = 1", "condition"),
        ]

    def _equality(self, sides: list[Side]) -> str:
        for kind in self.chance.sample(("text", "whole"), 2):
            left = self._of_kind(sides[:1], kind)
            right = self._of_kind(sides[1:], kind)
            if left and right:
                one = self.chance.choice(left)
                same = [name for name in right if name[2:] == one[2:]]
                return f"{one} = {self.chance.choice(same or right)}"
        return "1 = 1"

    def _expression(self, sides: list[Side], kind: str, depth: int = 0) -> str:
        columns = self._of_kind(sides, kind)
        choose = self.chance.random()
        if kind == "text":
            base = self.chance.choice(columns) if columns else "'none'"
            if choose < 0.2:
                return f"UPPER({base})"
            if choose < 0.3:
                return f"COALESCE({base}, 'none')"
            if choose < 0.4:
                return f"SUBSTRING({base}, 2, 3)"
            if choose < 0.5 and depth < 2:
                return f"CASE WHEN {self._condition(sides, depth + 1)} THEN {base} ELSE 'other' END"
            if choose < 0.55:
                return f"{base} || '-' || {base}"
            return base
        if kind == "whole":
            base = self.chance.choice(columns) if columns else str(self.chance.randint(0, 5))
            if choose < 0.2:
                return f"{base} + {self.chance.randint(1, 9)}"
            if choose < 0.3:
                return f"{base} * 3 - {base}"
            if choose < 0.4:
                return f"LENGTH({self._expression(sides, 'text', 2)})"
            if choose < 0.5:
                return f"{base} % {self.chance.randint(0, 3)}"
            if choose < 0.6:
                return f"NULLIF({base}, 2)"
            return base
        base = self.chance.choice(columns) if columns else f"{self.chance.randint(0, 9)}.5"
        if depth > 1 or choose < 0.3:
            return base
        other = self._expression(sides, self.chance.choice(("number", "whole")), depth + 1)
        return self.chance.choice(
            (
                f"{base} + {other}",
                f"{base} - {other}",
                f"{base} * 2.0",
                f"{base} / {other}" if self.rounds else f"ROUND({base} / {other})",  # whole, so sums are exact
                f"-{base}",
                f"ABS({base})",
                f"ROUND({base})",
                f"FLOOR({base})",
                f"GREATEST({base}, {other})",
                f"LEAST({base}, {other})",
                f"COALESCE({base}, 0.5)",
                f"CASE WHEN {self._condition(sides, depth + 1)} THEN {base} END",
                f"CAST({other} AS DOUBLE)",
            )
        )

    def _condition(self, sides: list[Side], depth: int = 0) -> str:
        choose = self.chance.random()
        if depth < 2 and choose < 0.15:
            return f"({self._condition(sides, depth + 1)} OR {self._condition(sides, depth + 1)})"
        if depth < 2 and choose < 0.3:
            return f"({self._condition(sides, depth + 1)} AND {self._condition(sides, depth + 1)})"
        if depth < 2 and choose < 0.38:
            return f"NOT ({self._condition(sides, depth + 1)})"
        if choose < 0.45:
            return f"{self._expression(sides, 'text', 2)} = '{self.chance.choice(SITES + ROLES)}'"
        if choose < 0.52:
            return f"{self._expression(sides, 'text', 2)} LIKE '{self.chance.choice(('%o%', 'n_rth', 's%', '%'))}'"
        if choose < 0.58:
            return f"{self._expression(sides, 'text', 2)} IN ('north', 'in', 's1')"
        if choose < 0.65:
            kind = self.chance.choice(("text", "number"))
            return f"{self._expression(sides, kind, 2)} IS {self.chance.choice(('', 'NOT '))}NULL"
        if choose < 0.72:
            return f"{self._expression(sides, 'number', 2)} BETWEEN -3 AND {self.chance.randint(0, 9)}"
        one = self._expression(sides, "number", 2)
        other = self._expression(sides, "number", 2) if self.chance.random() < 0.5 else str(self.chance.randint(-5, 9))
        return f"{one} {self.chance.choice(('<', '<=', '>', '>=', '<>', '='))} {other}"

    def _measure(self, sides: list[Side], keyed: bool, *, exact: bool = False) -> tuple[str, str, str]:
        """Return (in CQL, in SQL, what it holds)."""
        here = "here IS NOT NULL"
        condition = self._condition(sides, 1) if self.chance.random() < 0.25 else ""
        shown = f" FILTER (WHERE {condition})" if condition else ""
        parts = [item for item in (condition, "" if keyed else here) if item]
        hidden = f" FILTER (WHERE {' AND '.join(f'({part})' for part in parts)})" if parts else ""
        name = self.chance.choice(
            ("COUNT", "COUNT(*)", "SUM", "AVG", "MIN", "MAX", "STDDEV", "FIRST", "LAST", "DISTINCT", "SUM")
        )
        if exact and name in ("STDDEV", "AVG", "FIRST", "LAST"):
            name = "COUNT(*)"
        if not self.rounds and name in ("STDDEV", "AVG"):
            name = "SUM"
        if name == "COUNT(*)":
            return f"COUNT(*){shown}", f"COUNT(*){hidden}", "whole"
        kind = self.chance.choice(("number", "whole"))
        if name in ("COUNT", "DISTINCT"):
            argument = self._expression(sides, self.chance.choice(("number", "text", "whole")), 1)
            inner = argument if name == "COUNT" else f"DISTINCT {argument}"
            return f"COUNT({inner}){shown}", f"COUNT({inner}){hidden}", "whole"
        bounded = not any("UNBOUNDED" in side.cql for side in sides)
        if not exact and (name in ("FIRST", "LAST") or (name in ("MIN", "MAX") and bounded)):  # HAVING compares numbers
            kind = self.chance.choice(("number", "whole", "text"))
        argument = self._expression(sides, kind, 1)
        if name in ("FIRST", "LAST"):
            order = ", ".join(
                f"{side.alias}.step {'DESC' * (name == 'LAST')}, {side.alias}.rn {'DESC' * (name == 'LAST')}"
                for side in sides
            )
            if len(sides) > 1 or self.views:
                name = "MAX"  # rows of a join have no order among themselves
                if kind == "text" and not bounded:
                    return f"COUNT({argument}){shown}", f"COUNT({argument}){hidden}", "whole"
            else:
                parts.append(f"{argument} IS NOT NULL")
                hidden = f" FILTER (WHERE {' AND '.join(f'({part})' for part in parts)})"
                return f"{name}({argument}){shown}", f"first({argument} ORDER BY {order}){hidden}", kind
        held = "number" if name in ("AVG", "STDDEV") else kind
        sql = f"{name}({argument}){hidden}"
        if name == "SUM":
            sql = f"CAST({sql} AS {'BIGINT' if kind == 'whole' and not _is_float(argument) else 'DOUBLE'})"
        return f"{name}({argument}){shown}", sql, held


def _is_float(argument: str) -> bool:
    return "." in argument.replace("a.", "").replace("b.", "") or "/" in argument


def _flat(text: str, sides: list[Side]) -> str:
    for side in sides:
        text = text.replace(f"{side.alias}.", f"{side.alias}_")
    return text
