"""A real Prometheus that has past and present of many plants in distress, a real Alertmanager, and those who are told.

Each alert has a plant of its own: the input of its test in alerts_test.yml, with nodes and slots of names that no other
plant has. At the start it is the moment at which that test expects the alert. What was before stands in Prometheus'
storage, and what comes is scraped.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session

from tsunagi.broker.checks import free_port

SOURCES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
PATIENCE_S = 300.0
PASSWORD, TOKEN = "mail's own", "webhook's own"
LABEL = re.compile(r'(\w+)="([^"]*)"')
OWN = ("node", "instance", "edge", "slot")
"""Labels by which plants differ."""
ATTACHED = ("node", "role", "instance")
"""Labels that Prometheus would attach to what it scrapes from the scaler, were they not there."""
UNITS_S = {"h": 3600, "m": 60, "s": 1}

Labels = dict[str, str]


def binary(name: str) -> str:
    """Return the path of a program that must be there."""
    found = shutil.which(name)
    if found is None:
        packages = "prometheus prometheus-alertmanager openssl"
        pytest.fail(f"{name} is not on the PATH (Debian: apt-get install {packages})", pytrace=False)
    return found


def seconds(text: str) -> int:
    """Return a duration of Prometheus, such as 1m55s, in seconds."""
    return sum(int(number) * UNITS_S[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


def samples_of(notation: str) -> list[float | None]:
    """Return the samples that promtool makes of its notation: `a`, `axN`, `a+bxN`, `a-bxN` and `_xN`."""
    found: list[float | None] = []
    for part in notation.split():
        first, _, times = part.partition("x")
        if first == "_":
            found += [None] * int(times or 1)
            continue
        matched = re.fullmatch(r"(-?[\d.]+)([+-][\d.]+)?", first)
        assert matched, part
        start, step = float(matched[1]), float(matched[2] or 0)
        found += [start + step * number for number in range(int(times or 0) + 1)]
    return found


@dataclass(frozen=True)
class Series:
    """A series of a plant. Behind its last sample it goes on as it ended.

    Args:
        interval_s: seconds between two samples.
        age_s: seconds from the first sample to the start of the test.
    """

    name: str
    labels: Labels
    samples: list[float | None]
    interval_s: int
    age_s: int

    def at(self, number: int) -> float | None:
        """Return a sample, also one behind the last."""
        if number < len(self.samples):
            return self.samples[number]
        last = self.samples[-1]
        before = self.samples[-2] if len(self.samples) > 1 else last
        assert last is not None
        return last + (last - (last if before is None else before)) * (number - len(self.samples) + 1)

    def text(self, value: float, **more: str) -> str:
        """Return a line of an exposition, without a time."""
        labels = ",".join(f'{name}="{text}"' for name, text in (more | self.labels).items())
        return f"{self.name}{{{labels}}} {value}"

    def past(self, start: int) -> Iterator[str]:
        """Make the lines of all that was until the start."""
        for number in range(self.age_s // self.interval_s + 1):
            value = self.at(number)
            if value is not None:
                yield f"{self.text(value)} {start - self.age_s + number * self.interval_s}"

    def present(self, start: int, now: float) -> str:
        """Return the line of the newest sample, with its time. A missing label is empty, so none is attached."""
        number = int(now - start + self.age_s) // self.interval_s
        value = self.at(number)
        if value is None:
            return ""
        milliseconds = (start - self.age_s + number * self.interval_s) * 1000
        return f"{self.text(value, **dict.fromkeys(ATTACHED, ''))} {milliseconds}\n"


@dataclass(frozen=True)
class Plant:
    """What makes an alert fire, and the labels that it must have then."""

    alert: str
    series: list[Series]
    expected: Labels


def read_plants() -> list[Plant]:
    """Return a plant for each alert: the first test of alerts_test.yml at whose end it fires."""
    rules = yaml.safe_load((SOURCES / "rules" / "alerts.yml").read_text(encoding="utf-8"))
    tests = yaml.safe_load((SOURCES / "rules" / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    return [_plant(name, number, tests) for number, name in enumerate(names)]


def _plant(alert: str, number: int, tests: list[dict[str, Any]]) -> Plant:
    def own(text: str) -> Labels:
        found = LABEL.findall(text)
        return {name: f"{value}-{number}" if name in OWN else value for name, value in found}

    for test in tests:
        for asked in test["promql_expr_test"]:
            for sample in asked["exp_samples"]:
                labels = own(sample["labels"])
                if labels["alertname"] != alert:
                    continue
                del labels["alertstate"]
                interval_s, age_s = seconds(test["interval"]), seconds(asked["eval_time"])
                series = [
                    Series(
                        one["series"].partition("{")[0],
                        own(one["series"]),
                        samples_of(one["values"]),
                        interval_s,
                        age_s,
                    )
                    for one in test["input_series"]
                ]
                return Plant(alert, series, labels)
    pytest.fail(f"alerts_test.yml: no test in which {alert} fires")


def expositions(plants: list[Plant], start: int) -> str:
    """Return the past of all plants as OpenMetrics, in which all series of one name stand together."""
    every = sorted((series for plant in plants for series in plant.series), key=lambda series: series.name)
    return "".join(f"{line}\n" for series in every for line in series.past(start)) + "# EOF\n"


@dataclass
class Receivers:
    """A web server and a mail server that keep what they get, each only from whoever has the secret.

    Args:
        path: directory for the mail server's certificate.
    """

    path: Path
    hooks: list[dict[str, Any]] = field(default_factory=list)
    mails: list[Message] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def open(self) -> None:
        receivers = self

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                right = self.headers["Authorization"] == f"Bearer {TOKEN}"
                if right:
                    receivers.hooks.append(json.loads(content))
                else:
                    receivers.refused.append(f"webhook: {self.headers['Authorization']}")
                self.send_response(200 if right else 403)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        def authenticate(_: object, session: Session, __: object, ___: object, data: object) -> AuthResult:
            right = isinstance(data, LoginPassword) and data.password == PASSWORD.encode()
            if not right:
                receivers.refused.append(f"mail: {data}")
            return AuthResult(success=right)

        class Mailbox:
            async def handle_DATA(self, _: object, session: Session, envelope: Envelope) -> str:  # noqa: N802
                assert isinstance(envelope.content, bytes)
                receivers.mails.append(message_from_bytes(envelope.content, policy=default))
                return "250 OK"

        context = self._tls()
        self._web = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.web_port = self._web.server_port
        threading.Thread(target=self._web.serve_forever, daemon=True).start()
        self.mail_port = free_port()
        self._mail = Controller(
            Mailbox(),
            hostname="127.0.0.1",
            port=self.mail_port,
            authenticator=authenticate,
            auth_required=True,
            auth_exclude_mechanism=["LOGIN"],  # aiosmtpd asks for it in words that Alertmanager does not know
            require_starttls=True,
            tls_context=context,
        )
        self._mail.start()

    @property
    def certificate(self) -> Path:
        return self.path / "mail.pem"

    def _tls(self) -> ssl.SSLContext:
        request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
        files = ["-keyout", str(self.path / "mail.key"), "-out", str(self.certificate)]
        subprocess.run([binary("openssl"), *request.split(), *files], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.path / "mail.key")
        return context

    def close(self) -> None:
        """End both. Whoever sends mails has ended before: a connection that is open would be left behind."""

        async def settle() -> None:
            if sessions := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(sessions)
            await asyncio.sleep(0.1)  # the ends of the connections are closed

        self._web.shutdown()
        self._web.server_close()
        asyncio.run_coroutine_threadsafe(settle(), self._mail.loop).result(PATIENCE_S)
        self._mail.stop()

    def told(self) -> list[dict[str, Any]]:
        """Return the firing alerts that the webhook got."""
        return [alert for hook in list(self.hooks) for alert in hook["alerts"] if alert["status"] == "firing"]


class World:
    """Prometheus with the shipped rules and Alertmanager with the example, as processes.

    Changed are addresses and intervals alone, and no alert waits: how long each does is tested by promtool.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plants = read_plants()
        self.receivers = Receivers(path)
        self.port, self.alertmanager_port = free_port(), free_port()
        self.config = path / "prometheus"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._servers: list[ThreadingHTTPServer] = []
        shutil.copytree(SOURCES, self.config)
        main = self.config / "prometheus.yml"
        main.write_text(re.sub(r"(interval|timeout): \d+s", r"\1: 1s", main.read_text(encoding="utf-8")))
        alerts = self.config / "rules" / "alerts.yml"
        alerts.write_text(re.sub(r"(?m)^( +for): \w+", r"\1: 0s", alerts.read_text(encoding="utf-8")))
        self.receivers.open()

    def start(self) -> None:
        self._start_alertmanager()
        began = int(time.time())
        self._write_past(began)
        answers = {
            "/metrics": lambda: "".join(
                series.present(began, time.time()) for plant in self.plants for series in plant.series
            ),
            "/targets": lambda: "[]",
        }
        scaler, broker = self._serve(answers), self._serve({"/metrics": lambda: "tsunagi_kafka_up 1\n"})
        # It finds Alertmanager only seconds after its first alerts, and would send them again after a minute.
        command = [str(self.config / "start"), "--rules.alert.resend-delay=1s"]
        self._start("prometheus", command, **self._environment(scaler, broker))
        self.wait(lambda: self._ready(self.port), "Prometheus")

    def _environment(self, scaler: int, broker: int) -> dict[str, str]:
        return {
            "SCALER": f"127.0.0.1:{scaler}",
            "KAFKA_NODES": f"127.0.0.1:{broker}",
            "ALERTMANAGER": f"127.0.0.1:{self.alertmanager_port}",
            "PROMETHEUS_CONFIG": str(self.config),
            "PROMETHEUS_DATA": str(self.path / "data"),
            "PROMETHEUS_LISTEN": f"127.0.0.1:{self.port}",
        }

    def _start_alertmanager(self) -> None:
        addresses = {
            "mail.example.org:587": f"127.0.0.1:{self.receivers.mail_port}",
            "/etc/alertmanager/secrets/mail-password": str(self.config / "secrets" / "mail-password"),
            "/etc/alertmanager/secrets/webhook-token": str(self.config / "secrets" / "webhook-token"),
            "https://hooks.example.org/tsunagi": f"http://127.0.0.1:{self.receivers.web_port}/",
        }
        file = self.config / "alertmanager.yml"
        text = file.read_text(encoding="utf-8")
        for theirs, ours in addresses.items():
            assert text.count(theirs) == 1
            text = text.replace(theirs, ours)
        file.write_text(re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text))
        (self.config / "secrets").mkdir()
        (self.config / "secrets" / "mail-password").write_text(PASSWORD)
        (self.config / "secrets" / "webhook-token").write_text(TOKEN)
        listen = f"--web.listen-address=127.0.0.1:{self.alertmanager_port}"
        options = [f"--config.file={file}", f"--storage.path={self.path / 'alertmanager'}", listen]
        command = [binary("prometheus-alertmanager"), *options, "--cluster.listen-address="]
        self._start("alertmanager", command, SSL_CERT_FILE=str(self.receivers.certificate))
        self.wait(lambda: self._ready(self.alertmanager_port), "Alertmanager")

    def _write_past(self, start: int) -> None:
        """Write the past of the plants, and what Prometheus would have recorded of it."""
        data = self.path / "data"
        (self.path / "past.txt").write_text(expositions(self.plants, start))
        self._promtool("create-blocks-from", "openmetrics", "--quiet", str(self.path / "past.txt"), str(data))
        nothing = self.path / "nothing.yml"
        nothing.write_text("{}\n")
        options = [f"--config.file={nothing}", f"--storage.tsdb.path={data}"]
        self._start("past", [binary("prometheus"), *options, f"--web.listen-address=127.0.0.1:{self.port}"])
        self.wait(lambda: self._ready(self.port), "the Prometheus that has the past")
        span = [f"--start={start - 900}", f"--end={start}", "--eval-interval=5s"]
        url = f"--url=http://127.0.0.1:{self.port}"
        rules = str(self.config / "rules" / "recording.yml")
        recorded = self.path / "recorded"
        self._promtool("create-blocks-from", "rules", url, *span, f"--output-dir={recorded}", rules)
        self.end("past", signal.SIGTERM)
        for block in recorded.glob("01*"):
            block.rename(data / block.name)

    def _promtool(self, *arguments: str) -> None:
        command = [binary("promtool"), "tsdb", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def _start(self, name: str, command: Sequence[str | Path], **environment: str) -> None:
        with (self.path / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=log, stderr=subprocess.STDOUT
            )

    def _serve(self, answers: dict[str, Callable[[], str]]) -> int:
        """Answer questions by GET, and return the port."""

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = answers[self.path]().encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json" if self.path == "/targets" else "text/plain")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._servers.append(server := ThreadingHTTPServer(("127.0.0.1", 0), Answers))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    def _ready(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def suppressed(self) -> list[Labels]:
        """Return the labels of the alerts that Alertmanager holds back because of others."""
        asked = urllib.parse.urlencode({"active": "false", "silenced": "false", "unprocessed": "false"})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.alertmanager_port}/api/v2/alerts?{asked}") as answer:
            return [alert["labels"] for alert in json.load(answer) if alert["status"]["inhibitedBy"]]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} has ended\n{self.state()}"
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what}\n{self.state()}"
            time.sleep(0.2)

    def state(self) -> str:
        lines = [f"refused: {self.receivers.refused[-3:]}"]
        for log in sorted(self.path.glob("*.log")):
            lines += [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-12:]]
        return "\n".join(lines)

    def end(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        for name in list(self._processes):
            self.end(name, signal.SIGKILL)
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self.receivers.close()
