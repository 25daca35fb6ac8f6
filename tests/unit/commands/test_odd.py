"""Whatever is typed, a command ends with a line and an exit code, and without a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from confluent_kafka import KafkaError, KafkaException
from py4j.protocol import Py4JError

from tests.fuzz import odd
from tsunagi.cli import cli, main
from tsunagi.commands.options import OutputFile
from tsunagi.installation import import_path
from tsunagi.runtime import settings
from tsunagi.runtime.explain import FAILED, REFUSED, explain
from tsunagi.runtime.settings import ConfigError, load

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})


def ended(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["tsunagi", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


@pytest.mark.parametrize("path", [path for path, _ in odd.commands()], ids=" ".join)
def test_odd_options_end_in_a_line(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: object = None) -> None:
        raise ConfigError("as far as it goes without a configuration")

    monkeypatch.setattr(settings, "load", refuse)
    monkeypatch.setattr("tsunagi.demo.run.run", lambda _plan: 0)
    tried = 0
    for place in odd.places():
        if place.path != path:
            continue
        for value in [""] if place.flag else odd.VALUES:
            words = [*path, *odd.needed(path, place.option, {}), *([place.option] if place.option else [])]
            code = ended(monkeypatch, *words, *([] if place.flag else [value]))
            output = "".join(capsys.readouterr())
            assert code in {0, 1, 2}, (words, value)
            assert "Traceback" not in output
            assert "a fault of Tsunagi" not in output, (words, value, output)
            tried += 1
    assert tried or not dict(odd.commands())[path].params


@pytest.mark.parametrize("variable", list(odd.variables()))
def test_odd_settings_are_taken_or_refused_by_name(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in odd.VALUES:
        monkeypatch.setitem(os.environ, variable, value)
        try:
            load()
        except ConfigError:
            continue


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[kafka",
        b"a = 1\na = 2\n",
        b"state = 1979-05-27\n",
        b'state = "\\u0000"\n',
        b"[[kafka]]\n",
        b"slots = []\n",
        b"log_level = []\n",
        b"a = " + b"[" * 3000,
    ],
)
def test_odd_files_are_refused_by_name(content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tsunagi.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"tsunagi\.toml: "):
        load()


def test_a_directory_and_an_unreadable_place_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the configuration cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be read: Not a directory"):
        load(tmp_path / "file" / "tsunagi.toml")
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        load("a" * 5000)


def test_a_variable_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TSUNAGI_QUERY__OPERATORS", "[{use: recover}]")
    with pytest.raises(ConfigError, match=r"TSUNAGI_QUERY\.\.\.: found what is no JSON"):
        load()


def options(kind: type[OutputFile]) -> list[tuple[tuple[str, ...], str]]:
    return [
        (path, param.opts[0])
        for path, command in odd.commands(cli)
        for param in command.params
        if isinstance(param.type, kind) and isinstance(param, click.Option)
    ]


def test_every_file_that_a_command_writes_is_tried_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    (tmp_path / "file").touch()
    (tmp_path / "x").touch()
    outputs = options(OutputFile)
    assert {option for _, option in outputs} == {"--out", "--picture", "--csv", "--plot"}
    for path, option in outputs:
        assert ended(monkeypatch, *path, *odd.needed(path, option, {}), option, "file/out.bin") == 2
        assert "file/out.bin: cannot be written: " in capsys.readouterr().err
    monkeypatch.setattr(settings, "load", lambda: (_ for _ in ()).throw(ConfigError("enough")))
    (tmp_path / "kept.bin").write_bytes(b"kept")
    for name in ("kept.bin", "new/made.bin"):
        assert ended(monkeypatch, "fit", "x", "--out", name) == 2
    assert (tmp_path / "kept.bin").read_bytes() == b"kept"
    assert not (tmp_path / "new" / "made.bin").exists()


def test_numbers_of_options_have_two_ends() -> None:
    """A plain float lets infinity and NaN pass; `standby` and `recovery` check theirs as settings."""
    plain = {
        (path, param.opts[0])
        for path, command in odd.commands(cli)
        for param in command.params
        if type(param.type) in {click.types.FloatParamType, click.types.IntParamType, click.FloatRange}
    }
    assert {path[0] for path, _ in plain} <= {"standby", "recovery", "results", "replay"}
    ranges = [p.type for _, command in odd.commands(cli) for p in command.params if isinstance(p.type, click.IntRange)]
    assert not [kind for kind in ranges if kind.min is None or kind.max is None]


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (ConfigError("x.toml: bad"), "x.toml: bad", REFUSED),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a"), "a: No such file or directory", REFUSED),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files; raise the limit of open files", FAILED),
        (OSError(errno.ENOSPC, "No space left on device", "a"), "a: No space left on device; free some space", FAILED),
        (TimeoutError(), "no answer in time", FAILED),
        (ModuleNotFoundError("x", name="pyarrow"), "Python's module pyarrow is not installed here", FAILED),
        (MemoryError(), "too little free memory", FAILED),
        (KafkaException(KafkaError(KafkaError._RESOLVE, "Failed to resolve 'x'")), "Kafka: Failed to resolve", FAILED),
        (
            Py4JError("An error occurred while calling x.\n: java.lang.Exception: no\n\tat a"),
            "Spark: java.lang.Exception: no; look at [spark] master",
            FAILED,
        ),
        (KeyError("a"), "KeyError: 'a' (a fault of Tsunagi; TSUNAGI_DEBUG=1 shows where)", FAILED),
    ],
)
def test_an_error_is_told_in_a_line(error: Exception, text: str, code: int) -> None:
    ending = explain(error)
    assert text in ending.text
    assert ending.code == code
    assert ending.known == (not isinstance(error, KeyError))


def test_a_path_that_cannot_be_written_as_utf_8_is_told() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        "\udcff".encode()
    assert "found '\\udcff', which cannot be written as utf-8" in explain(caught.value).text


def test_a_fault_of_ours_shows_its_place_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise KeyError("a")

    monkeypatch.setattr(settings, "load", fail)
    assert ended(monkeypatch, "status") == 1
    assert capsys.readouterr().err == "tsunagi: KeyError: 'a' (a fault of Tsunagi; TSUNAGI_DEBUG=1 shows where)\n"
    monkeypatch.setitem(os.environ, "TSUNAGI_DEBUG", "1")
    assert ended(monkeypatch, "status") == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(settings, "load", interrupt)
    assert ended(monkeypatch, "status") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_path_with_other_letters_is_told_in_the_plainest_locale(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "utf8=0", "-m", "tsunagi.cli", "--config", "ä\udcff.toml", "status"]
    plain = {"LC_ALL": "C", "PATH": "/usr/bin:/bin", "PYTHONPATH": import_path(None), "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
    assert b"no such configuration file" in done.stderr
    assert b"Traceback" not in done.stderr
