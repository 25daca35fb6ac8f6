"""Rows in a table of PostgreSQL, each once and corrected when its truth comes late.

Rows are copied into a temporary table and go from there into the table, in one transaction with the positions of the
partitions that they came from. So a sink, a database or a network that is killed anywhere leaves each row once. The
positions stand in the table `tsunagi_positions`; a write whose positions are not the ones before it is undone, so that
an instance that was taken for dead changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.errors import DataError, IntegrityError

from tsunagi.query.values import Kind
from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import FencedError, RefusedError, Sink, SinkAwayError, SinkError, sink_secret
from tsunagi.sink.feed import CORRECTED, READING_SCHEMA
from tsunagi.sink.rows import Advance, Place, Schema, SinkBatch, SinkPosition, SinkRows

POSITIONS = "tsunagi_positions"
"""The table of positions; all sinks of a database share it."""
_TYPES = {
    Kind.DOUBLE: "double precision",
    Kind.BIGINT: "bigint",
    Kind.BOOLEAN: "boolean",
    Kind.TEXT: "text",
    Kind.TIMESTAMP: "timestamp with time zone",
}
"""The type of a column, as PostgreSQL names it."""
BEFORE = "_before"
"""What is put behind the name of a table that another one has taken the place of."""
_CONNECT_S = 10
"""Longest wait for a connection, in seconds."""
_STALE_MS = 30_000
"""A connection whose packets nobody answers is given up after so long, in milliseconds."""
_TRUE_COLUMNS = ("value", "sd", "bound", "quality")
"""The columns of a reading that its late truth takes the place of."""
_MEASURED = ("exact", "unmodelled")
"""The qualities of values that were measured in time; a late reading never takes their place."""


class PostgresSink(Sink):
    """Writes rows into a table, which it makes, and whose columns it adds when a query gets new ones.

    Args:
        suffix: what is put behind the names of the sink and of its table while the table is made anew.

    Raises:
        SinkError: the settings cannot be used.
    """

    keeps_positions = True

    def __init__(self, wanted: SinkSettings, suffix: str = "") -> None:
        self._wanted = wanted.postgres
        self._sink = wanted.name + suffix
        self._schema, _, name = (wanted.postgres.table or wanted.query).rpartition(".")
        self.name = name + suffix
        self.table = self._beside(self.name)
        self._shown = f"{self._schema}.{self.name}".lstrip(".")
        self._connection: psycopg.Connection | None = None
        self._known: dict[str, str] = {}  # column -> type of the table
        self._staging: tuple[str, ...] = ()  # the columns of the temporary table
        self._password()

    def open(self) -> None:
        try:
            password = self._password()
        except SinkError as error:  # the file may be about to be written anew
            raise SinkAwayError(str(error)) from None
        try:
            self._connection = psycopg.connect(
                host=self._wanted.host,
                port=self._wanted.port,
                dbname=self._wanted.database,
                user=self._wanted.user,
                password=password or None,
                sslmode=self._wanted.tls,
                sslrootcert=self._wanted.ca_file or None,
                connect_timeout=_CONNECT_S,
                tcp_user_timeout=_STALE_MS,
                application_name=f"tsunagi-sink-{self._sink}",
            )
            with self._connection.transaction():
                self._connection.execute(
                    sql.SQL(
                        "CREATE TABLE IF NOT EXISTS {} (sink text, topic text, part integer, next bigint NOT NULL, "
                        "topic_id text NOT NULL, PRIMARY KEY (sink, topic, part))"
                    ).format(sql.Identifier(POSITIONS))
                )
        except psycopg.Error as error:
            raise self._away(error) from None
        self._forget()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def positions(self, places: Collection[Place]) -> Mapping[Place, SinkPosition]:
        query = sql.SQL("SELECT topic, part, next, topic_id FROM {} WHERE sink = %s").format(sql.Identifier(POSITIONS))
        try:
            connection = self._living()
            with connection.transaction():
                found = connection.execute(query, (self._sink,)).fetchall()
        except psycopg.Error as error:
            raise self._away(error) from None
        kept = {(topic, part): SinkPosition(offset, topic_id) for topic, part, offset, topic_id in found}
        return {place: kept[place] for place in places if place in kept}

    def write(self, batch: SinkBatch) -> None:
        try:
            connection = self._living()
            with connection.transaction():
                for number, part in enumerate(batch.merged()):
                    if number:
                        connection.execute("DELETE FROM tsunagi_rows")
                    self._prepare(connection, part.schema)
                    self._upsert(connection, part)
                for place, advance in batch.advances.items():
                    self._advance(connection, place, advance)
        except (DataError, IntegrityError) as error:
            self._forget()
            raise RefusedError(_words(error)) from None
        except psycopg.Error as error:
            self._forget()
            raise self._away(error) from None
        except FencedError:
            self._forget()
            raise

    # ---- the table

    def _forget(self) -> None:
        """Forget what a transaction that was undone may have made."""
        self._known, self._staging = {}, ()

    def _prepare(self, connection: psycopg.Connection, schema: Schema) -> None:
        """Make the table, or add the columns that it lacks.

        Raises:
            SinkError: it has a column of another type.
        """
        if all(column.name in self._known for column in schema.columns):
            self._stage(connection, schema)
            return
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(_TYPES[column.kind]))
            for column in schema.columns
        )
        key = sql.SQL(", ").join(map(sql.Identifier, schema.key))
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(self.table, columns, key)
        )
        known = self._columns(connection)
        for column in schema.columns:
            expected = _TYPES[column.kind]
            if column.name not in known:
                connection.execute(
                    sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {} {}").format(
                        self.table, sql.Identifier(column.name), sql.SQL(expected)
                    )
                )
            elif known[column.name] != expected:
                raise SinkError(
                    f"sink {self._sink}: table {self._shown}: column {column.name}: found {known[column.name]}, "
                    f"expected {expected}; name another table ([sinks.postgres] table)"
                )
        self._hypertable(connection, schema)
        self._known = self._columns(connection)
        self._stage(connection, schema)

    def _columns(self, connection: psycopg.Connection) -> dict[str, str]:
        found = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            (self.table.as_string(connection),),
        )
        return {str(name): str(kind) for name, kind in found.fetchall()}

    def _hypertable(self, connection: psycopg.Connection, schema: Schema) -> None:
        """Have TimescaleDB divide the table by time, where its extension is there and the table is new."""
        time = schema.columns[0].name
        there = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'").fetchone()
        if there is None or time not in schema.key or self._known:
            return
        connection.execute(
            "SELECT create_hypertable(%s::regclass, %s::name, if_not_exists => true, migrate_data => true)",
            (self.table.as_string(connection), time),
        )

    def _stage(self, connection: psycopg.Connection, schema: Schema) -> None:
        """Make the temporary table that rows are copied into."""
        if self._staging == schema.names:
            return
        connection.execute("DROP TABLE IF EXISTS pg_temp.tsunagi_rows")
        chosen = sql.SQL(", ").join(map(sql.Identifier, schema.names))
        connection.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE tsunagi_rows ON COMMIT DELETE ROWS AS SELECT {} FROM {} WITH NO DATA"
            ).format(chosen, self.table)
        )
        self._staging = schema.names

    # ---- rows and positions

    def _upsert(self, connection: psycopg.Connection, part: SinkRows) -> None:
        schema = part.schema
        names = sql.SQL(", ").join(map(sql.Identifier, schema.names))
        # A row may come twice in one batch, as after a restart of Spark; of a truth the first one counts.
        rows = {schema.key_of(row): row for row in (reversed(part.rows) if part.correcting else part.rows)}
        with connection.cursor() as cursor:
            with cursor.copy(sql.SQL("COPY tsunagi_rows ({}) FROM STDIN (FORMAT BINARY)").format(names)) as copy:
                copy.set_types([_TYPES[column.kind] for column in schema.columns])
                for row in rows.values():
                    copy.write_row(row)
            cursor.execute(self._statement(schema, correcting=part.correcting))

    def _statement(self, schema: Schema, *, correcting: bool) -> sql.Composed:
        """Return the statement that brings rows from the temporary table into the table.

        The outcome does not depend on whether a row or its late truth is written first.
        """
        key = sql.SQL(", ").join(map(sql.Identifier, schema.key))
        names = sql.SQL(", ").join(map(sql.Identifier, schema.names))
        others = [name for name in schema.names if name not in schema.key]
        condition: sql.Composable = sql.SQL("")
        if correcting:
            others = list(_TRUE_COLUMNS)
            settled = sql.SQL(", ").join(map(sql.Literal, (*_MEASURED, CORRECTED)))
            condition = sql.SQL(" WHERE held.quality NOT IN ({})").format(settled)
        changes = []
        for name in others:
            new = sql.SQL("EXCLUDED.{}").format(sql.Identifier(name))
            if not correcting and schema.query == READING_SCHEMA.query and name in _TRUE_COLUMNS:
                # A value that was measured in time counts before a late one, and that before an estimate.
                new = sql.SQL(
                    "CASE WHEN held.quality = {} AND EXCLUDED.quality NOT IN ({}) THEN held.{} ELSE {} END"
                ).format(
                    sql.Literal(CORRECTED),
                    sql.SQL(", ").join(map(sql.Literal, _MEASURED)),
                    sql.Identifier(name),
                    new,
                )
            changes.append(sql.SQL("{} = {}").format(sql.Identifier(name), new))
        return sql.SQL(
            "INSERT INTO {} AS held ({}) SELECT {} FROM tsunagi_rows ON CONFLICT ({}) DO UPDATE SET {}{}"
        ).format(self.table, names, names, key, sql.SQL(", ").join(changes), condition)

    def _advance(self, connection: psycopg.Connection, place: Place, advance: Advance) -> None:
        """Store a position.

        Raises:
            FencedError: another one than that before this batch was stored.
        """
        after = advance.after
        if advance.before is None:
            done = connection.execute(
                sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING").format(
                    sql.Identifier(POSITIONS)
                ),
                (self._sink, *place, after.offset, after.topic_id),
            )
        else:
            done = connection.execute(
                sql.SQL(
                    "UPDATE {} SET next = %s, topic_id = %s WHERE sink = %s AND topic = %s AND part = %s AND next = %s"
                ).format(sql.Identifier(POSITIONS)),
                (after.offset, after.topic_id, self._sink, *place, advance.before.offset),
            )
        if done.rowcount != 1:
            raise FencedError(f"{place[0]}/{place[1]}: the position in {POSITIONS} is not {advance.before}")

    # ---- a table that is made anew beside the one in use

    def begin(self, held: str, since: datetime, positions: Mapping[Place, SinkPosition]) -> None:
        """Make the table, with the rows of another one before a time, and store the positions to go on from.

        Args:
            held: the name of the table in use.
            since: the time; the rows from then on are to be made anew.
            positions: where the records of these rows begin.
        """
        connection = self._living()
        with connection.transaction():
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.table))
            there = connection.execute("SELECT to_regclass(%s)", (self._beside(held).as_string(connection),)).fetchone()
            if there != (None,):
                made = sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(self.table, self._beside(held))
                connection.execute(made)
                time = "time" if "time" in self._columns(connection) else "result_time"
                connection.execute(
                    sql.SQL("INSERT INTO {} SELECT * FROM {} WHERE {} < %s").format(
                        self.table, self._beside(held), sql.Identifier(time)
                    ),
                    (since,),
                )
            connection.execute(
                sql.SQL("DELETE FROM {} WHERE sink = %s").format(sql.Identifier(POSITIONS)), (self._sink,)
            )
            for place, position in positions.items():
                self._advance(connection, place, Advance(None, position))

    def swap(self, held: str, sink: str) -> None:
        """Put the table in the place of the one in use, which stays beside it under another name.

        A sink that runs finds that its positions have changed, and goes on from those of the new table.

        Args:
            held: the name of the table in use.
            sink: the name of the sink that writes it.
        """
        connection = self._living()
        positions = sql.Identifier(POSITIONS)
        before = f"{held}{BEFORE}"
        with connection.transaction():
            connection.execute(sql.SQL("SELECT 1 FROM {} WHERE sink = %s FOR UPDATE").format(positions), (sink,))
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._beside(before)))
            for name, new in ((held, before), (self.name, held)):
                connection.execute(
                    sql.SQL("ALTER TABLE IF EXISTS {} RENAME TO {}").format(self._beside(name), sql.Identifier(new))
                )
            connection.execute(sql.SQL("DELETE FROM {} WHERE sink = %s").format(positions), (sink,))
            connection.execute(sql.SQL("UPDATE {} SET sink = %s WHERE sink = %s").format(positions), (sink, self._sink))

    # ---- the connection

    def _beside(self, name: str) -> sql.Identifier:
        """Return a table of the schema of this one."""
        return sql.Identifier(self._schema, name) if self._schema else sql.Identifier(name)

    def _living(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            raise SinkAwayError(f"{self._where}: the connection is closed")
        return self._connection

    def _password(self) -> str:
        given = sink_secret(self._wanted.password_file, f"[[sinks]] {self._sink}: [sinks.postgres] password_file")
        return given or os.environ.get("PGPASSWORD", "")

    @property
    def _where(self) -> str:
        return f"PostgreSQL {self._wanted.host}:{self._wanted.port}/{self._wanted.database}"

    def _away(self, error: psycopg.Error) -> SinkAwayError:
        return SinkAwayError(f"{self._where}: {_words(error)}")


def _words(error: psycopg.Error) -> str:
    """Return what the database said, in one line."""
    return " ".join(str(error).split())
