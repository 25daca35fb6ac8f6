"""A log that an earlier version wrote is computed again, and taken over, by this one (docs/architecture.md).

`tests/data/logs` holds three logs of slots of the simulator, with their results, contexts and models, as the version of
2026-11-26 wrote them: one with helpers, one with calibrations, both in lock-step, and one without steps. Nobody writes
them anew: a change of the code that needs other files breaks its users' logs.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store, store_path
from tsunagi.replay.generations import Generation, generations
from tsunagi.replay.slots import replay_slot
from tsunagi.runtime.columns import floats
from tsunagi.runtime.log import CONTEXTS, RECOVERED, TUPLES, Record
from tsunagi.runtime.messages import Context, Recovered
from tsunagi.runtime.threads import KERNELS
from tsunagi.slot.slot import Slot

LOGS = Path(__file__).parents[1] / "data" / "logs"
NAMES = ("helped", "calibrated", "tuples")

WROTE = "SkylakeX"
"""The kernels of OpenBLAS on the machine that wrote the logs."""

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


def test_a_slot_makes_the_same_outputs(old: OldLog) -> None:
    """The bytes are the same where the kernels are; those of other processors may round the last bit otherwise."""
    written = {record.key or b"": record.value or b"" for record in old.records[RECOVERED]}
    made = old.results(Slot(0, old.load), 0)
    assert len(written) > 50
    same = os.environ.get(KERNELS) == WROTE
    for key, value in written.items():
        if same or made[key] == value:
            assert made[key] == value
            continue
        found, expected = Recovered.FromString(made[key]), Recovered.FromString(value)
        for name in ("mean", "sd", "bound"):
            np.testing.assert_allclose(floats(getattr(found, name)), floats(getattr(expected, name)), rtol=1e-12)
            setattr(found, name, getattr(expected, name))
        assert found == expected


@pytest.mark.skipif("avx512f" not in Path("/proc/cpuinfo").read_text(), reason="the kernels that wrote it need AVX-512")
def test_with_the_kernels_that_wrote_it_the_bytes_are_the_same() -> None:
    test = f"{__file__}::test_a_slot_makes_the_same_outputs"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, env=os.environ | {KERNELS: WROTE}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


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
