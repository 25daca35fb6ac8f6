"""A real PostgreSQL gets each row once, corrected, whatever is killed; what it refuses stands in dead-letters."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.postgres import USER, Postgres
from tests.integration.sinks import BEGIN_STEP, PATIENCE_S, Ledger, SinkWorld, moment, query_block, wait_until
from tsunagi.runtime.settings import KafkaSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    found = Postgres(tmp_path_factory.mktemp("postgres") / "data")
    found.start()
    yield found
    found.stop()


@pytest.fixture
def world(tmp_path: Path, kafka_settings: KafkaSettings, server: Postgres) -> Iterator[Any]:
    worlds: list[SinkWorld] = []
    with server.session() as session:
        for (table,) in session.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
            session.execute(f'DROP TABLE "{table}"')

    def make(*sinks: dict[str, Any], **more: Any) -> SinkWorld:
        secret = tmp_path / "password"
        secret.write_text("first\n", encoding="utf-8")
        given = [
            {"kind": "postgres", "postgres": server.settings(password_file=str(secret))} | sink
            for sink in sinks or ({"name": "history"},)
        ]
        worlds.append(SinkWorld(tmp_path / "world", kafka_settings, *given, **more))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def table(server: Postgres, name: str = "readings") -> dict[tuple[Any, str], Ledger]:
    with server.session() as session:
        if session.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,):
            return {}
        rows = session.execute(f"SELECT time, sensor, value, bound, quality, q1, step FROM {name}").fetchall()
    return {(time, sensor): Ledger(*others) for time, sensor, *others in rows}


def test_each_row_is_there_once_and_corrected_though_sink_and_database_are_killed(world: Any, server: Postgres) -> None:
    system = world({"name": "history", "batch_rows": 100})
    system.write(20)
    sink = system.start("history")
    for kill in range(6):
        least = 100 * kill
        wait_until(lambda least=least: len(table(server)) > least, f"nothing comes after {kill} kills")  # type: ignore[misc]
        system.write(15)
        if kill % 2:
            server.kill()
            server.start()
        else:
            sink.send_signal(signal.SIGKILL)
            sink.wait(10)
            sink = system.start("history")
    wait_until(lambda: table(server) == system.rows, "the table does not become the ledger")
    wait_until(lambda: not system.fault("sink-history"), "it is not ready though all is written")
    sink.send_signal(signal.SIGTERM)
    assert sink.wait(30) == 0
    assert not system.letters()
    assert {"exact", "bounded", "corrected"} <= {row.quality for row in system.rows.values()}


def test_instances_share_the_partitions_and_take_over_from_one_that_is_killed(world: Any, server: Postgres) -> None:
    system = world()
    first, _ = system.start("history", "one"), system.start("history", "two")
    system.write(10)
    wait_until(lambda: table(server) == system.rows, "the table does not become the ledger")
    wait_until(lambda: min(len(parts(system, node)) for node in ("one", "two")) > 0, "one instance has no partition")
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    system.write(10)
    wait_until(lambda: table(server) == system.rows, "nobody writes what the killed instance had")
    assert sorted(parts(system, "two")) == ["late/0", "results/0", "results/1"]


def parts(system: SinkWorld, node: str) -> list[str]:
    """Return the partitions that an instance wrote last, by its log."""
    lines = [json.loads(line) for line in system.said(node).splitlines() if '"writes"' in line]
    return list(lines[-1]["partitions"]) if lines else []


def test_a_row_that_the_database_refuses_stands_in_dead_letters_and_does_not_hold_up_others(
    world: Any, server: Postgres
) -> None:
    system = world({"name": "alarms", "query": "alarms"})
    for step in range(BEGIN_STEP, BEGIN_STEP + 30):
        words = ["fine", "a\0b" if step % 10 == 3 else "good"]
        system.append(query_block("alarms", step, [("what", "TEXT", words), ("level", "DOUBLE", [1.0, 2.0])]))
    system.flush()
    system.start("alarms")
    wait_until(lambda: len(system.letters()) == 3, f"letters: {system.letters()}")
    with server.session() as session:
        wait_until(lambda: counted(session) == 57, "rows are missing")
        found = session.execute("SELECT result_time, what, level FROM alarms WHERE result_step = %s", (BEGIN_STEP + 3,))
        assert found.fetchall() == [(moment(BEGIN_STEP + 3), "fine", 1.0)]
    letter = system.letters()[0]
    assert (letter.topic, letter.partition, letter.reason) == ("results", 0, "refused")
    assert "invalid byte sequence" in letter.detail
    assert b'"what": "a\\u0000b"' in letter.value


def counted(session: Any) -> int:
    found = session.execute("SELECT to_regclass('alarms')").fetchone()
    return 0 if found == (None,) else session.execute("SELECT count(*) FROM alarms").fetchone()[0]


def test_a_password_that_changes_costs_lag_until_the_file_has_the_new_one(
    world: Any, server: Postgres, tmp_path: Path
) -> None:
    system = world()
    system.start("history")
    system.write(5)
    wait_until(lambda: table(server) == system.rows, "the table does not become the ledger")
    try:
        with server.session() as session:
            session.execute(f"ALTER USER {USER} PASSWORD 'second'")
            session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tsunagi%'"
            )
        system.write(5)
        wait_until(
            lambda: "password authentication failed" in system.fault("sink-history"), system.fault("sink-history")
        )
        (tmp_path / "password").write_text("second\n", encoding="utf-8")
        wait_until(lambda: not system.fault("sink-history"), "it does not take the new password")
    finally:
        with server.session(password="second") as session:
            session.execute(f"ALTER USER {USER} PASSWORD 'first'")
    wait_until(lambda: table(server) == system.rows, "the table does not become the ledger")
    assert "second" not in system.said("sink-history")


def test_a_query_with_a_new_column_gets_it_and_one_of_another_type_is_refused(world: Any, server: Postgres) -> None:
    system = world({"name": "means", "query": "means"})
    system.append(query_block("means", BEGIN_STEP, [("mean", "DOUBLE", [1.5, 2.5])]))
    system.append(query_block("means", BEGIN_STEP + 1, [("mean", "DOUBLE", [3.5]), ("n", "BIGINT", [7])], run=7))
    system.flush()
    sink = system.start("means")
    with server.session() as session:
        wait_until(lambda: session.execute("SELECT to_regclass('means')").fetchone() != (None,), "no table")
        wait_until(lambda: session.execute("SELECT count(*) FROM means").fetchone() == (3,), "rows are missing", 10.0)
        found = session.execute("SELECT mean, n, result_run, result_row FROM means ORDER BY result_step, result_row")
        assert found.fetchall() == [(1.5, None, 0, 0), (2.5, None, 0, 1), (3.5, 7, 7, 0)]
    system.append(query_block("means", BEGIN_STEP + 2, [("mean", "TEXT", ["high"])], run=3))
    system.flush()
    assert sink.wait(PATIENCE_S) == 2
    assert "table means: column mean: found double precision, expected text" in system.said("sink-means")


def test_a_table_is_made_anew_beside_the_one_in_use_and_swapped_while_the_sink_runs(
    world: Any, server: Postgres
) -> None:
    system = world()
    system.start("history")
    system.write(60)
    wait_until(lambda: table(server) == system.rows, "the table does not become the ledger")
    since = moment(BEGIN_STEP + 30)
    with server.session() as session:
        session.execute("UPDATE readings SET value = -1 WHERE time >= %s", (since,))
        session.execute("UPDATE readings SET q1 = 7 WHERE time < %s", (since,))
    said = subprocess.run(
        [sys.executable, "-m", "tsunagi.cli", "sink", "rebuild", "--sink", "history", "--from", since.isoformat()[:19]],
        env=system.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert said.returncode == 0, said.stderr
    assert "sink history: the new table is in use" in said.stdout
    system.write(20)
    wanted = {key: row._replace(q1=7) if key[0] < since else row for key, row in system.rows.items()}
    wait_until(lambda: table(server) == wanted, "the new table does not become the ledger")
    assert len(table(server, "readings_before")) == 60 * 40
    with server.session() as session:
        assert session.execute("SELECT DISTINCT sink FROM tsunagi_positions").fetchall() == [("history",)]
