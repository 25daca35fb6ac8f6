"""The console over HTTP: who may see it, what every answer forbids, and what requests of others get."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog
import uvicorn

from tsunagi.console.access import remove_user, write_user
from tsunagi.console.app import LOGINS, MOST_BODY, PAGES, SECURITY, make_app
from tsunagi.console.observer import Observer
from tsunagi.runtime.clock import SystemClock
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.system import processes

PASSWORD = "correct horse"
HOSTILE = '<img src=x onerror="alert(1)">'
TABLE = SensorTable(
    (
        Sensor(0, HOSTILE, "e0", "g", attributes=("52.5", "13.4")),
        Sensor(1, "s1", "e1", "g", attributes=("", "")),
        Sensor(2, "s2", "", "g", attributes=("1", "1")),
    ),
    ("lat", "lon"),
)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Browser:
    """Asks one console, and keeps its cookie."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def ask(self, path: str, body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            given["Cookie"] = self.cookie
        if body is not None:
            given.setdefault("Content-Type", "application/json")
        try:
            connection.request(
                "GET" if body is None else "POST", path, None if body is None else json.dumps(body), given
            )
            answer = connection.getresponse()
            found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        finally:
            connection.close()
        if "set-cookie" in found.headers:
            self.cookie = found.headers["set-cookie"].partition(";")[0]
        return found

    def login(self, user: str, password: str = PASSWORD, **headers: str) -> Answer:
        return self.ask("/api/login", {"user": user, "password": password}, **headers)


@contextmanager
def console(users: Path | None = None, *, chaos: bool = False, state: Path = Path("nowhere")) -> Iterator[Browser]:
    observer = Observer(Settings(state=state), MemoryLog(SystemClock(), {}), TABLE, structlog.get_logger())
    listening = socket.create_server(("127.0.0.1", 0))
    app = make_app(observer, users, "secret" * 10, ["127.0.0.1", "localhost"], lambda: False, chaos=chaos)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Browser(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


@pytest.fixture(scope="module")
def open_console() -> Iterator[Browser]:
    """A console without users: everybody is a viewer."""
    with console() as browser:
        yield browser


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[tuple[Browser, Path]]:
    """A console with a file of users, and the file."""
    write_user(tmp_path / "users", "anna", "viewer", PASSWORD)
    with console(tmp_path / "users") as browser:
        yield browser, tmp_path / "users"


def test_every_page_is_there_and_every_answer_forbids_what_is_not_the_consoles_own(open_console: Browser) -> None:
    for path in (*PAGES, "/static/main.js", "/api/me", "/nothing", "/api/sensor?name=none"):
        answer = open_console.ask(path)
        for name, value in SECURITY.items():
            assert answer.headers[name.lower()] == value, path
    assert "unsafe" not in SECURITY["Content-Security-Policy"]
    assert open_console.ask("/").text == open_console.ask("/slots").text


def test_no_page_has_a_script_or_a_style_inside_or_from_elsewhere(open_console: Browser) -> None:
    page = open_console.ask("/").text
    assert "<style" not in page
    assert "style=" not in page
    assert page.count("<script") == page.count('<script type="module" src="/static/')
    assert "http" not in page


def test_a_name_of_another_host_is_refused(open_console: Browser) -> None:
    assert open_console.ask("/api/sensors", Host="evil.example").status == 400
    assert open_console.ask("/api/sensors", Host=f"localhost:{open_console.port}").status == 200


def test_a_hostile_name_stays_a_text(open_console: Browser) -> None:
    found = open_console.ask("/api/sensors?find=onerror")
    assert found.headers["content-type"] == "application/json"
    assert [item["sensor"] for item in found.json["sensors"]] == [HOSTILE]


def test_sensors_are_found_by_name_group_edge_and_quality(open_console: Browser) -> None:
    names = [item["sensor"] for item in open_console.ask("/api/sensors").json["sensors"]]
    assert names == [HOSTILE, "s1"]  # s2 is removed
    assert open_console.ask("/api/sensors?edge=e1").json["found"] == 1
    assert open_console.ask("/api/sensors?quality=exact").json["found"] == 0
    about = open_console.ask("/api/sensor?name=s1").json
    assert (about["edge"], about["quality"], about["value"]) == ("e1", "missing", None)


@pytest.mark.parametrize("path", ["/api/sensor?name=s2", "/api/history?name=none", "/api/nothing"])
def test_what_is_not_there_is_said(open_console: Browser, path: str) -> None:
    answer = open_console.ask(path)
    assert (answer.status, bool(answer.json["error"])) == (404, True)


@pytest.mark.parametrize("asked", ["hours=0", "hours=x", "hours=1e9", "hours=nan", "points=1e9"])
def test_a_number_that_cannot_be_is_refused(open_console: Browser, asked: str) -> None:
    answer = open_console.ask(f"/api/history?name=s1&{asked}")
    assert (answer.status, "expected a number" in answer.json["error"]) == (400, True)


def test_a_long_body_is_refused(open_console: Browser) -> None:
    assert open_console.ask("/api/login", {"user": "x" * MOST_BODY}).status == 413


def test_news_come_as_a_stream(open_console: Browser) -> None:
    with socket.create_connection(("127.0.0.1", open_console.port), timeout=10) as link:
        link.sendall(b"GET /api/events?feeds=fleet,places HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        read = b""
        deadline = time.monotonic() + 10
        while b"event: places" not in read and time.monotonic() < deadline:
            read += link.recv(65536)
    text = read.decode()
    assert "content-type: text/event-stream" in text
    fleet = json.loads(text.partition("event: fleet\ndata: ")[2].partition("\n")[0])
    assert [item["edge"] for item in fleet["edges"]] == ["e0", "e1"]
    assert json.loads(text.partition("event: places\ndata: ")[2].partition("\n")[0]) == [
        [HOSTILE, 52.5, 13.4, "missing"]
    ]
    assert open_console.ask("/api/events?feeds=none").status == 400


def test_with_users_nothing_is_seen_before_a_login(closed: tuple[Browser, Path]) -> None:
    browser, _ = closed
    for path in ("/api/events?feeds=fleet", "/api/sensors", "/api/sensor?name=s1", "/api/history?name=s1"):
        assert browser.ask(path).status == 401, path
    assert browser.ask("/api/me").json == {"user": None, "role": None, "login": True, "kills": False}
    assert browser.login("anna", "wrong password").status == 403
    assert browser.ask("/api/sensors").status == 401
    assert browser.login("anna").json == {"user": "anna", "role": "viewer"}
    assert browser.ask("/api/sensors").status == 200
    assert browser.ask("/api/logout", {}).status == 200
    assert browser.ask("/api/sensors").status == 401


def test_the_cookie_is_for_this_site_alone_and_for_no_script(closed: tuple[Browser, Path]) -> None:
    browser, _ = closed
    cookie = browser.login("anna").headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_a_session_ends_with_its_user_or_its_password(closed: tuple[Browser, Path]) -> None:
    browser, users = closed
    browser.login("anna")
    write_user(users, "anna", "viewer", "a new password")
    assert browser.ask("/api/sensors").status == 401
    browser.login("anna", "a new password")
    assert browser.ask("/api/sensors").status == 200
    remove_user(users, "anna")
    assert browser.ask("/api/sensors").status == 401


def test_a_forged_cookie_is_no_session(closed: tuple[Browser, Path]) -> None:
    browser, _ = closed
    browser.login("anna")
    browser.cookie = browser.cookie[:-2] + ("aa" if not browser.cookie.endswith("aa") else "bb")
    assert browser.ask("/api/sensors").status == 401


def test_a_request_of_another_page_is_refused(closed: tuple[Browser, Path]) -> None:
    browser, _ = closed
    assert browser.login("anna", Origin="http://evil.example").status == 403
    assert browser.login("anna", Content_Type="text/plain").status == 415
    assert browser.login("anna", Origin=f"http://127.0.0.1:{browser.port}").status == 200


def test_passwords_cannot_be_tried_without_end(closed: tuple[Browser, Path]) -> None:
    browser, _ = closed
    found = [browser.login("anna", f"wrong {n}").status for n in range(LOGINS.amount + 2)]
    assert found == [403] * LOGINS.amount + [429, 429]


def test_a_viewer_cannot_act_and_an_operator_sees_first_what_it_does(closed: tuple[Browser, Path]) -> None:
    browser, users = closed
    asked = {"fields": {"workers": 4}}
    assert browser.ask("/api/acts/scale", asked).status == 401
    browser.login("anna")
    refused = browser.ask("/api/acts/scale", asked | {"preview": False})
    assert (refused.status, refused.json["error"]) == (403, "only an operator may do that")
    write_user(users, "olga", "operator", PASSWORD)
    browser.login("olga")
    assert browser.ask("/api/acts/scale", asked).json == {"said": ["workers: 4 local"]}
    assert browser.ask("/api/acts/scale", {"fields": {"workers": "x"}}).status == 400
    assert browser.ask("/api/acts/scale", asked, Origin="http://evil.example").status == 403


def test_without_users_nobody_acts(open_console: Browser) -> None:
    assert open_console.ask("/api/acts/scale", {"preview": False, "fields": {"workers": 4}}).status == 403


def test_processes_are_killed_only_where_that_was_asked_for_and_only_those_of_this_system(tmp_path: Path) -> None:
    with console() as browser:
        assert browser.ask("/api/me").json["kills"] is False
        assert browser.ask("/api/kill", {"node": "gw-1"}).status == 403
    worker = processes.spawn(tmp_path, "gw-1", "worker", ["sleep", "600"], os.environ)
    broker = processes.spawn(tmp_path, "kafka", "broker", ["sleep", "600"], os.environ)
    try:
        with console(chaos=True, state=tmp_path) as browser:
            assert browser.ask("/api/me").json["kills"] is True
            assert browser.ask("/api/kill", {"node": "gw-1"}, Origin="http://evil.example").status == 403
            assert browser.ask("/api/kill", {"node": "kafka"}).status == 404
            assert browser.ask("/api/kill", {"node": "nobody"}).status == 404
            assert browser.ask("/api/kill", {"node": "gw-1"}).json["killed"] == "gw-1"
        deadline = time.monotonic() + 10.0
        while processes.alive(worker) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (processes.alive(worker), processes.alive(broker)) == (False, True)
    finally:
        processes.terminate([worker, broker])


def test_a_viewer_kills_nothing(closed: tuple[Browser, Path]) -> None:
    _, users = closed
    with console(users, chaos=True) as browser:
        browser.login("anna")
        assert browser.ask("/api/me").json["kills"] is False
        assert browser.ask("/api/kill", {"node": "gw-1"}).status == 403
