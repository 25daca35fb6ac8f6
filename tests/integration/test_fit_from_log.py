"""`tsunagi fit --from-log` on a real broker: a model of what edges have sent is that of the same readings in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tsunagi.recovery.fit import fit_history
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats, pack_floats, pack_sensors
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import TUPLES
from tsunagi.runtime.messages import LogRecord, TupleBatch
from tsunagi.runtime.sensors import place, read_sensors
from tsunagi.runtime.settings import KafkaSettings, Settings

SENSORS, STEPS, SLOTS = 8, 300, 2
FIRST = 1_700_000_000
"""The first step; a step is a second."""


def values_of(rng: np.random.Generator) -> Floats:
    """Return readings of sensors that move together, some of them missing: an edge is away for thirty steps."""
    common = np.cumsum(rng.normal(size=(STEPS, 1)), axis=0)
    values = 20 + common * rng.uniform(0.5, 2, SENSORS) + 0.2 * rng.normal(size=(STEPS, SENSORS))
    values[100:130, ::2] = np.nan
    return np.round(values, 3)


def test_a_model_of_what_edges_have_sent_is_that_of_the_same_readings_in_a_file(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    (tmp_path / "sensors.csv").write_text("sensor,edge\n" + "".join(f"s{n},e{n % 2}\n" for n in range(SENSORS)))
    settings = Settings.model_validate(
        {
            "sensors": tmp_path / "sensors.csv",
            "kafka": kafka_settings,
            "slots": {"count": SLOTS},
            "steps": {"window": 1, "slide": 1},
        }
    )
    table = read_sensors(settings.sensors)
    slot_of = np.array(place(table, SLOTS))
    values = values_of(np.random.default_rng(5))
    log = KafkaLog(kafka_settings, client_id="test")
    log.ensure_topics(settings)
    producer = log.producer()
    for row, at in enumerate(values):
        for edge in range(2):
            for slot in range(SLOTS):
                sent = [n for n in range(SENSORS) if n % 2 == edge and slot_of[n] == slot and np.isfinite(at[n])]
                batch = TupleBatch(
                    edge=f"e{edge}",
                    incarnation=1,
                    step=FIRST + row,
                    event_time_us=(FIRST + row) * 1_000_000,
                    sensor=pack_sensors(sent),
                    value=pack_floats([float(at[n]) for n in sent]),
                    count=pack_sensors([1] * len(sent)),
                )
                producer.send(TUPLES, slot, b"", LogRecord(version=1, batch=batch).SerializeToString())
    producer.send(TUPLES, 0, b"", b"nothing that anybody could read")
    assert producer.flush(60) == 0
    producer.close()
    environment = os.environ | {
        "TSUNAGI_SENSORS": str(settings.sensors),
        "TSUNAGI_KAFKA__SERVERS": kafka_settings.servers,
        "TSUNAGI_KAFKA__PREFIX": kafka_settings.prefix,
        "TSUNAGI_STEPS__WINDOW": "1",
        "TSUNAGI_STEPS__SLIDE": "1",
    }

    def fit(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tsunagi.cli", "fit", "--out", str(tmp_path / "model.bin"), *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    found = fit("--from-log", "--last", "7d", "--period", "none")
    assert found.returncode == 0, found.stderr
    assert f"{SENSORS} sensors, {STEPS} steps, 5.0% of their values missing" in found.stdout
    file = tmp_path / "history.csv"
    rows = [
        ",".join([str(FIRST + row), *("" if np.isnan(cell) else repr(float(cell)) for cell in at)])
        for row, at in enumerate(values)
    ]
    file.write_text("\n".join([",".join(["time", *(f"s{n}" for n in range(SENSORS))]), *rows]) + "\n")
    offline, _ = fit_history(file, table, settings.steps, 1.0, "none")
    learned = Model.load(tmp_path / "model.bin")
    assert learned.identity == offline.identity
    assert learned.about["numbered"]

    odd = fit("--from-log", "--last", "soon")
    assert odd.returncode == 2
    assert "found 'soon', expected a length of time such as 90s" in odd.stderr
    log.close()
