"""Everything that the console knows of the running system, kept up to date by threads of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from structlog.stdlib import BoundLogger

from tsunagi.console.alerts import Alerts, AlertsFollower
from tsunagi.console.asides import Asides, AsidesFollower
from tsunagi.console.following import Follower, Following
from tsunagi.console.history import number
from tsunagi.console.nodes import Nodes
from tsunagi.console.results import ResultsFollower
from tsunagi.console.spending import Spending, SpendingFollower
from tsunagi.console.tails import Tails
from tsunagi.console.takeovers import Takeovers
from tsunagi.console.values import Values
from tsunagi.console.wishes import Wishes, WishesFollower
from tsunagi.runtime.log import Log
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings

if TYPE_CHECKING:
    from tsunagi.console.traces import Traces

MOST_FOUND = 200
"""Most sensors that one search returns."""


class Observer:
    """Follows the log, and says what the pages show. Its methods may be called from any thread.

    Args:
        log: the log of the system; readers of it are opened by the threads.
        table: the sensors table with which it begins.
    """

    def __init__(self, settings: Settings, log: Log, table: SensorTable, logger: BoundLogger) -> None:
        self.settings = settings
        self.log = log
        self.values = Values(table)
        self._takeovers = Takeovers(silent_s=2 * settings.standby.heartbeat_s)
        self._asides = Asides()
        self._spending = Spending(settings)
        self._alerts = Alerts()
        self._wishes = Wishes(settings, logger)
        self._nodes: dict[str, Any] = {}
        self._tails = Tails(log, settings, logger)
        followers: dict[str, Callable[[], Follower]] = {
            "heartbeats": lambda: Nodes(log, settings, self._takeovers, self._put),
            "results": lambda: ResultsFollower(log, settings, self.values),
            "the scaler": lambda: SpendingFollower(self._spending, self._scaler),
            "dead letters": lambda: AsidesFollower(log, self._asides),
            "plan": lambda: WishesFollower(log, self._wishes, logger),
        }
        address = settings.console.prometheus
        if address:
            followers["alerts"] = lambda: AlertsFollower(address, self._alerts)
        self._traces: Traces | None = None
        if settings.console.traces:
            from tsunagi.console.traces import Traces, TracesFollower, otlp  # noqa: PLC0415 - few need OpenTelemetry

            traces = self._traces = Traces(settings.console.traces_share, otlp(settings.console.traces))
            followers["traces"] = lambda: TracesFollower(log, traces)
        self._followings = {name: Following(name, make, logger) for name, make in followers.items()}

    def start(self) -> None:
        """Begin to follow."""
        for following in self._followings.values():
            following.start()

    def close(self) -> None:
        """Stop following."""
        for following in self._followings.values():
            following.close()
        if self._traces is not None:
            self._traces.close()
        self._takeovers.close()
        self._tails.close()

    def _put(self, view: dict[str, Any]) -> None:
        self._nodes = view

    def _scaler(self) -> str:
        """Return where the scaler's metrics are; "" = none lives."""
        for node in self._nodes.get("nodes", ()):
            if node["role"] == "scaler" and node["alive"] and node["metrics_port"]:
                return f"{node['host'] or '127.0.0.1'}:{node['metrics_port']}"
        return ""

    def faults(self) -> list[dict[str, Any]]:
        """Return what cannot be read at present, and why."""
        return [
            {"what": name, "fault": following.fault, "since_s": round(following.since_s, 1)}
            for name, following in self._followings.items()
            if following.fault
        ]

    def fleet(self) -> dict[str, Any]:
        """Return the edges: their sensors by quality of the newest result, and whether they live."""
        now_us = time.time_ns() // 1000
        heard: Mapping[str, Any] = self._nodes.get("edges", {})
        edges = [
            {
                "edge": edge,
                "alive": heard.get(edge, {}).get("alive", False),
                "heard_us": heard.get(edge, {}).get("heard_us"),
            }
            | counts
            for edge, counts in self.values.edges().items()
        ]
        return {
            "edges": edges,
            "rate": round(self.values.rate(now_us), 1),
            "spark": {name: item for name, item in self._nodes.get("spark", {}).items() if name != "queries"},
            "learner": self._nodes.get("learner", {}),
            "step_s": self.settings.steps.slide_s,
            "faults": self.faults(),
        }

    def slots(self) -> dict[str, Any]:
        """Return the slots, the nodes that are no edges, and the takeovers, the newest first."""
        return {
            "slots": [item | self._wishes.limits(item["slot"]) for item in self._nodes.get("slots", ())],
            "nodes": self._nodes.get("nodes", []),
            "takeovers": self._takeovers.list(),
            "faults": self.faults(),
        }

    def troubles(self) -> dict[str, Any]:
        """Return the alerts (None = nobody was named who knows them), what was set aside, and what operators did."""
        alerts = self._alerts.view() if self.settings.console.prometheus else None
        return self._asides.view() | {"alerts": alerts, "acts": self._wishes.acts(), "faults": self.faults()}

    def cost(self) -> dict[str, Any]:
        """Return load, forecast and workers of the last hours, and what they cost."""
        return self._spending.view()

    def queries(self) -> list[dict[str, Any]]:
        """Return what the Spark job says of each query."""
        found: list[dict[str, Any]] = self._nodes.get("spark", {}).get("queries", [])
        return found

    def sinks(self) -> list[dict[str, Any]]:
        """Return how far each sink is (`tsunagi.local.sinks`)."""
        found: list[dict[str, Any]] = self._nodes.get("sinks", [])
        return found

    def rows(self, query: str) -> dict[str, Any]:
        """Return the newest rows of a query; only the thread of the web server may ask."""
        return self._tails.rows(query)

    def find(self, text: str, edge: str, quality: str) -> dict[str, Any]:
        """Return sensors whose name or group contains a text, of one edge and one quality if they are given."""
        ids, table = self.values.select(text, edge, quality), self.values.table
        return {"found": len(ids), "sensors": [self._line(table.sensors[place]) for place in ids[:MOST_FOUND]]}

    def _line(self, sensor: Sensor) -> dict[str, Any]:
        names = {"sensor": sensor.name, "edge": sensor.edge, "group": sensor.group, "unit": sensor.unit}
        return names | {"quality": self.values.quality(sensor.id)} | self._newest(sensor)

    def _newest(self, sensor: Sensor) -> dict[str, Any]:
        found = self.values.newest(sensor.id)
        if found is None:
            return {"time_us": None, "value": None, "bound": None, "since_us": None}
        return {
            "time_us": found.time_us,
            "value": number(found.value),
            "bound": number(found.bound),
            "since_us": found.since_us,
        }

    def sensor(self, name: str) -> Sensor | None:
        """Return a sensor that is part of the fleet, by its name."""
        return next((item for item in self.values.table.sensors if item.name == name and not item.removed), None)

    def about(self, sensor: Sensor) -> dict[str, Any]:
        """Return what is known of a sensor now."""
        attributes = dict(zip(self.values.table.attributes, sensor.attributes, strict=False))
        known = self.values.table.sensors
        helpers = [known[place].name for place in self._wishes.helpers(sensor.id) if place < len(known)]
        return self._line(sensor) | {"attributes": attributes, "helpers": helpers}

    def places(self) -> list[list[Any]]:
        """Return [sensor, lat, lon, quality] of the sensors whose row has both as numbers."""
        table = self.values.table
        if not {"lat", "lon"} <= set(table.attributes):
            return []
        lat, lon = (table.attributes.index(name) for name in ("lat", "lon"))
        found: list[list[Any]] = []
        for sensor, word in zip(table.sensors, self.values.qualities(), strict=False):
            if word and len(sensor.attributes) > max(lat, lon):
                try:
                    at = [float(sensor.attributes[lat]), float(sensor.attributes[lon])]
                except ValueError:
                    continue
                found.append([sensor.name, *at, word])
        return found
