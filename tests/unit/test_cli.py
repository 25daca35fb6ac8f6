"""The command line: help is quick and complete, errors are one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.fuzz import odd
from tsunagi import __version__
from tsunagi.cli import cli, main
from tsunagi.runtime.settings import CONFIG_VARIABLE

COMMANDS = (
    "edge",
    "gateway",
    "secondary",
    "scaler",
    "spark",
    "setup",
    "up",
    "status",
    "down",
    "results",
    "demo",
    "replay",
    "fit",
)


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
        assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def helps(group: click.Group, path: tuple[str, ...] = (), width: int = 80) -> Iterator[str]:
    """Yield the help of a group and of every command below it, as a terminal of this width shows it."""
    yield CliRunner().invoke(cli, [*path, "--help"], prog_name="tsunagi", terminal_width=width).output
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from helps(command, (*path, name), width)
        else:
            shown = CliRunner().invoke(cli, [*path, name, "--help"], prog_name="tsunagi", terminal_width=width)
            yield shown.output


def test_help_keeps_its_lines() -> None:
    texts = list(helps(cli))
    assert len(texts) > len(COMMANDS)
    assert not [text for text in texts if "\\b" in text]
    assert "\n  tsunagi scaler scale --auto\n" in "".join(texts)


def test_every_page_of_help_fits_80_columns_and_cuts_no_sentence() -> None:
    lines = [line for text in helps(cli) for line in text.splitlines()]
    assert not [line for line in lines if len(line) > 80 or "..." in line.replace("[ARGS]...", "")]


def test_every_option_says_what_it_is() -> None:
    for path, command in odd.commands():
        assert command.help, path
        assert command.help.splitlines()[0].endswith("."), path
        for param in command.params:
            if isinstance(param, click.Option):
                assert len((param.help or "").split()) > 2, (path, param.opts)


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "pyspark", "confluent_kafka", "pydantic", "rich")
    code = f"""import sys
from tsunagi.cli import cli
cli.main(["--help"], standalone_mode=False)
print([name for name in {heavy!r} if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "none.toml", "gateway", "run", "--node", "n"], "none.toml: no such configuration file"),
        (["--config", "bad.toml", "status"], "bad.toml: [kafka.server] unknown key"),
        (["fit", "d.csv", "--sensors", "s.csv", "--out", "m.bin"], "s.csv, line 1: column 'edge' is missing"),
        (["gateway", "run"], "Missing option '--node'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "bad.toml").write_text('[kafka]\nserver = "x"\n')
    (tmp_path / "d.csv").write_text("a\n1\n")
    (tmp_path / "s.csv").write_text("sensor\na\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CONFIG_VARIABLE, "")  # and put back what `--config` sets
    monkeypatch.setattr(sys, "argv", ["tsunagi", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_version_is_told_where_nothing_is_installed_too(capsys: pytest.CaptureFixture[str]) -> None:
    """An image holds the sources without installing them, so there is no metadata of a distribution to ask."""
    with pytest.raises(SystemExit):
        cli(["--version"])
    assert capsys.readouterr().out == f"tsunagi, version {__version__}\n"
