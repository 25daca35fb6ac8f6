"""The file of users: who is in it, whose password is right, and what is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from tsunagi.cli import cli
from tsunagi.console.access import UsersError, check, read_users, remove_user, session_secret, write_user

PASSWORD = "correct horse"


def test_a_user_is_written_checked_changed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user(path, "anna", "viewer", PASSWORD)
    write_user(path, "ben", "viewer", PASSWORD)
    write_user(path, "anna", "operator", "another password")
    users = read_users(path)
    assert {name: user.role for name, user in users.items()} == {"anna": "operator", "ben": "viewer"}
    assert check(users, "anna", "another password") == users["anna"]
    assert check(users, "anna", PASSWORD) is None
    assert check(users, "nobody", PASSWORD) is None
    assert PASSWORD not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    remove_user(path, "anna")
    assert list(read_users(path)) == ["ben"]
    with pytest.raises(UsersError, match="no user anna, expected one of ben"):
        remove_user(path, "anna")


@pytest.mark.parametrize("line", ["anna", "anna:root:$argon2id$x", "anna:viewer:plain", ":viewer:$argon2id$x"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"\n{line}\n")
    with pytest.raises(UsersError, match=r"users, line 2: found .* expected NAME:ROLE:HASH"):
        read_users(path)


@pytest.mark.parametrize(("name", "password"), [("a:b", PASSWORD), ("", PASSWORD), (" a", PASSWORD), ("a", "short")])
def test_names_and_passwords_that_cannot_be_used_are_refused(tmp_path: Path, name: str, password: str) -> None:
    with pytest.raises(UsersError, match="expected"):
        write_user(tmp_path / "users", name, "viewer", password)


def test_the_secret_of_sessions_outlives_the_process(tmp_path: Path) -> None:
    assert session_secret(tmp_path) == session_secret(tmp_path)
    assert session_secret(tmp_path) != session_secret(tmp_path / "other")


def test_the_command_writes_users_and_asks_for_the_password(tmp_path: Path) -> None:
    (tmp_path / "tsunagi.toml").write_text(f'[console]\nusers = "{tmp_path / "users"}"\n')
    config = ["--config", str(tmp_path / "tsunagi.toml"), "console", "user", "anna"]
    done = CliRunner().invoke(cli, [*config, "--role", "operator"], input=f"{PASSWORD}\n{PASSWORD}\n")
    assert (done.exit_code, "anna is an operator" in done.output) == (0, True), done.output
    assert check(read_users(tmp_path / "users"), "anna", PASSWORD) is not None
    assert CliRunner().invoke(cli, [*config, "--remove"]).exit_code == 0
    assert read_users(tmp_path / "users") == {}
