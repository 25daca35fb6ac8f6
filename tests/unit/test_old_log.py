"""A log that an earlier version wrote is computed again, and taken over, by this one (docs/architecture.md).

`tests/data/logs` holds three logs of slots of the simulator, with their results, contexts and models, as the version of
2026-11-26 wrote them: one with helpers, one with calibrations, both in lock-step, and one without steps. Nobody writes
them anew: a change of the code that needs other files breaks its users' logs.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store, store_path
from tsunagi.replay.generations import Generation, generations
from tsunagi.replay.slots import replay_slot
from tsunagi.runtime.log import CONTEXTS, RECOVERED, TUPLES, Record
from tsunagi.runtime.messages import Context
from tsunagi.slot.slot import Slot

LOGS = Path(__file__).parents[1] / "data" / "logs"
NAMES = ("helped", "calibrated", "tuples")

EACH = 4
"""Of the contexts of a log every fourth is resumed from: each of them costs the rest of the log."""


@dataclass(frozen=True)
class OldLog:
    """The records of one slot by topic, and the store with the models that its log names."""

    records: dict[str, list[Record]]
    store: Path

    def load(self, sha256: str) -> Model:
        return load_from_store(self.store, sha256)

    def generation(self, offset: int) -> int:
        """Return the generation that what follows from the record at this offset is in."""
        begun: list[Generation] = generations(self.records[TUPLES])
        return next((item.generation for item in reversed(begun) if item.begin <= offset), 0)

    def results(self, slot: Slot, first: int) -> dict[bytes, bytes]:
        """Return key -> value of each record of `recovered` that follows from the log from offset `first` on."""
        found = {}
        for record in self.records[TUPLES][first:]:
            for output in slot.apply(record):
                if output.topic == RECOVERED:
                    key, value = output.encode(slot.slot, self.generation(output.name.offset))
                    found[key] = value
        return found


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> OldLog:
    records: dict[str, list[Record]] = {TUPLES: [], RECOVERED: [], CONTEXTS: []}
    for line in gzip.decompress((LOGS / f"{request.param}.jsonl.gz").read_bytes()).splitlines():
        item = json.loads(line)
        value = None if item["value"] is None else base64.b64decode(item["value"])
        if "model" in item:
            store_path(tmp_path, item["model"]).write_bytes(value or b"")
            continue
        key = None if item["key"] is None else base64.b64decode(item["key"])
        records[item["topic"]].append(Record(item["topic"], 0, item["offset"], item["appended_us"], key, value))
    return OldLog(records, tmp_path)


def test_replay_finds_no_difference(old: OldLog) -> None:
    found = replay_slot(old.records[TUPLES], old.records[RECOVERED], old.store)
    assert (found.differing, found.differences) == (0, [])
    assert found.compared > 50


def test_a_slot_makes_the_same_bytes(old: OldLog) -> None:
    written = {record.key: record.value for record in old.records[RECOVERED]}
    made = old.results(Slot(0, old.load), 0)
    assert len(written) > 50
    assert {key: made.get(key or b"") for key in written} == written


def test_every_context_is_taken_over(old: OldLog) -> None:
    made = old.results(Slot(0, old.load), 0)
    contexts = [Context.FromString(record.value or b"") for record in old.records[CONTEXTS]]
    resumable = [context for context in contexts if context.parts <= 1 and context.offset < len(old.records[TUPLES])]
    assert len(resumable) > 5
    for context in resumable[::EACH]:
        slot = Slot(0, old.load)
        slot.restore(context)
        rest = old.results(slot, context.offset)
        assert rest
        assert {key: made[key] for key in rest} == rest
