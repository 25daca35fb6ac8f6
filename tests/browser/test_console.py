"""The console of a running system in a real browser: pages, a death as it is seen, a query, roles, and an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.browser.browser import SIZES, Browser, browsing
from tests.browser.collector import Collector, collecting
from tests.e2e.stream import Inputs, write_inputs
from tests.e2e.system import Rig
from tsunagi.broker.broker import Broker
from tsunagi.console.access import write_user
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import Plan
from tsunagi.system import processes
from tsunagi.system.topics import quiet_log, read_partition

PASSWORD = "correct horse"
PAGES = {"/": "Fleet", "/slots": "Slots", "/sensors": "Sensors", "/queries": "Queries", "/troubles": "Troubles"}
QUERY = "CREATE QUERY hot AS SELECT sensor, value FROM readings WHERE value > 0"


def has_title(browser: Browser, title: str) -> bool:
    return browser.text("h1") == title


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return write_inputs(Path(tmp_path_factory.mktemp("stream")))


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def rig(
    tmp_path_factory: pytest.TempPathFactory, broker: Broker, inputs: Inputs, collector: Collector
) -> Iterator[Rig]:
    place = Path(tmp_path_factory.mktemp("console"))
    users = place / "users"
    write_user(users, "vera", "viewer", PASSWORD)
    write_user(users, "olga", "operator", PASSWORD)
    console = {"port": 0, "users": str(users), "traces": collector.address, "traces_share": 0.2}
    changes = {"console": console}
    found = Rig(place, inputs, servers=broker.servers, prefix="console.", changes=changes)
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def address(rig: Rig) -> str:
    found = rig.system.start_console()
    assert found, rig.report("no console")
    return found


@pytest.fixture
def browser(tmp_path: Path, address: str) -> Iterator[Browser]:
    with browsing(tmp_path, address) as found:
        found.look("desktop", "light")
        yield found


def test_every_page_in_every_size_and_colour(browser: Browser, tmp_path: Path) -> None:
    browser.open("/")
    browser.login("vera", PASSWORD)
    for path, title in PAGES.items():
        for size in SIZES:
            for scheme in ("light", "dark"):
                browser.look(size, scheme)
                browser.open(path)
                browser.wait(partial(has_title, browser, title), title)
                browser.wait(lambda: not browser.text("#link"), "the stream of news")
                assert browser.findings() == [], (path, size, scheme)
                width = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
                assert width <= 0, f"{path} is {width} pixels wider than a {size}"
                browser.driver.save_screenshot(str(tmp_path / f"{title}-{size}-{scheme}.png"))
    asked = browser.requests()
    hosts = {urlsplit(item).netloc for item in asked if item.startswith("http")}
    assert hosts == {urlsplit(browser.address).netloc}
    assert browser.complaints() == []


def test_an_owners_death_is_seen_as_a_takeover(rig: Rig, browser: Browser) -> None:
    rig.wait_protected()
    browser.open("/slots")
    browser.login("vera", PASSWORD)
    rows = 'table[aria-label="Takeovers"] tbody tr'
    browser.wait(lambda: browser.texts('table[aria-label="Slots"] tbody tr'), "slots")
    kill = rig.kill_owner(0)
    browser.wait(lambda: any(f"{kill.node}" in row for row in browser.texts(rows)), "the takeover")
    row = next(row for row in browser.texts(rows) if kill.node in row)
    assert "its owner died" in row
    browser.wait(lambda: "under way" not in " ".join(browser.texts(rows)), "the end of the takeover")
    rig.worker_back(kill.node)
    rig.wait_protected()


def test_an_operator_adds_a_query_and_sees_its_first_row_and_a_viewer_does_not_act(rig: Rig, browser: Browser) -> None:
    browser.open("/queries")
    browser.login("vera", PASSWORD)
    browser.wait(lambda: browser.text("h1") == "Queries", "the page")
    assert browser.texts("details") == []
    said = browser.driver.execute_async_script(
        "fetch('/api/acts/query-add', {method: 'POST', headers: {'Content-Type': 'application/json'},"
        f"body: JSON.stringify({{preview: false, fields: {{text: {QUERY!r}}}}})}})"
        ".then((answer) => answer.json()).then(arguments[0])"
    )
    assert said == {"error": "only an operator may do that"}
    browser.click("#who button")
    browser.login("olga", PASSWORD)
    browser.wait(lambda: len(browser.texts("details")) == 2, "the forms")
    browser.click("details summary")
    browser.type("textarea[name=text]", QUERY)
    browser.click("details[open] form > button")
    browser.wait(lambda: "It would do this" in browser.text("details[open] .said"), "what it would do")
    assert "hot: added" in browser.text("details[open] .said")
    browser.click("details[open] form > button[type=button]")
    browser.wait(lambda: "Done" in browser.text("details[open] .said"), "the act")
    browser.wait(lambda: "hot" in browser.text('table[aria-label="Queries"]'), "the query")
    browser.open("/queries?name=hot")
    browser.wait(lambda: browser.texts('table[aria-label="Newest rows of hot"] tbody tr'), "a row")
    plans = [Plan.FromString(item.value or b"") for item in read_partition(quiet_log(rig.settings, "test"), PLAN, 0)]
    (act,) = [plan.act for plan in plans if plan.WhichOneof("body") == "act"]
    assert (act.by, act.what.startswith("query-add: text = CREATE QUERY hot")) == ("olga", True)


def test_an_operator_moves_a_slot_and_a_command_moves_it_back(rig: Rig, browser: Browser) -> None:
    rig.wait_protected()
    browser.open("/slots")
    browser.login("olga", PASSWORD)
    rig.fleet.update()
    owner, standby = (node for role in ("primary", "standby") for node, _ in [rig.fleet.of_slot(1, role) or ("", None)])
    move = "details:has(input[name=worker])"
    browser.wait(lambda: browser.texts(move), "the form")
    browser.click(f"{move} summary")
    browser.type(f"{move} input[name=slot]", "1")
    browser.type(f"{move} input[name=worker]", standby)
    browser.click(f"{move} form > button")
    browser.wait(lambda: f"from {owner} to {standby}, which is ready" in browser.text(f"{move} .said"), "what it does")
    browser.click(f"{move} form > button[type=button]")
    rows = 'table[aria-label="Takeovers"] tbody tr'
    browser.wait(lambda: any("it was moved" in row and standby in row for row in browser.texts(rows)), "the move")
    done = subprocess.run(
        [sys.executable, "-m", "tsunagi.cli", "--config", str(rig.config), "scaler", "move", "1", owner],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{owner} owns slot 1" in done.stdout
    rig.wait_protected()


def test_a_sensors_past_is_drawn(rig: Rig, browser: Browser) -> None:
    browser.open("/sensors")
    browser.login("vera", PASSWORD)
    links = 'table[aria-label="Sensors"] tbody a'
    browser.wait(lambda: browser.texts(links), "sensors")
    name = browser.texts(links)[0]
    browser.click(links)
    browser.wait(lambda: browser.text("h2") == name, "the sensor")
    browser.wait(lambda: browser.driver.execute_script("return !!document.querySelector('.chart canvas')"), "the chart")
    assert browser.complaints() == []


def test_the_way_of_a_step_is_traced_from_edges_to_results(rig: Rig, address: str, collector: Collector) -> None:
    whole = {"publish", "recover", "order"}

    def found() -> list[list[Span]]:
        return [spans for spans in collector.traces().values() if whole <= {span.name for span in spans}]

    rig.wait(lambda: bool(found()), f"a whole trace from {address}")
    spans = found()[0]
    (root,) = (span for span in spans if not span.parent_span_id)
    assert root.name.startswith("step ")
    assert all(span.parent_span_id == root.span_id for span in spans if span is not root)
    told = {item.value.string_value for span in spans for item in span.attributes if item.key == "tsunagi.edge"}
    assert told == {"edge-1", "edge-2", "edge-3", "edge-4"}
    assert sum(span.name == "recover" for span in spans) == 2, "a span for each slot"
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert max(span.end_time_unix_nano for span in spans) == root.end_time_unix_nano


def test_a_console_that_is_killed_changes_nothing_and_comes_back_to_the_present(rig: Rig, browser: Browser) -> None:
    browser.open("/slots")
    browser.login("vera", PASSWORD)
    slots = 'table[aria-label="Slots"] tbody tr'
    browser.wait(lambda: len(browser.texts(slots)) == 2, "slots")
    before = {node: pid for node, pid in rig.pids().items() if node != "console"}
    process = rig.process("console")
    os.kill(process.pid, signal.SIGKILL)
    browser.wait(lambda: "does not answer" in browser.text("#link"), "the page's word of it")
    rig.advance()
    assert {node: pid for node, pid in rig.pids().items() if node != "console"} == before
    processes.forget(rig.settings.state, "console")
    port = urlsplit(browser.address).port
    processes.start(
        rig.settings, rig.config, "console", "console", ["console", "run"], {"TSUNAGI_CONSOLE__PORT": str(port)}
    )
    browser.wait(lambda: not browser.text("#link"), "the console's return")
    browser.wait(lambda: len(browser.texts(slots)) == 2, "slots")
