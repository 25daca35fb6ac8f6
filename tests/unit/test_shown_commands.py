"""The commands that documents, help texts and messages show exist, with the options that are shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.unit.test_documents import PAGES, ROOT, text_of
from tsunagi.cli import cli

TARGETS = frozenset(re.findall(r"(?m)^([a-z][a-z0-9-]*):", text_of(ROOT / "Makefile")))
SOURCES = [path for folder in ("services", "spark", "deploy") for path in (ROOT / folder).rglob("*.py")]
SPAN = re.compile(r"`((?:\.venv/bin/)?(?:tsunagi|make) [^`]+)`")
LINE = re.compile(r"(?m)^\$ (.+(?:\\\n.+)*)$")


def wrong(shown: str) -> str:
    """Return what a shown command says that is not so; "" = nothing."""
    words = shlex.split(shown.replace("\\\n", " "), comments=True)
    if words[0] == "make":
        names = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z0-9-]*", word)]
        return next((f"make has no target {name}" for name in names if name not in TARGETS), "")
    command: click.Command = cli
    for place, word in enumerate(words[1:], 1):
        if isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word) and words[place - 1] != "--config":
            if word not in command.commands:
                return f"{'tsunagi' if command is cli else command.name} has no command {word}"
            command = command.commands[word]
        elif re.match(r"--?[a-z]", word):
            name = word.partition("=")[0]
            known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
            if name not in known | {"-h", "--help"}:
                return f"{command.name} has no option {name}"
    return ""


def pieces(line: str) -> Iterator[str]:
    """Yield the parts of a shell line that are commands of Tsunagi or make."""
    for part in re.split(r"\s*(?:\||&&|;)\s+", line.partition(" # ")[0]):
        bare = re.sub(r"^(?:[A-Z_]+=\S* )+", "", re.sub(r"\s*(?:[<>]|2>).*$", "", part)).removeprefix(".venv/bin/")
        if bare.startswith(("tsunagi ", "make ")):
            yield bare


def shown(text: str) -> list[str]:
    lines = [piece for line in LINE.findall(text) for piece in pieces(line)]
    spans = [piece for span in SPAN.findall(text) if "..." not in span for piece in pieces(" ".join(span.split()))]
    return lines + spans


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_the_commands_of_a_page_exist(page: Path) -> None:
    assert [f"{command}: {fault}" for command in shown(text_of(page)) if (fault := wrong(command))] == []


def test_the_commands_that_the_code_shows_exist() -> None:
    found = {command: str(path) for path in SOURCES for command in shown(text_of(path).replace("``", "`"))}
    assert len(found) > 30
    assert [f"{path}: {command}: {fault}" for command, path in found.items() if (fault := wrong(command))] == []


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("tsunagi upp", "tsunagi has no command upp"),
        ("tsunagi results --fromat csv", "results has no option --fromat"),
        ("tsunagi recovery sett --eps 1", "recovery has no command sett"),
        ("make demmo", "make has no target demmo"),
        ("tsunagi --config out/x.toml results --format csv", ""),
        ('make chaos ARGS="--target gateway"', ""),
    ],
)
def test_a_wrong_command_is_found(command: str, fault: str) -> None:
    assert wrong(command) == fault
