"""Fixtures that all tests share: one real broker a session, and topics of its own for each test.

Where several processes run the tests, each has its broker, and a line is said of each module that has ended.
"""

from __future__ import annotations

import os
import resource
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import hypothesis
import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.settings import KafkaSettings

# The tests share two cores with brokers and JVMs: how long an example takes says nothing about the code.
hypothesis.settings.register_profile(
    "tsunagi", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("tsunagi")

# A broker or a Spark driver lives half a minute in a test: code compiled for hours of work is not worth its time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


CPU = "cpu_s"
"""The name under which a test's report has its CPU seconds."""
_BEFORE = pytest.StashKey[float]()
REPORTED = 15
"""Number of last lines of a failed test that are shown when it has failed; the summary shows all."""


class Parts(LoadScopeScheduling):  # type: ignore[misc]  # without types there
    """Three parts: whole systems, single services and jobs, and what fills the gaps that these leave.

    What has a real clock mostly waits, so two parts of it run side by side, and one test after the other in each.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(("tests/unit/", "tests/simulation/")):
            return "computing"
        return "systems" if nodeid.startswith(("tests/e2e/", "tests/browser/")) else "services"


class Modules:
    """Shares tests out; says of each module when it has ended, and how its tests did, instead of pytest's dots."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._left: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: defaultdict[str, float] = defaultdict(float)
        self._outcomes: dict[str, Counter[str]] = {}

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Parts | None:
        """Have tests shared out as said there, unless something else is asked for."""
        return Parts(config, log) if config.option.dist == "loadscope" else None

    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Count the tests of each module; every process collects all."""
        self._left = Counter(name.partition("::")[0] for name in ids)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in how one phase of a test went."""
        module = report.nodeid.partition("::")[0]
        self._seconds[module] += report.duration
        outcomes = self._outcomes.setdefault(module, Counter())
        if report.when == "call" or report.outcome != "passed":
            outcomes[report.outcome] += 1
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed:  # at once: a run that is ended from outside never comes to its summary
            lines = (f"    {line}" for line in report.longreprtext.splitlines()[-REPORTED:])
            terminal.write_line("\n".join([f"\n{report.when} of {report.nodeid}:", *lines]))
        if report.when != "teardown":
            return
        used: Any = dict(report.user_properties).get(CPU, 0.0)
        self._cpu_s[module] += used
        self._left[module] -= 1
        if self._left[module] == 0:
            found = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            minutes = (time.monotonic() - self._began) / 60
            took = f"{self._seconds[module]:.0f} s, {self._cpu_s[module]:.0f} of a core"
            terminal.write_line(f"{minutes:5.1f} min  {module}: {found} in {took}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Say nothing of a test that passed."""
        return (("passed" if report.when == "call" else ""), "", "") if report.outcome == "passed" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Note how much CPU time has been used before a test."""
    item.stash[_BEFORE] = _cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Say what a test has used: in this process, and in those that it has started and that have ended."""
    try:
        return (yield)
    finally:
        item.user_properties.append((CPU, _cpu_s() - item.stash[_BEFORE]))


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def pytest_configure(config: pytest.Config) -> None:
    """Have modules told of where the process only hands them out."""
    if getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Modules(config))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker, shared: a test that disturbs its broker makes one of its own."""
    shared = Broker(tmp_path_factory.mktemp("kafka"), free_port())
    shared.start()
    try:
        shared.wait_ready()
        yield shared
    finally:
        shared.stop()


@pytest.fixture
def kafka_settings(broker: Broker) -> Iterator[KafkaSettings]:
    """[kafka] for the shared broker, with a prefix that no other test has; its topics are deleted afterwards."""
    name = uuid.uuid4().hex[:12]
    settings = KafkaSettings(servers=broker.servers, prefix=f"{name}.", group_prefix=name)
    yield settings
    log = KafkaLog(settings, client_id="teardown")
    try:
        topics = [topic for topic in log.admin().list_topics(timeout=10).topics if topic.startswith(settings.prefix)]
        if topics:
            for future in log.admin().delete_topics(topics).values():
                future.result(timeout=30)
    finally:
        log.close()
