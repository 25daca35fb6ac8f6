"""Workers as containers, against an engine of the test's own behind a unix socket."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from docker.errors import APIError

from tsunagi.runtime.settings import ContainersSettings, ScalerSettings, Settings, SizeSettings
from tsunagi.scaler.docker_launcher import COMPOSE_PROJECT, NODE, PROJECT, TYPE, DockerLauncher
from tsunagi.scaler.launcher import LauncherError

IMAGE = "tsunagi-services"


class Engine(socketserver.ThreadingUnixStreamServer):
    """As much of Docker Engine's API as the launcher uses."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        super().__init__(path, Handler)
        self.containers: dict[str, dict[str, Any]] = {}
        self.refuses = ""
        self.stops: list[tuple[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    server: Engine
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "socket"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        del format, args

    def answer(self, code: int, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def parts(self) -> tuple[list[str], dict[str, list[str]]]:
        url = urlsplit(self.path)
        words = [unquote(word) for word in url.path.split("/") if word]
        return words[1:] if words and words[0].startswith("v1") else words, parse_qs(url.query)

    def do_GET(self) -> None:
        words, query = self.parts()
        found = self.server.containers
        match words:
            case ["version"]:
                self.answer(200, {"ApiVersion": "1.41"})
            case ["images", name, "json"]:
                known = name == IMAGE
                self.answer(200 if known else 404, {"Id": "sha256:1"} if known else {"message": "no such image"})
            case ["containers", "json"]:
                wanted = json.loads(query["filters"][0])["label"]
                listed = [{"Id": key} for key, item in found.items() if all(_has(item, label) for label in wanted)]
                self.answer(200, listed)
            case ["containers", key, "json"] if key in found:
                item = found[key]
                self.answer(
                    200,
                    {
                        "Id": key,
                        "Name": "/" + item["name"],
                        "State": {"Status": item["status"]},
                        "Config": {"Labels": item["Labels"], "Image": item.get("Image"), "Env": item.get("Env")},
                        "HostConfig": item.get("HostConfig"),
                    },
                )
            case _:
                self.answer(404, {"message": "no such thing"})

    def do_POST(self) -> None:
        words, query = self.parts()
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}")
        match words:
            case ["containers", "create"]:
                name = query["name"][0]
                self.server.containers[name] = body | {"name": name, "status": "created"}
                self.answer(201, {"Id": name})
            case ["containers", key, "start"]:
                if self.server.refuses:
                    self.answer(500, {"message": self.server.refuses})
                    return
                self.server.containers[key]["status"] = "running"
                self.answer(204)
            case ["containers", key, "stop"]:
                self.server.stops.append((key, query["t"][0]))
                self.server.containers[key]["status"] = "exited"
                self.answer(204)
            case _:
                self.answer(404, {"message": "no such thing"})

    def do_DELETE(self) -> None:
        words, _ = self.parts()
        self.answer(204 if self.server.containers.pop(words[1], None) else 404, None)


def _has(item: dict[str, Any], label: str) -> bool:
    key, _, value = label.partition("=")
    return key in item["Labels"] and (not value or item["Labels"][key] == value)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    server = Engine(str(tmp_path / "docker.sock"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def make(engine: Engine, **containers: Any) -> DockerLauncher:
    url = f"unix://{engine.server_address}"
    sizes = {"small": SizeSettings(cpus=0.5, memory_bytes=256 << 20)}
    wanted = ContainersSettings(
        url=url, volumes=("models:/models",), environment={"TSUNAGI_CONFIG": "/c.toml"}, **containers
    )
    return DockerLauncher(Settings(scaler=ScalerSettings(sizes=sizes, containers=wanted)))


def test_a_worker_is_a_container_with_the_limits_and_labels_of_its_type(engine: Engine) -> None:
    launcher = make(engine, network="net")
    launcher.launch("small-1", "small")
    assert launcher.running() == {"small-1": "small"}
    made = engine.containers["tsunagi-small-1"]
    assert made["Cmd"] == ["gateway", "run", "--node", "small-1"]
    assert made["HostConfig"]["NanoCpus"] == 500_000_000
    assert made["HostConfig"]["Memory"] == 256 << 20
    assert made["HostConfig"]["Binds"] == ["models:/models"]
    assert made["HostConfig"]["NetworkMode"] == "net"
    assert made["Env"] == ["TSUNAGI_CONFIG=/c.toml"]
    assert {PROJECT: "tsunagi", NODE: "small-1", TYPE: "small"}.items() <= made["Labels"].items()
    launcher.close()


def test_a_worker_is_like_a_container_of_the_compose_project(engine: Engine) -> None:
    launcher = make(engine, like="gateway-1", image="not looked at")
    with pytest.raises(LauncherError, match=r"like: found no container of a node 'gateway-1' in project 'tsunagi'"):
        launcher.launch("small-1", "small")
    host = {
        "Binds": ["models:/models:rw", "/etc/t.toml:/t.toml:ro"],
        "NetworkMode": "tsunagi_default",
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": ""},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m"}},
        "NanoCpus": 1_000_000_000,
    }
    engine.containers["tsunagi_gateway-1_1"] = {
        "name": "tsunagi_gateway-1_1",
        "status": "running",
        "Labels": {COMPOSE_PROJECT: "tsunagi", NODE: "gateway-1"},
        "Image": IMAGE,
        "Env": ["TSUNAGI_CONFIG=/t.toml"],
        "HostConfig": host,
    }
    launcher.launch("small-1", "small")
    assert launcher.running() == {"small-1": "small"}  # the other one is not its own
    made = engine.containers["tsunagi-small-1"]
    assert (made["Image"], made["Env"]) == (IMAGE, ["TSUNAGI_CONFIG=/t.toml"])
    for name in ("Binds", "NetworkMode", "ReadonlyRootfs", "Tmpfs", "LogConfig"):
        assert made["HostConfig"][name] == host[name], name
    assert made["HostConfig"]["NanoCpus"] == 500_000_000
    assert made["HostConfig"]["CapDrop"] == ["ALL"]
    launcher.close()


def test_a_launcher_that_starts_anew_adopts_its_own_and_removes_what_has_ended(engine: Engine) -> None:
    first = make(engine)
    for number in (1, 2):
        first.launch(f"small-{number}", "small")
    first.close()
    other = make(engine, project="other")
    other.launch("small-9", "small")
    engine.containers["tsunagi-small-2"]["status"] = "exited"
    engine.containers["gateway-1"] = {"name": "gateway-1", "status": "running", "Labels": {PROJECT: "tsunagi"}}
    again = make(engine)
    assert again.running() == {"small-1": "small"}
    assert set(engine.containers) == {"tsunagi-small-1", "other-small-9", "gateway-1"}
    again.stop("small-1")
    again.stop("small-1")
    assert again.running() == {}
    assert [name for name, _ in engine.stops] == ["tsunagi-small-1"]
    assert "gateway-1" in engine.containers
    for launcher in (again, other):
        launcher.close()


def test_a_launch_that_is_refused_leaves_nothing_behind(engine: Engine) -> None:
    launcher = make(engine)
    engine.refuses = "no more memory"
    with pytest.raises(APIError, match="no more memory"):
        launcher.launch("small-1", "small")
    assert engine.containers == {}
    launcher.close()


def test_no_image_and_no_daemon_are_said_at_the_start(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"\[scaler.containers\] image: found no image 'other'"):
        make(engine, image="other")
    nowhere = ContainersSettings(url=f"unix://{tmp_path}/none.sock")
    with pytest.raises(LauncherError, match=r"\[scaler.containers\] url: found no socket .*none.sock"):
        DockerLauncher(Settings(scaler=ScalerSettings(containers=nowhere)))
