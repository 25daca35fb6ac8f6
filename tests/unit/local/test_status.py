"""`tsunagi status` says who does what, and cuts no name and no number, however narrow the terminal is."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tsunagi.local.status import _sensors, print_status, sensors_line
from tsunagi.runtime.fleet_table import pack_table
from tsunagi.runtime.sensors import Sensor, read_sensors
from tsunagi.runtime.settings import Settings

SPARK = {
    "batch": 7,
    "batch_s": 0.31,
    "latency_s": 0.42,
    "frontier": 12,
    "newest": 17,
    "behind_s": 10.0,
    "held_by": [1],
    "left_behind": [2],
    "carried": 40,
    "order": "optimised",
    "cut": 1,
    "fault": "recovered/1: the topic was made anew",
}


def slot(number: int, **fields: object) -> dict[str, Any]:
    plain = {
        "slot": number, "owner": "gw-1", "epoch": 3, "position": 10, "end": 12, "lag": 2, "step": 5, "secondary": "",
        "batch_size": 0, "secondary_ready": False, "secondary_reason": "nobody stands by", "secondary_lag": 12,
        "recovered_end": 4, "spark_lag": 1, "declared": "",
    }  # fmt: skip
    return plain | fields


def node(name: str, **fields: object) -> dict[str, Any]:
    plain = {
        "node": name, "role": "worker", "pid": 7, "host": "", "age_s": 0.1, "leaving": False, "metrics_port": 99,
        "slots": {"0": "primary"}, "overloaded_s": 0.0,
    }  # fmt: skip
    return plain | fields


def whole(**fields: object) -> dict[str, Any]:
    plain = {"slots": [], "spark": {}, "nodes": [], "processes": [], "results": {"0": 5}, "late": 0, "dead_letters": 1}
    plain |= {"recovery": {}, "step_s": 1.0, "sensors": {"sensors": 3, "edges": 2, "fault": ""}, "sinks": []}
    return plain | fields


def shown(status: dict[str, Any], width: int) -> str:
    output = io.StringIO()
    print_status(status, Console(file=output, width=width))
    return output.getvalue()


def test_the_status_table() -> None:
    status = whole(
        slots=[slot(0, declared="generation 7 begins at offset 9")],
        spark=SPARK,
        nodes=[node("gw-1")],
        processes=[{"node": "gw-1", "alive": True}, {"node": "spark", "alive": False}],
    )
    text = shown(status, 160)
    assert "gw-1" in text
    assert "none" in text
    assert "no heartbeat yet: spark (dead)" in text
    assert "dead letters: 1" in text
    assert "slot 0: generation 7 begins at offset 9" in text
    words = " ".join(text.split())
    assert "batch 7 took 0.31 s, results 0.42 s after their input; order optimised (1 groups cut)" in words
    assert "frontier at step 12, 10 s behind the newest slot (40 rows wait); waiting for slot 1" in words
    assert "left behind: slot 2; not the log that it knew: recovered/1: the topic was made anew" in words
    assert "Spark: batch" not in shown(status | {"spark": {}}, 160)
    assert "; no result yet" in " ".join(shown(status | {"spark": SPARK | {"frontier": -1}}, 160).split())


def test_it_says_which_sensors_table_is_in_force(tmp_path: Path) -> None:
    settings = Settings(sensors=tmp_path / "sensors.csv")
    settings.sensors.write_text("sensor,edge,site\na,e1,north\nb,e2,\n")
    assert sensors_line(_sensors(None, settings)) == "2 on 2 edges"
    table = read_sensors(settings.sensors)
    gone = Sensor(2, "c", "", before="e3", attributes=("",))
    record = pack_table(replace(table, sensors=(*table.sensors, gone)), by="ann", from_us=1_700_000_000_000_000)
    since = "2 on 2 edges, in force by ann since 2023-11-14T22:13:20Z"
    assert sensors_line(_sensors(record, settings)) == since
    settings.sensors.write_text("edge,sensor\ne2,b\ne1,a\n")
    assert sensors_line(_sensors(record, settings)) == f"{since}; the file differs, and has not been applied"
    settings.sensors.write_text("site,edge,sensor\n,e2,b\nnorth,e1,a\n")
    assert sensors_line(_sensors(record, settings)) == since, "rows and columns may stand in any order"
    settings.sensors.unlink()
    assert "cannot be used" in sensors_line(_sensors(record, settings))
    assert "sensors: 3 on 2 edges\n" in shown(whole(), 80)


LEARNER = {"steps": 150, "needed": 200, "fitting": False, "fault": "", "out": []}
LEARNED = {"sha256": "ab" * 32, "by": "learner", "sensors": 37, "steps": 200, "error": 0.38, "naive": 0.93}


@pytest.mark.parametrize(
    ("recovery", "says"),
    [
        ({"model": "", "learn": False}, "no model ([recovery] model): lost values stay missing"),
        ({"model": "m.bin", "learn": False}, "recovery: model m.bin"),
        ({"model": "", "learn": True}, "no model yet: lost values stay missing; the learner does not run"),
        (
            {"model": "", "learn": True, "learner": LEARNER},
            "no model yet: lost values stay missing; the learner has 150 of 200 steps for the next one (100 s to go)",
        ),
        ({"model": "", "learn": True, "learner": LEARNER | {"fitting": True}}, "the learner fits one to 150 steps"),
        (
            {"model": "", "learn": True, "in_force": LEARNED, "learner": LEARNER | {"out": ["e1", "e2"]}},
            "on hidden readings it errs by 0.38 sd (last value or mean: 0.93); a new one waits until these edges",
        ),
        (
            {"model": "", "learn": True, "learner": LEARNER | {"fault": "too few"}},
            "the learner's last model was not put in force: too few; the learner has 150",
        ),
        (
            {"model": "", "learn": True, "in_force": LEARNED | {"by": "user"}, "learner": LEARNER},
            "model of 37 sensors, abababababab, by `tsunagi recovery use`; the learner makes none until",
        ),
    ],
)
def test_what_is_known_of_lost_values(recovery: dict[str, Any], says: str) -> None:
    assert says in " ".join(shown(whole(recovery=recovery, step_s=2.0), 100).split())


LARGE = whole(
    slots=[
        slot(
            number,
            owner=f"gateway-{number % 10 + 10}",
            epoch=1234,
            position=98_765_432,
            lag=87_654,
            step=1_234_567,
            secondary=f"gateway-{(number + 1) % 10 + 10}",
            secondary_ready=number != 7,
            secondary_reason="its [standby] batch_size differs from the owner's: found 1, expected 500",
            secondary_lag=76_543,
            batch_size=54_321,
            spark_lag=65_432,
        )
        for number in range(20)
    ],
    spark=SPARK,
    nodes=[
        node(f"gateway-{number}", pid=1, host="3f2a9c81d0e4", metrics_port=45_678,
             slots={str(at): "standby" if at % 2 else "primary" for at in range(20)})
        for number in range(10, 20)
    ] + [node("edge-of-the-northern-district", role="edge", host="edge-7d4cf7b9f8-abcde.factory.example", slots={})],
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_cut(width: int) -> None:
    text = shown(LARGE, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for heading in ("slot", "owner", "epoch", "offset", "lag", "step", "secondary", "behind", "B", "Spark"):
        assert heading in words
    for heading in ("node", "role", "process", "heartbeat", "metrics", "slots"):
        assert heading in words
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for number in range(20):
        first = f"{number} gateway-{number % 10 + 10} 1234 98765432 87654 1234567"
        second = f"gateway-{(number + 1) % 10 + 10} 76543 54321 65432"
        wanted = [f"{first} {second}"] if width >= 80 else [first, f"{number} {second}"]
        assert not [line for line in wanted if line not in lines]
    for whole_word in ("edge-of-the-northern-district", "98765432", "45678", "gateway-17"):
        assert whole_word in words
    assert "slot 7: gateway-18 is not ready to take over: its [standby] batch_size differs" in " ".join(words)


def test_at_80_columns_a_slot_is_one_line() -> None:
    text = shown(whole(slots=[slot(17, owner="gateway-17", secondary="gateway-18", secondary_ready=True)]), 80)
    assert "17 gateway-17 3 10 2 5 gateway-18 12 inf 1" in [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_name_longer_than_the_terminal_goes_on_in_the_next_line(width: int) -> None:
    name = "".join(chr(ord("a") + at % 26) for at in range(100))
    text = shown(whole(slots=[slot(0, owner=name)], nodes=[node(name)]), width)
    assert "…" not in text
    letters = "".join(char for char in text if char.islower())
    assert max(map(len, text.splitlines())) <= width
    assert all(letter * 2 in "".join(sorted(letters)) for letter in set(name))


def test_a_process_is_told_by_its_pid_here_and_by_its_host_elsewhere() -> None:
    status = whole(
        nodes=[node("gw-1", host="here"), node("gw-2", host="here"), node("gw-3", host="3f2a9c81d0e4"), node("gw-4")],
        processes=[{"node": "gw-1", "alive": True}, {"node": "gw-2", "alive": False}],
    )
    lines = {
        line.split()[0]: " ".join(line.split()[2:]) for line in shown(status, 80).splitlines() if " worker " in line
    }
    assert lines["gw-1"].startswith("pid 7 0.1 s ago")
    assert lines["gw-2"].startswith("pid 7 dead 0.1 s ago")
    assert lines["gw-3"].startswith("3f2a9c81d0e4 pid 7 0.1 s ago")
    assert lines["gw-4"].startswith("pid 7 0.1 s ago")


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    text = shown(whole(slots=[slot(0, declared="[slots] count: found [red]3", owner="[bold]x")]), 80)
    assert "[slots] count: found [red]3" in text
    assert "[bold]x" in text


def test_a_system_without_a_model_says_how_to_get_one() -> None:
    none = {"model": "", "learn": False}
    assert "tsunagi fit --from-log" in " ".join(shown(whole(recovery=none), 60).split())
    assert "no model" not in shown(whole(), 60)


def test_an_overloaded_worker_is_named_and_since_when() -> None:
    text = shown(whole(nodes=[node("gw-1", overloaded_s=75.4), node("gw-2")]), 80)
    (line,) = [item for item in text.replace("\n", " ").split("gw-1") if "more records" in item]
    assert "than it can process for 75 s" in " ".join(line.split())
    assert "overloaded" not in shown(whole(nodes=[node("gw-2")]), 80)
