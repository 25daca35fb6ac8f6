"""Reads CQL: the grammar of sqlglot's SQL, extended by streams, windows, ISTREAM and its kin, and ORDER WITHIN.

CQL is described in Arasu, Babu, Widom, "The CQL continuous query language", VLDB Journal 15 (2006). What Tsunagi takes
of it is in docs/reference/cql.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

from sqlglot import exp, parser, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tsunagi.query.errors import Place, QueryError

Streaming = Literal["", "istream", "dstream", "rstream"]
"""How a relation becomes a stream: the rows that are new, those that are gone, or all rows at every instant. "" means
that the query does not say."""
MICROSECONDS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
}
"""The units of time, by name, in microseconds; a name may also be in the plural."""


class WindowSpec(exp.Expression):
    """A window in brackets behind the name of a stream.

    Its arguments: `kind` is "now", "range", "rows" or "unbounded"; `length` and `slide` are microseconds or rows;
    `keys` are the columns of PARTITION BY.
    """

    arg_types: ClassVar[dict[str, bool]] = {"kind": True, "length": False, "slide": False, "keys": False}


@dataclass(frozen=True, slots=True)
class ColumnDeclaration:
    """A column of CREATE STREAM: its name, the name of its type, and whether it is the key."""

    name: str
    kind: str
    key: bool
    place: Place


@dataclass(frozen=True, slots=True)
class CreateStream:
    """CREATE STREAM name (column TYPE [KEY], ...)."""

    name: str
    columns: tuple[ColumnDeclaration, ...]
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class CreateQuery:
    """CREATE QUERY name AS ..., or CREATE VIEW, whose rows only other queries see.

    Attributes:
        select: the SELECT as sqlglot has read it.
        within: the columns of ORDER WITHIN.
        text: the statement as it was written.
    """

    name: str
    published: bool
    streaming: Streaming
    select: exp.Select
    within: tuple[exp.Expression, ...]
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class CreateFunction:
    """CREATE FUNCTION name AS 'module:function', or CREATE AGGREGATE."""

    name: str
    target: str
    text: str
    place: Place
    aggregate: bool = False


Statement = CreateStream | CreateQuery | CreateFunction


def parse(text: str, source: str = "query") -> list[Statement]:
    """Read statements, which semicolons separate.

    Args:
        source: the name of the text in errors, for example its file.

    Raises:
        QueryError: the text is not CQL.
    """
    try:
        found = Cql().tokenize(text)
    except TokenError as error:
        raise QueryError(Place(source), f"found text that does not end or cannot be read: {error}") from None
    reading = Cql.Parser(error_level=ErrorLevel.IMMEDIATE, dialect=Cql())
    reading.source, reading.text = source, text
    try:
        reading.parse(found, text)
    except ParseError as error:
        details = error.errors[0] if error.errors else {}
        place = Place(source, int(details.get("line") or 0), _column(text, details))
        raise QueryError(place, _problem(details, str(error))) from None
    return reading.statements


def _column(text: str, details: dict[str, Any]) -> int:
    """Return the column at which the highlighted text begins; sqlglot's `col` is where a token ends."""
    return max(1, int(details.get("col") or 1) - len(details.get("highlight") or "x") + 1) if text else 1


def _problem(details: dict[str, Any], message: str) -> str:
    description = str(details.get("description") or message).rstrip(".")
    highlight = details.get("highlight")
    return description if not highlight or "found" in description else f"found {highlight!r}: {description}"


class Cql(Dialect):
    """The dialect of Tsunagi's queries."""

    NORMALIZE_FUNCTIONS = False

    class Tokenizer(tokens.Tokenizer):
        KEYWORDS: ClassVar[dict[str, TokenType]] = {**tokens.Tokenizer.KEYWORDS, "ORDER WITHIN": TokenType.CLUSTER_BY}
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(parser.Parser):
        FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}  # all are looked up when names are bound
        NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            name: parse
            for name, parse in parser.Parser.FUNCTION_PARSERS.items()
            if name in ("CAST", "EXTRACT", "TRY_CAST")
        }

        source = "query"
        text = ""

        def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as sqlglot's own
            super().__init__(*args, **options)
            self.statements: list[Statement] = []

        def _parse_statement(self) -> exp.Expr | None:
            first = self._curr
            if not first:
                return None
            if self._match(TokenType.SEMICOLON):  # sqlglot keeps one that a comment follows
                return exp.Null()
            if not self._match(TokenType.CREATE):
                self._fail(f"found {first.text!r}, expected CREATE STREAM, QUERY, VIEW, FUNCTION or AGGREGATE", first)
            if self._match_text_seq("STREAM"):
                self.statements.append(self._create_stream(first))
            elif self._match_text_seq("QUERY"):
                self.statements.append(self._create_query(first, published=True))
            elif self._match(TokenType.VIEW):
                self.statements.append(self._create_query(first, published=False))
            elif self._match(TokenType.FUNCTION):
                self.statements.append(self._create_function(first))
            elif self._match_text_seq("AGGREGATE"):
                self.statements.append(self._create_function(first, aggregate=True))
            else:
                self._fail(f"found {self._word()}, expected STREAM, QUERY, VIEW, FUNCTION or AGGREGATE")
            return exp.Null()  # what was read is in `statements`

        def _fail(self, problem: str, token: Token | None = None) -> NoReturn:
            """Raise the error at a token; None = at the next one."""
            if token is None:
                self.raise_error(problem)
            else:
                self.raise_error(problem, token)
            raise AssertionError(problem)  # sqlglot has raised: its level is IMMEDIATE

        def _place(self, token: Token) -> Place:
            return Place(self.source, token.line, max(1, token.col - len(token.text) + 1))

        def _word(self) -> str:
            return repr(self._curr.text) if self._curr else "the end of the text"

        def _name(self, what: str) -> str:
            found = self._parse_id_var(any_token=False)
            if found is None:
                self._fail(f"found {self._word()}, expected the name of a {what}")
            return str(found.name)

        def _expect(self, *words: str) -> None:
            if not self._match_text_seq(*words):
                self._fail(f"found {self._word()}, expected {' '.join(words)}")

        def _text(self, first: Token) -> str:
            """Return the statement that begins at a token and has been read to its end, as it was written."""
            if self._curr and self._curr.token_type != TokenType.SEMICOLON:
                self._fail(f"found {self._word()}, expected the end of the statement")
            end = self._curr.start - 1 if self._curr else self._prev.end
            return self.text[first.start : end + 1].strip()

        def _create_stream(self, first: Token) -> CreateStream:
            name = self._name("stream")
            self._expect("(")
            columns = []
            while True:
                token = self._curr
                column = self._name("column")
                kind = self._advance_word("the type of a column")
                columns.append(ColumnDeclaration(column, kind, bool(self._match_text_seq("KEY")), self._place(token)))
                if not self._match(TokenType.COMMA):
                    break
            self._expect(")")
            return CreateStream(name, tuple(columns), self._text(first), self._place(first))

        def _advance_word(self, what: str) -> str:
            if not self._curr or self._curr.token_type in (TokenType.COMMA, TokenType.R_PAREN):
                self._fail(f"found {self._word()}, expected {what}")
            word = str(self._curr.text).upper()
            self._advance()
            return word

        def _create_function(self, first: Token, *, aggregate: bool = False) -> CreateFunction:
            name = self._name("aggregate" if aggregate else "function")
            self._expect("AS")
            if not self._match(TokenType.STRING):
                self._fail(f"found {self._word()}, expected 'module:function' in quotes")
            return CreateFunction(name, self._prev.text, self._text(first), self._place(first), aggregate=aggregate)

        def _create_query(self, first: Token, *, published: bool) -> CreateQuery:
            name = self._name("query")
            self._expect("AS")
            streaming: Streaming = ""
            for word in ("ISTREAM", "DSTREAM", "RSTREAM"):
                if self._match_text_seq(word):
                    streaming = word.lower()  # type: ignore[assignment]
                    break
            if streaming:
                self._expect("(")
            select = self._parse_select()
            if streaming:
                self._expect(")")
            if not isinstance(select, exp.Select):
                self._fail("expected a SELECT")
            within: exp.Expression | None = select.args.get("cluster")
            if within is None and self._match(TokenType.CLUSTER_BY):
                within = exp.Cluster(expressions=self._parse_csv(self._parse_column))
            columns = tuple(within.expressions) if within is not None else ()
            return CreateQuery(name, published, streaming, select, columns, self._text(first), self._place(first))

        def _parse_csv(self, parse_method: Callable[[], Any], sep: TokenType = TokenType.COMMA) -> list[Any]:
            """Parse a list; sqlglot would take a comma with nothing behind it for the end."""
            found = [parse_method()]
            while self._match(sep):
                token = self._curr
                found.append(parse_method())
                if found[-1] is None:
                    self._fail(
                        f"found {self._word()}, expected a column or a value behind the comma", token or self._prev
                    )
            return [item for item in found if item is not None]

        # ---- windows

        def _parse_join(self, *args: Any, **options: Any) -> exp.Join | None:  # noqa: ANN401 - as sqlglot's own
            """Parse a join; behind a comma there must be a source, and what is wrong with it is the error to tell."""
            if self._match(TokenType.COMMA):
                return self.expression(exp.Join(this=self._parse_table()))
            return super()._parse_join(*args, **options)

        def _parse_table(self, *args: Any, **options: Any) -> exp.Expr | None:  # noqa: ANN401 - as sqlglot's own
            if self._curr and self._curr.token_type == TokenType.L_PAREN:
                self._fail("found '(', expected a name: give a query of its own a name by CREATE VIEW")
            token = self._curr
            name = self._parse_id_var(any_token=False)
            if name is None:
                self._fail(f"found {self._word()}, expected the name of a stream or a query")
            table = exp.Table(this=name)
            table.update_positions(token)
            if self._match(TokenType.L_BRACKET):
                table.set("when", self._window())
            alias = self._parse_table_alias(alias_tokens=self.TABLE_ALIAS_TOKENS)
            if alias:
                table.set("alias", alias)
            if table.args.get("when") is None and self._match(TokenType.L_BRACKET):
                table.set("when", self._window())
            return table

        def _window(self) -> WindowSpec:
            keys: list[exp.Expr] = []
            if self._match(TokenType.PARTITION_BY) or self._match_text_seq("PARTITION", "BY"):
                keys = self._parse_csv(self._parse_column)
            token = self._curr
            slide: int | None = None
            if not keys and self._match_text_seq("NOW"):
                found = WindowSpec(kind="now")
            elif not keys and (self._match(TokenType.RANGE) or self._match_text_seq("RANGE")):
                if self._match_text_seq("UNBOUNDED"):
                    found = WindowSpec(kind="unbounded")
                else:
                    length = self._duration()
                    slide = self._duration() if self._match_text_seq("SLIDE") else None
                    found = WindowSpec(kind="range", length=length, slide=slide)
            elif self._match(TokenType.ROWS) or self._match_text_seq("ROWS"):
                length = self._count()
                slide = self._count() if self._match_text_seq("SLIDE") else None
                found = WindowSpec(kind="rows", length=length, slide=slide, keys=keys)
            else:
                self._fail(f"found {self._word()}, expected RANGE, ROWS, NOW or PARTITION BY ... ROWS")
            found.update_positions(token)
            if not self._match(TokenType.R_BRACKET):
                self._fail(f"found {self._word()}, expected ]")
            if slide is not None and slide > found.args["length"]:
                self._fail("SLIDE is longer than the window: rows would be in no window", token)
            return found

        def _count(self) -> int:
            if not self._match(TokenType.NUMBER) or not self._prev.text.isdigit() or int(self._prev.text) < 1:
                self._fail(f"found {self._word()}, expected a whole number above zero")
            return int(self._prev.text)

        def _duration(self) -> int:
            if not self._match(TokenType.NUMBER):
                self._fail(f"found {self._word()}, expected a number and a unit of time")
            number = float(self._prev.text)
            unit = self._curr.text.upper() if self._curr else ""
            unit = unit.removesuffix("S")
            if unit not in MICROSECONDS:
                self._fail(f"found {self._word()}, expected SECONDS, MINUTES, HOURS or DAYS")
            self._advance()
            length = number * MICROSECONDS[unit]
            if length < 1 or length != int(length):
                self._fail("expected a whole number of microseconds above zero", self._prev)
            return int(length)


def place_of(node: exp.Expr, source: str) -> Place:
    """Return where a part of a statement begins, as far as sqlglot has kept it."""
    for part in node.walk():
        line, column = part.meta.get("line"), part.meta.get("col")
        if line:
            length = part.meta.get("end", 0) - part.meta.get("start", 0)
            return Place(source, line, max(1, column - length))
    return Place(source)


def alias_of(node: exp.Expr) -> str:
    """Return the alias of a projection or of a table; "" if it has none."""
    return str(node.alias) if node.args.get("alias") is not None else ""


__all__: Sequence[str] = [
    "ColumnDeclaration",
    "CreateFunction",
    "CreateQuery",
    "CreateStream",
    "Statement",
    "Streaming",
    "WindowSpec",
    "alias_of",
    "parse",
    "place_of",
]
