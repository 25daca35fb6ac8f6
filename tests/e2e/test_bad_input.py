"""Input that cannot be used: a named error in one line, or a counted outcome that stands somewhere; never a silence."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.stream import Inputs
from tests.e2e.system import PATIENCE_S, Rig
from tsunagi.broker.broker import Broker
from tsunagi.local.topics import make_topics
from tsunagi.runtime.birth import born
from tsunagi.runtime.log import DEAD_LETTERS
from tsunagi.runtime.messages import DeadLetter
from tsunagi.system import processes
from tsunagi.system.topics import read_partition

REFUSED = 2


@pytest.fixture
def rig(tmp_path: Path, broker: Broker, inputs: Inputs) -> Iterator[Rig]:
    """A system that is not started, on files of its own."""
    data, sensors, model = (Path(shutil.copy(path, tmp_path)) for path in (inputs.data, inputs.sensors, inputs.model))
    copied = Inputs(data, sensors, model, inputs.table)
    rig = Rig(tmp_path / "system", copied, servers=broker.servers, prefix=f"{uuid.uuid4().hex[:12]}.")
    try:
        yield rig
    finally:
        rig.close()


def run(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "tsunagi.cli", *arguments],
        env=os.environ | {"TSUNAGI_CONFIG": str(rig.config)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def damage_model(rig: Rig) -> str:
    rig.inputs.model.write_bytes(rig.inputs.model.read_bytes()[:-100] + bytes(100))
    return str(rig.inputs.model)


def change(file: Path, found: str, instead: str) -> None:
    before = file.read_text()
    assert found in before
    file.write_text(before.replace(found, instead))


def misspell_key(rig: Rig) -> str:
    change(rig.config, "window =", "windw =")
    return "[steps.windw] unknown key (found 10)"


def wrong_value(rig: Rig) -> str:
    change(rig.config, "slide = 2", "slide = 20")
    return "slide = 20 is greater than window = 10"


def contradict(rig: Rig) -> str:
    change(rig.inputs.sensors, "s00,", "s0x,")
    return "the sensors table contradicts the data: no column for 's0x'"


def tangle(rig: Rig) -> str:
    lines = rig.inputs.data.read_text().splitlines()
    lines[7] = "word" + lines[7][lines[7].index(",") :]
    rig.inputs.data.write_text("\n".join(lines) + "\n")
    return f"{rig.inputs.data}, line 8, column 's00': found 'word'"


@pytest.mark.parametrize(
    ("spoil", "command"),
    [
        (damage_model, "gateway run --node gw-1"),
        (misspell_key, "gateway run --node gw-1"),
        (wrong_value, "up"),
        (contradict, "edge run --edge edge-1"),
        (tangle, "edge run --edge edge-1"),
    ],
)
def test_what_cannot_be_used_ends_the_command_with_its_name(
    rig: Rig, spoil: Callable[[Rig], str], command: str
) -> None:
    if spoil is tangle:  # an edge reads its rows when it knows where they go
        make_topics(rig.settings)
        place(rig)
    said = spoil(rig)
    ended = run(rig, *command.split())
    assert ended.returncode == REFUSED, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def place(rig: Rig) -> None:
    """Let the scaler write the placement, without which an edge waits."""
    processes.start(rig.settings, rig.config, "scaler", "scaler", ["scaler", "run"])
    rig.listen()
    rig.wait(lambda: any(line.get("event") == "placement" for line in rig.lines("scaler")), "a placement")


def test_a_column_that_the_table_does_not_have_stands_in_dead_letters(rig: Rig, tmp_path: Path) -> None:
    make_topics(rig.settings)
    place(rig)
    lines = rig.inputs.data.read_text().splitlines()[:41]
    rig.inputs.data.write_text("\n".join([lines[0] + ",stranger", *(f"{line},7.5" for line in lines[1:])]) + "\n")
    ended = run(rig, "edge", "run", "--edge", "edge-1")
    assert ended.returncode == 0, ended.stderr
    letters = [DeadLetter.FromString(record.value or b"") for record in read_partition(rig.log, DEAD_LETTERS, 0)]
    assert [(letter.reason, letter.value) for letter in letters] == [("unknown-sensor", b"7.5")]
    assert b"stranger" in letters[0].key


def test_a_checkpoint_that_cannot_be_written_is_named(rig: Rig) -> None:
    make_topics(rig.settings)
    place(rig)
    rig.start_edge("edge-1")
    for node in ("gw-1", "sec-1"):
        processes.start(rig.settings, rig.config, node, "worker", ["gateway", "run", "--node", node])
    with subprocess.Popen(
        [sys.executable, "-m", "tsunagi.cli", "spark", "run"],
        env=os.environ | {"TSUNAGI_CONFIG": str(rig.config), "PYTHONUNBUFFERED": "1"},
        stderr=subprocess.PIPE,  # no file: the limit below would hold for a log as well
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    ) as driver:
        processes.record(rig.settings.state, processes.Process("spark", "spark", driver.pid, born(driver.pid)))
        try:
            rig.wait((rig.settings.spark.checkpoint / "commits" / "1").exists, "two batches")
            resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, (1, 1))  # a full disk, without root
            _, said = driver.communicate(timeout=PATIENCE_S)
        finally:
            processes.kill(rig.process("spark"))
    assert driver.returncode == 1
    assert "state cannot be written: File too large" in said
    assert str(rig.settings.spark.checkpoint) in said
