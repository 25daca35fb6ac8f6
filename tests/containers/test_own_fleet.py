"""`make up PROJECT=folder OPERATORS=folder`: the fleet of a folder of `tsunagi init`, with an operator of one's own."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.containers.project import ROOT, ComposeProject, docker

EDGES = {"s0": "Halle", "s1": "halle", "s2": "2.Ost", "s3": "edge-1"}
"""The edge of each sensor: names that differ in letters that a service's name does not have, and one of the demo's."""
PATIENCE_S = 120.0
OPERATOR = """
from dataclasses import replace


class Thousandfold:
    def __init__(self, config):
        pass

    def process(self, frame):
        return [replace(frame, mean=frame.mean * 1000)]

    def context(self):
        return b""

    def restore(self, context):
        pass
"""


SINK = '\n[[sinks]]\nname = "files"\nkind = "lake"\nlake = { files_s = 5 }\n'


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeProject]:
    top = tmp_path_factory.mktemp("own")
    folder, operators = top / "Werk 1", top / "mine"
    folder.mkdir()
    operators.mkdir()
    (operators / "thousandfold.py").write_text(OPERATOR)
    rows = [",".join(str(1 + (number + place) % 5) for place in range(len(EDGES))) for number in range(300)]
    (top / "history.csv").write_text("\n".join([",".join(EDGES), *rows]) + "\n")
    table = [f"{sensor},{edge},plant" for sensor, edge in (EDGES | {"s0": "earlier"}).items()]
    (folder / "sensors.csv").write_text("\n".join(["sensor,edge,group", *table]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "tsunagi.cli", "init", str(folder), "--csv", str(top / "history.csv")],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'services'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    config = folder / "tsunagi.toml"
    text = config.read_text().replace("[query]\n", '[query]\noperators = [{ use = "thousandfold:Thousandfold" }]\n')
    config.write_text(f"{text}repeat = true\n{SINK}")
    sensors = (folder / "sensors.csv").read_text()
    (folder / "sensors.csv").write_text(sensors.replace("s0,earlier,", f"s0,{EDGES['s0']},"))  # `init` saw another edge
    assert '"earlier"' in (folder / "compose.override.yml").read_text()
    with ComposeProject(name="tsunagi-test-plant", folder=folder, operators=operators).running() as found:
        yield found


def test_each_edge_of_the_table_runs_under_its_own_name_and_no_edge_of_the_demo(plant: ComposeProject) -> None:
    labels = [one["Config"]["Labels"] for one in plant.containers()]
    edges = {one["tsunagi.node"]: one["com.docker.compose.service"] for one in labels if one["tsunagi.role"] == "edge"}
    assert set(edges) == set(EDGES.values())
    assert len(set(edges.values())) == len(edges)
    for edge in edges:
        state = docker("inspect", "--format", "{{.State.Status}} {{.RestartCount}}", plant.container(edge))
        assert (edge, state.split()) == (edge, ["running", "0"])


def test_results_of_every_sensor_come_out_of_an_operator_of_ones_own(plant: ComposeProject) -> None:
    rows = list(csv.DictReader(io.StringIO(plant.tool("results", "--format", "csv"))))
    assert {row["sensor"] for row in rows} == set(EDGES)
    assert all(float(row["value"]) >= 1000 for row in rows), "no reading is above 5"


def test_a_sink_of_the_folder_writes_files_into_its_volume(plant: ComposeProject) -> None:
    sink = plant.container("sink-files")
    deadline = time.monotonic() + PATIENCE_S
    while not docker("exec", sink, "find", "/lake", "-name", "results-*.parquet").split():
        assert time.monotonic() < deadline, docker("logs", sink)
        time.sleep(1)
    assert "readings to lake" in " ".join(plant.tool("status").split())


def test_the_query_of_the_folder_is_answered_from_its_settings(plant: ComposeProject) -> None:
    assert "overview" in plant.tool("query", "list")


def test_the_fleet_changes_and_no_container_restarts(plant: ComposeProject) -> None:
    assert plant.folder is not None
    table = plant.folder / "sensors.csv"
    table.write_text(table.read_text().replace("s1,halle,", "s1,2.Ost,"))
    said = plant.tool("apply", "--yes")
    assert "~ s1 moves from edge halle to edge 2.Ost" in said
    assert "in force after" in said
    assert "these edges have no sensor any more and may be stopped: halle" in said
    for edge in EDGES.values():
        state = docker("inspect", "--format", "{{.State.Status}} {{.RestartCount}}", plant.container(edge))
        assert (edge, state.split()) == (edge, ["running", "0"])


def test_an_image_of_an_edge_is_small(plant: ComposeProject) -> None:
    del plant
    assert int(docker("image", "inspect", "--format", "{{.Size}}", "tsunagi-edge")) <= 300_000_000


def test_status_and_stop_take_the_folder(plant: ComposeProject) -> None:
    status = plant.make("status")
    assert status.returncode == 0, status.stderr
    stopped = plant.make("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert {one["State"]["Status"] for one in plant.containers()} == {"exited"}
