"""The timeline of takeovers, as heartbeats tell it: who owned a slot, who owns it now, and how long each part took."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import structlog
from prometheus_client.parser import text_string_to_metric_families

from tsunagi.console.asking import read_text
from tsunagi.local.fleet import Fleet
from tsunagi.runtime.beat_routes import OWNING
from tsunagi.runtime.messages import Heartbeat, SlotBeat
from tsunagi.runtime.metrics import PHASES

KEPT = 200
"""Takeovers that are kept, the newest."""
ASKERS = 4
"""Number of nodes that are asked for their metrics at a time."""
_ASK_S = 1.0
"""Longest wait for a worker's metrics, in seconds."""

Phases = dict[str, float]
Ask = Callable[[Heartbeat, int], Phases | None]
"""Asks a node for the sums of its takeovers' parts for a slot, in seconds; None = it did not answer."""


@dataclass(slots=True)
class Takeover:
    """One change of a slot's owner.

    Attributes:
        epoch: the term of the new owner.
        former: the owner before; "" = nobody was known to be.
        cause: died (it has not been heard since) | silent (it was silent for long, and lives) | left (it stopped in
            good order) | moved (it lives and gave the slot up).
        heard_us: when the log appended the former owner's last heartbeat, microseconds since 1970; 0 = never.
        seen_us: when the log appended the first heartbeat in which the new one says so.
        caught_up_us: when it appended the first one in which the new owner has no backlog left; 0 = not yet.
        phases: what the new owner measured, in seconds: detect, promote, catch_up; empty = it could not be asked.
    """

    slot: int
    epoch: int
    owner: str
    former: str
    cause: str
    heard_us: int
    seen_us: int
    caught_up_us: int = 0
    phases: Phases = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(slots=True)
class _Owner:
    node: str
    epoch: int
    heard_us: int
    incarnation: int


class _Doubt(NamedTuple):
    """A takeover whose former owner counts as dead until that process is heard again."""

    takeover: Takeover
    incarnation: int


class Takeovers:
    """Finds takeovers in what a `Fleet` has heard. Only the thread that updates the fleet may call `look`.

    Args:
        ask: asks the new owner how long the parts took; it is called in threads of their own.
        silent_s: an owner that lives and was unheard for longer was taken for dead, seconds; else it gave the slot up.
    """

    def __init__(self, ask: Ask | None = None, silent_s: float = 0.5) -> None:
        self._ask = ask if ask is not None else ask_metrics
        self._lock = threading.Lock()
        self._owners: dict[int, _Owner] = {}
        self._found: deque[Takeover] = deque(maxlen=KEPT)
        self._open: list[Takeover] = []
        self._doubts: deque[_Doubt] = deque(maxlen=KEPT)
        self._silent_us = round(silent_s * 1e6)
        self._askers = ThreadPoolExecutor(ASKERS, thread_name_prefix="console-metrics")
        self._before: dict[tuple[str, int], Phases] = {}  # by (node, slot): what was known of its earlier takeovers

    def close(self) -> None:
        """Ask nobody any more."""
        self._askers.shutdown(wait=False, cancel_futures=True)

    def list(self) -> list[dict[str, Any]]:
        """Return the takeovers, the newest first."""
        with self._lock:
            return [item.as_json() for item in reversed(self._found)]

    def look(self, fleet: Fleet) -> None:
        """Compare what the fleet says with what it said before."""
        best: dict[int, tuple[int, bool, str, SlotBeat]] = {}
        for node, beat in fleet.beats.items():
            if beat.message.role != "worker":
                continue
            for part in beat.message.slots:
                if part.role in OWNING:
                    found = part.epoch, part.role == "primary", node, part
                    if part.slot not in best or found[:3] > best[part.slot][:3]:
                        best[part.slot] = found
        for slot, (epoch, primary, node, part) in best.items():
            beat = fleet.beats[node]
            appended_us = beat.appended_us
            owner = _Owner(node, epoch, appended_us, beat.message.incarnation)
            known = self._owners.get(slot)
            if known is not None and epoch > known.epoch and node != known.node:
                self._take(fleet, slot, known, owner)
            self._owners[slot] = owner
            if primary and not part.taking_up:
                self._caught_up(fleet, slot, epoch, appended_us)
        self._heard_again(fleet)

    def _take(self, fleet: Fleet, slot: int, former: _Owner, owner: _Owner) -> None:
        last = fleet.beats.get(former.node)
        if last is not None and last.message.incarnation != former.incarnation:
            last = None  # of a later process of that name
        heard_us = former.heard_us if last is None else last.appended_us
        found = Takeover(slot, owner.epoch, owner.node, former.node, "died", heard_us, owner.heard_us)
        if last is not None and last.message.leaving:
            found.cause = "left"
        elif last is not None and not owns(last.message, slot):
            found.cause = "moved"
        else:  # a secondary takes over within a tenth of a second of a death, so that no silence tells
            self._doubts.append(_Doubt(found, former.incarnation))
        with self._lock:
            self._found.append(found)
            self._open.append(found)

    def _heard_again(self, fleet: Fleet) -> None:
        """Take back that an owner has died, if its process is heard after its successor."""
        for doubt in tuple(self._doubts):
            found, beat = doubt.takeover, fleet.beats.get(doubt.takeover.former)
            if beat is None or beat.appended_us <= found.seen_us:
                continue
            self._doubts.remove(doubt)
            if beat.message.incarnation == doubt.incarnation:
                with self._lock:
                    silent = found.seen_us - found.heard_us > self._silent_us
                    found.cause = "left" if beat.message.leaving else "silent" if silent else "moved"

    def _caught_up(self, fleet: Fleet, slot: int, epoch: int, appended_us: int) -> None:
        for item in [item for item in self._open if item.slot == slot and item.epoch <= epoch]:
            with self._lock:
                item.caught_up_us = appended_us
                self._open.remove(item)
            if item.cause == "died" and item.epoch == epoch:
                message = fleet.beats[item.owner].message
                self._askers.submit(self._measure, item, message)

    def _measure(self, item: Takeover, message: Heartbeat) -> None:
        """Ask the new owner for its sums; what they have grown by is this takeover's."""
        sums = self._ask(message, item.slot)
        if sums is None:
            return
        with self._lock:
            before = self._before.get((item.owner, item.slot), {})
            self._before[item.owner, item.slot] = sums
            if sums.get("count", 0.0) - before.get("count", 0.0) == 1.0:
                item.phases = {phase: sums.get(phase, 0.0) - before.get(phase, 0.0) for phase in PHASES}


def owns(message: Heartbeat, slot: int) -> bool:
    """Return whether a heartbeat says that its node owns a slot, or takes it over."""
    return any(part.slot == slot and part.role in OWNING for part in message.slots)


def ask_metrics(message: Heartbeat, slot: int) -> Phases | None:
    """Return the sums of a node's takeovers of a slot by phase, and their "count"; None = it does not answer."""
    if not message.metrics_port:
        return None
    host = message.metrics_host or "127.0.0.1"
    try:
        return sums_of(read_text(f"http://{host}:{message.metrics_port}/metrics", _ASK_S), slot)
    except (OSError, ValueError) as error:
        structlog.get_logger("tsunagi.console").debug("no metrics", node=message.node, error=str(error))
        return None


def sums_of(text: str, slot: int) -> Phases:
    """Return the sums of `tsunagi_takeover_seconds` of a slot by phase, and the number of takeovers as "count"."""
    found: Phases = {}
    for family in text_string_to_metric_families(text):
        if family.name != "tsunagi_takeover_seconds":
            continue
        for sample in family.samples:
            if sample.labels.get("slot") == str(slot):
                if sample.name.endswith("_sum"):
                    found[sample.labels["phase"]] = sample.value
                elif sample.name.endswith("_count") and sample.labels["phase"] == PHASES[0]:
                    found["count"] = sample.value
    return found
