"""`tsunagi edge try`: what an edge reads in messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tsunagi.cli import cli
from tsunagi.edge.source import SourceError
from tsunagi.local.messages import try_messages
from tsunagi.runtime.messages import sparkplug_b_pb2 as pb
from tsunagi.runtime.sensors import SensorsError
from tsunagi.runtime.settings import Settings

FIELDS = [
    {"topic": "plant/{device}", "values": ["t", "p"], "sensor": "{device}.{field}", "time": "ts"},
    {"topic": "", "values": ["v"], "sensor": "{key}", "time": ""},
]


def tried(path: Path, edge: str, topic: str, key: str, *messages: bytes, **source: object) -> tuple[bool, list[str]]:
    table = path / "sensors.csv"
    table.write_text("sensor,edge\nboiler.t,hall\nboiler.p,hall\ntank,yard\n")
    said: list[str] = []
    settings = Settings.model_validate({"sensors": table, "source": source})
    return try_messages(settings, edge, topic, key, messages, said.append), said


def test_each_reading_is_a_line_or_why_it_cannot_be_used(tmp_path: Path) -> None:
    message = b'{"t": 81.5, "p": "high", "ts": 1714996800.25}'
    usable, said = tried(tmp_path, "", "plant/boiler", "", message, kind="mqtt", fields=FIELDS[:1])
    assert not usable
    assert said == [
        "boiler.t  2024-05-06T12:00:00.250000Z  81.5",
        "not-a-number: boiler.p: p: found 'high', expected a finite number",
    ]
    assert tried(tmp_path, "yard", "plant/boiler", "", b'{"t": 1, "ts": 1}', kind="mqtt", fields=FIELDS[:1])[1] == [
        "foreign-sensor: boiler.t: found a sensor of edge 'hall', expected one of this edge"
    ]
    usable, said = tried(tmp_path, "yard", "any", "tank", b'{"v": 1}', kind="kafka", fields=FIELDS[1:])
    assert usable
    assert said[0].endswith("  1.0  (time of arrival)")


def test_messages_of_tsunagis_own_form_and_topics_that_name_sensors(tmp_path: Path) -> None:
    usable, said = tried(
        tmp_path, "yard", "plant/yard/tank", "", b"7", b'{"time": "2024-05-06T12:00:00Z", "value": 8}', kind="mqtt"
    )
    assert usable
    assert said[0].startswith("tank  ")
    assert said[1] == "tank  2024-05-06T12:00:00Z  8.0"


def test_messages_in_line_protocol_and_of_sparkplug(tmp_path: Path) -> None:
    lines = [{"values": ["fields.*"], "sensor": "{measurement}.{field}", "time_unit": "ns"}]
    usable, said = tried(
        tmp_path, "", "", "", b"boiler t=1,p=2 1714996800000000000", kind="kafka", format="line-protocol", fields=lines
    )
    assert usable
    assert sorted(said) == ["boiler.p  2024-05-06T12:00:00Z  2.0", "boiler.t  2024-05-06T12:00:00Z  1.0"]
    metrics = [{"each": "metrics", "values": ["value"], "sensor": "{device}.{name}", "time": "timestamp"}]
    plug: dict[str, object] = {"kind": "mqtt", "format": "sparkplug", "fields": metrics}
    metric = pb.Payload.Metric(name="t", alias=4, datatype=pb.Int8, int_value=255)
    birth = pb.Payload(timestamp=1714996800, metrics=[metric]).SerializeToString().hex()
    data = pb.Payload(timestamp=1714996801, metrics=[pb.Payload.Metric(alias=4, int_value=2)]).SerializeToString().hex()
    given = [f"spBv1.0/my plant/DBIRTH/gw/boiler {birth}".encode(), data.encode(), b"spBv1.0/my plant/NDEATH/gw "]
    usable, said = tried(tmp_path, "", "spBv1.0/my plant/DDATA/gw/boiler", "", *given, **plug)
    assert said == [
        "boiler.t  2024-05-06T12:00:00Z  -1.0",
        "boiler.t  2024-05-06T12:00:01Z  2.0",
        "no-reading: NDEATH",
    ]
    with pytest.raises(SourceError, match="found 'x', expected hexadecimal digits"):
        tried(tmp_path, "", "", "", b"x", **plug)


def test_an_edge_without_sensors_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SensorsError, match="found no sensor of edge 'roof', expected one of hall, yard"):
        tried(tmp_path, "roof", "", "", b"1")


def test_the_command_reads_arguments_or_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sensors.csv").write_text("sensor,edge\ntank,yard\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TSUNAGI_SENSORS", "sensors.csv")
    monkeypatch.setenv("TSUNAGI_SOURCE__KIND", "lines")
    good, bad = '{"sensor": "tank", "time": "2024-05-06T12:00:00Z", "value": 1}', '{"sensor": "tank"}'
    for arguments, lines in (([good, bad], ""), ([], f"{good}\r\n{bad}\n")):
        found = CliRunner().invoke(cli, ["edge", "try", *arguments], input=lines)
        said = found.output.splitlines()
        assert found.exit_code == 1
        assert said[0] == "tank  2024-05-06T12:00:00Z  1.0"
        assert said[1].startswith("no-time: tank: ")
    assert CliRunner().invoke(cli, ["edge", "try", good]).exit_code == 0
