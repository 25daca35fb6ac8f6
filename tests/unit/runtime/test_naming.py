from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsunagi.runtime.log import TOPICS
from tsunagi.runtime.naming import edge_fault, node_fault, sensor_fault, text_fault
from tsunagi.runtime.settings import KafkaSettings


@given(st.text(min_size=1, max_size=120))
def test_the_name_of_a_node_is_that_of_one_file_and_of_one_word(name: str) -> None:
    if node_fault(name):
        return
    assert Path("state") / f"{name}.json" == Path("state", *Path(f"{name}.json").parts)
    assert len(Path(f"{name}.json").parts) == 1
    assert len(name.encode()) <= 250
    assert name.split() == [name]
    assert not name.startswith((".", "-"))


@given(st.text(max_size=220))
def test_the_name_of_a_sensor_is_one_line(name: str) -> None:
    if not sensor_fault(name):
        assert len(name.splitlines()) <= 1
        assert "\0" not in name
        assert name.encode("utf-8").decode("utf-8") == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-x", "a b", "hall/A", "a\\b", "a\0", "ä", "a" * 101, "Spark", "broker"]
)
def test_names_that_no_node_can_have(name: str) -> None:
    assert "found" in node_fault(name)
    assert "expected" in edge_fault(name)


@pytest.mark.parametrize("name", ["gw-1", "GW-12", "sec-3", "worker-1"])
def test_workers_names_are_no_edges(name: str) -> None:
    assert node_fault(name) == ""
    assert "expected a name other than" in edge_fault(name)


@pytest.mark.parametrize("name", ["edge-1", "gw", "gw-a", "Hall_A.2", "1", "a" * 100])
def test_names_that_an_edge_can_have(name: str) -> None:
    assert edge_fault(name) == ""


@pytest.mark.parametrize("name", ["time", " Time ", "TIMESTAMP"])
def test_no_sensor_is_called_as_the_column_of_times(name: str) -> None:
    assert "column of times" in sensor_fault(name)


@pytest.mark.parametrize("name", ['with "quotes"', "a,b", "温度", "a/b", "T [°C]"])
def test_a_sensor_may_have_any_name_of_one_line(name: str) -> None:
    assert sensor_fault(name) == text_fault(name) == ""


def test_the_longest_prefix_leaves_room_for_every_topic() -> None:
    KafkaSettings(prefix="p" * 200)
    with pytest.raises(ValueError, match="at most 200"):
        KafkaSettings(prefix="p" * 201)
    assert max(len(topic) for topic in TOPICS) + 200 <= 249
