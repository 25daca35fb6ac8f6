"""The profile `elastic`: the scaler launches containers as workers, adopts them when it starts anew, and stops them."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.containers.project import ComposeProject, docker, inspected
from tests.containers.test_dashboards import wait_for_series

WAIT_S = 120.0


@pytest.fixture(scope="module")
def elastic() -> Iterator[ComposeProject]:
    with ComposeProject(name="tsunagi-elastic", profiles=("elastic",)).running() as found:
        yield found
    assert not launched(found)


def launched(project: ComposeProject) -> dict[str, dict[str, Any]]:
    """Return node -> what Docker says of each container that the scaler has started."""
    found = inspected(f"tsunagi.project={project.name}")
    return {one["Config"]["Labels"]["tsunagi.node"]: one for one in found}


def owners(project: ComposeProject) -> tuple[set[str], set[str]]:
    """Return who owns the slots, and who stands by ready."""
    slots = json.loads(project.tool("status", "--json"))["slots"]
    return {slot["owner"] for slot in slots}, {slot["secondary"] for slot in slots if slot["secondary_ready"]}


def wait(project: ComposeProject, what: str, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s in vain: {what}\n{project.logs('scaler')[-4000:]}"
        time.sleep(1.0)


def scraped(project: ComposeProject, node: str) -> bool:
    query = f"{project.prometheus}/api/v1/query?query=up%7Bnode%3D%22{node}%22%7D"
    with urllib.request.urlopen(query, timeout=10) as answer:
        return any(one["value"][1] == "1" for one in json.load(answer)["data"]["result"])


def test_workers_come_as_containers_do_all_the_work_and_go(elastic: ComposeProject) -> None:
    assert launched(elastic) == {}
    elastic.tool("scaler", "scale", "--type", "local=0", "--type", "small=2")
    wait(elastic, "two workers launched own all slots", lambda: owners(elastic)[0] <= set(launched(elastic)))
    wait_for_series(elastic.prometheus, "cost", but="What the policy plans")  # workers are set by hand here
    first = launched(elastic)
    assert len(first) == 2
    for name, one in first.items():
        host = one["HostConfig"]
        assert one["Config"]["Labels"]["tsunagi.type"] == "small", name
        assert (host["NanoCpus"], host["Memory"]) == (500_000_000, 256 << 20), name
        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert not any("docker.sock" in bind for bind in host["Binds"]), name
        assert one["Config"]["User"] not in {"", "0", "root"}, name
    wait(elastic, "Prometheus scrapes them", lambda: all(scraped(elastic, name) for name in first))

    # One dies: the scaler takes away what has ended, and launches another one.
    dead = min(first)
    docker("kill", first[dead]["Id"])
    wait(elastic, "another one instead", lambda: len(launched(elastic)) == 2 and dead not in launched(elastic))
    wait(elastic, "all slots owned by living ones", lambda: owners(elastic)[0] <= set(launched(elastic)))

    # A scaler that starts anew finds them by their labels.
    before = {name: one["Id"] for name, one in launched(elastic).items()}
    docker("restart", elastic.container("scaler"))
    elastic.tool("wait", "--timeout", "60")
    time.sleep(15.0)  # were they unknown to it, it would have launched others by now
    assert {name: one["Id"] for name, one in launched(elastic).items()} == before

    elastic.tool("scaler", "scale", "--type", "local=5")
    wait(elastic, "none of them is left", lambda: not launched(elastic))
    assert not owners(elastic)[0] & set(before)
    wait(elastic, "every slot is protected", lambda: len(owners(elastic)[1]) == 2)
    elastic.tool("wait", "--timeout", "60")
    said = elastic.tool("replay")
    assert said.count(" 0 differences") == 2, said
