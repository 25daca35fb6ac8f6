"""Units of series: where messages and the names of columns tell them, and what is none."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from tsunagi.edge.inbox import Message
from tsunagi.edge.source import SourceError
from tsunagi.project.finding import FoundFleet, find_in_file, find_in_messages
from tsunagi.project.folder import project, show
from tsunagi.project.units import unit_in_name
from tsunagi.runtime.messages import sparkplug_b_pb2 as pb

NOW_S = 1_700_000_000


def found_in(*payloads: tuple[str, bytes]) -> FoundFleet:
    messages = [
        Message(payload, topic, NOW_S * 1_000_000, topic=topic, offset=number)
        for number, (topic, payload) in enumerate(payloads)
    ]
    return find_in_messages({"kind": "mqtt", "mqtt": {"topic": "#"}}, messages)


def units(*bodies: object, topic: str = "x/d") -> dict[str, str]:
    found = found_in(*[(topic, json.dumps(body).encode()) for body in bodies])
    return {name: item.unit for name, item in found.series.items()}


@pytest.mark.parametrize("key", ["unit", "Units", "UoM", "unit_of_measurement"])
def test_a_unit_beside_the_value_is_its_own(key: str) -> None:
    assert units({"value": 21.5, key: "°C"}) == {"d": "°C"}
    assert units({"value": 21.5, "battery": 97, key: "°C"}) == {"d.value": "°C", "d.battery": ""}
    assert units({"t": {"value": 21.5, key: "°C"}, "p": {"value": 2, key: "bar"}}) == {
        "d.t.value": "°C",
        "d.p.value": "bar",
    }


def test_a_unit_beside_several_values_is_nobodys() -> None:
    assert units({"temperature": 21.5, "humidity": 40, "unit": "°C"}) == {"d.temperature": "", "d.humidity": ""}


@pytest.mark.parametrize(
    "told",
    [
        {"temperature_unit": "°C", "humidity_unit": "%"},
        {"temperatureUnit": "°C", "humidityUnit": "%"},
        {"units": {"temperature": "°C", "humidity": "%"}},
    ],
)
def test_units_that_name_their_values(told: dict[str, Any]) -> None:
    assert units({"temperature": 21.5, "humidity": 40} | told) == {"d.temperature": "°C", "d.humidity": "%"}


def test_units_of_attributes_and_of_items_that_name_themselves() -> None:
    assert units({"state": "21.5", "attributes": {"unit_of_measurement": "°C"}}) == {"d": "°C"}
    items = [{"name": "a b", "v": 1, "unit": "°C"}, {"name": "c", "v": 2, "unit": "bar"}, {"name": "e", "v": 3}]
    assert units({"data": items}) == {"a b": "°C", "c": "bar", "e": ""}


@pytest.mark.parametrize("told", [7, "7", True, "", "a long remark on this very value", None, "a\nb"])
def test_what_is_no_unit_is_none(told: object) -> None:
    assert set(units({"value": 21.5, "unit": told}).values()) <= {""}


@given(
    st.recursive(
        st.sampled_from(["°C", "", " ", "1", 2, True, None, 1.5]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["unit", "a", "a_unit", "units", "value", 'a "b".c', ""]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
@example(["1", {"unit": "1"}])  # the message itself is a value, which has no key
def test_units_stand_in_no_ones_way_whatever_comes(body: object) -> None:
    with contextlib.suppress(SourceError):
        assert set(units(body).values()) <= {"", "°C"}


def test_units_that_contradict_each_other_are_not_written_and_said() -> None:
    told = [(f"x/{name}", unit) for name in ("a", "b") for unit in ("°C", "°F" if name == "a" else "°C")]
    found = found_in(*[(topic, json.dumps({"value": 21.5, "unit": unit}).encode()) for topic, unit in told])
    text = io.StringIO()
    show(found, Console(file=text, width=200))
    assert "no unit is written where messages tell several: a (°C, °F)\n" in text.getvalue()
    assert text.getvalue().count("°C") == 2
    assert project(found)["sensors.csv"].splitlines()[1:] == ["a,x,x,,", "b,x,x,°C,"]


def test_units_that_messages_for_discovery_tell_of_others() -> None:
    zigbee = {
        "state_topic": "zigbee/door",
        "unit_of_measurement": "°C",
        "value_template": "{{ value_json.temperature }}",
    }
    short = {
        "~": "zigbee/door",
        "stat_t": "~",
        "unit_of_meas": "%",
        "val_tpl": "{{ value_json['soil moisture'] | float }}",
    }
    scaled = zigbee | {"unit_of_measurement": "V", "value_template": "{{ value_json.battery / 1000 }}"}
    plain = {"state_topic": "esp/tank/state", "unit_of_measurement": "bar"}
    configs = [(f"homeassistant/sensor/{n}/config", body) for n, body in enumerate((zigbee, short, scaled, plain))]
    values = [
        ("zigbee/door", {"temperature": 21.5, "soil moisture": 3, "battery": 2900}),
        ("esp/tank/state", 2.5),
        ("esp/well/state", 1.5),
    ]
    found = found_in(*[(topic, json.dumps(body).encode()) for topic, body in configs + values])
    assert {name: item.unit for name, item in found.series.items()} == {
        "door.temperature": "°C",
        "door.soil moisture": "%",
        "door.battery": "",
        "tank": "bar",
        "well": "",
    }


def test_the_birth_of_a_metric_tells_its_unit() -> None:
    properties = pb.Payload.PropertySet(
        keys=["low", "engUnit"], values=[pb.Payload.PropertyValue(), pb.Payload.PropertyValue(string_value="bar")]
    )
    born = pb.Payload.Metric(name="p", alias=1, datatype=pb.Float, float_value=2.5, properties=properties)
    other = pb.Payload.Metric(name="q", alias=2, datatype=pb.Float, float_value=2.5)
    birth = pb.Payload(timestamp=NOW_S * 1000, metrics=[born, other]).SerializeToString()
    data = pb.Payload(timestamp=NOW_S * 1000, metrics=[pb.Payload.Metric(alias=1, float_value=3)]).SerializeToString()
    found = found_in(("spBv1.0/plant/DBIRTH/gw/tank", birth), ("spBv1.0/plant/DDATA/gw/tank", data))
    assert {name: (item.unit, item.count) for name, item in found.series.items()} == {
        "tank.p": ("bar", 2),
        "tank.q": ("", 1),
    }


def test_a_column_keeps_its_whole_name_by_which_edges_find_it(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text("time,temperature [°C],pressure (bar)\n" + "".join(f"{row},{row},1\n" for row in range(5)))
    table = project(find_in_file(file))["sensors.csv"].splitlines()
    assert table[1:] == ["pressure (bar),plant,plant,bar,", "temperature [°C],plant,plant,°C,"]


@pytest.mark.parametrize(
    "unit", ["°C", "C", "%", "mbar", "m³/h", "m3/h", "1/min", "kWh", "µg/m³", "kg·m^-3", "W/m2", "rpm", "Ω", "degC"]
)
def test_units_at_the_end_of_names(unit: str) -> None:
    assert unit_in_name(f"flow [{unit}]") == unit_in_name(f"flow ( {unit} )") == unit


@pytest.mark.parametrize(
    "name", ["flow (min)", "flow (old)", "a[0]", "flow (2)", "x (in)", "[°C]", "flow", "flow [°C] x", "t (raw)", "()"]
)
def test_other_brackets_are_no_units(name: str) -> None:
    assert unit_in_name(name) == ""
