"""What a user may get wrong, and what `make up` says to it before anything starts."""

from __future__ import annotations

import json
import socket

import pytest

from deploy.compose import Project
from deploy.variables import ComposeError
from tests.containers.project import ROOT, ComposeProject, docker
from tests.spark.driver import wait_until
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RESULTS
from tsunagi.runtime.settings import KafkaSettings


def test_a_port_that_is_taken_is_named_with_the_variable_to_change(project) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        other = ComposeProject(name="tsunagi-test-port", extra={"TSUNAGI_PORT_PROMETHEUS": port})
        done = other.make("up")
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1" in done.stderr
    assert "TSUNAGI_PORT_PROMETHEUS" in done.stderr
    assert other.containers() == []


def test_a_variable_that_nobody_reads_is_named_with_the_nearest(project) -> None:
    done = project.make("up", TSUNAGI_PORT_KAFCA="9092")
    assert done.returncode == 1
    assert "TSUNAGI_PORT_KAFCA" in done.stderr
    assert "did you mean TSUNAGI_PORT_KAFKA?" in done.stderr


def test_a_base_image_that_cannot_be_had_is_named(project) -> None:
    done = project.make("up", BASE_IMAGE="tsunagi.invalid/nothing:here")
    assert done.returncode == 1
    assert "tsunagi.invalid/nothing:here: cannot be pulled" in done.stderr
    assert "make base-image" in done.stderr


def test_an_engine_that_does_not_answer_is_named(project) -> None:
    done = project.make("up", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 1
    assert "the Docker engine does not answer" in done.stderr


def test_a_broker_that_is_not_in_its_cluster_says_what_to_set(project) -> None:
    del project
    done = docker(
        *("run", "--rm", "--network", "none", "--env", "KAFKA_NODE=kafka-2", "--entrypoint", "bash"),
        *("tsunagi-kafka", "-c", "python3 -m tsunagi.broker.container 2>&1; echo code $?"),
    )
    assert "TSUNAGI_KAFKA_NODES=kafka,kafka-2,kafka-3" in done
    assert done.rstrip().endswith("code 1")


def test_an_unknown_profile_is_refused(project) -> None:
    with pytest.raises(
        ComposeError, match="'hs': expected one of alerts, cluster, elastic, grafana, ha, mqtt, official, secure"
    ):
        Project(ROOT, ("hs",), dict(project.env)).check()


def test_what_was_stopped_goes_on_with_its_data(project) -> None:
    """Readings, and a query that was added while everything ran."""
    text = "CREATE QUERY means AS SELECT group, AVG(value) AS mean FROM readings [RANGE 20 SECONDS] GROUP BY group"
    assert "means: added" in project.tool("query", "add", text)
    wait_until(lambda: bool(_rows(project)), "rows of the query that was added")
    before = _blocks(project)
    stopped = project.make("stop")
    assert stopped.returncode == 0, stopped.stderr
    project.up()
    assert _blocks(project) >= before > 0
    answered = len(_rows(project))
    wait_until(lambda: len(_rows(project)) > answered, "rows behind the restart")
    steps = [line.split(",")[:2] for line in _rows(project)]
    assert len({tuple(step) for step in steps}) == len(steps), "a row came twice"
    told = [{"query": "means", "state": "runs", "fault": ""}]
    wait_until(lambda: _listed(project) == told, "a heartbeat of Spark that tells of the query")
    assert "means: dropped" in project.tool("query", "drop", "means")


def _blocks(project: ComposeProject) -> int:
    """Return how many blocks of results the log holds; all that there ever were."""
    log = KafkaLog(KafkaSettings(servers=project.servers), client_id="test")
    reader = log.reader()
    try:
        ranges = [reader.range(RESULTS, partition) for partition in range(log.partitions(RESULTS))]
    finally:
        reader.close()
        log.close()
    assert {first for first, _ in ranges} == {0}, "results are gone"
    return sum(end for _, end in ranges)


def _listed(project: ComposeProject) -> list[dict[str, str]]:
    found = json.loads(project.tool("query", "list", "--json"))
    return [{name: item[name] for name in ("query", "state", "fault")} for item in found]


def _rows(project: ComposeProject) -> list[str]:
    """Return the rows of the query so far, without the heading."""
    found = project.tool("query", "tail", "means", "--all", "--no-follow", "--format", "csv")
    return [line for line in found.splitlines() if not line.startswith("time,")]
