"""Every shipped alert fires once in a real Prometheus, and a real Alertmanager with the example delivers it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.integration.alerting import SOURCES, Plant, Series, World, binary, read_plants, samples_of, seconds

PLANTS = read_plants()
CRITICAL = [plant for plant in PLANTS if plant.expected["severity"] == "critical"]


def names(plants: list[Plant]) -> list[str]:
    return [plant.alert for plant in plants]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("alerts"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_the_example_is_valid() -> None:
    done = subprocess.run(
        [binary("amtool"), "check-config", SOURCES / "alertmanager.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_that_is_held_back_or_holds_back_is_one_that_is_shipped() -> None:
    rules = yaml.safe_load((SOURCES / "alertmanager.yml").read_text(encoding="utf-8"))["inhibit_rules"]
    named = {
        part.split(" = ")[1] for rule in rules for side in ("source", "target") for part in rule[f"{side}_matchers"]
    }
    assert named
    assert named <= set(names(PLANTS))


def test_series_are_those_of_promtool() -> None:
    assert samples_of("_x2 3 1x2 0+5x2 9-2x1") == [None, None, 3, 1, 1, 1, 0, 5, 10, 9, 7]
    assert seconds("1m55s") == 115
    grows = Series("a", {}, [0, 5], interval_s=5, age_s=5)
    assert [grows.at(number) for number in range(4)] == [0, 5, 10, 15]
    assert Series("a", {}, [None, 4], interval_s=5, age_s=5).at(7) == 4


@pytest.mark.parametrize("plant", PLANTS, ids=names(PLANTS))
def test_an_alert_arrives_by_webhook(world: World, plant: Plant) -> None:
    def arrived() -> list[dict[str, str]]:
        return [alert["annotations"] for alert in world.receivers.told() if alert["labels"] == plant.expected]

    world.wait(arrived, f"{plant.alert} by webhook")
    annotations = arrived()[0]
    assert annotations["summary"]
    assert annotations["description"]
    assert "{{" not in "".join(annotations.values())
    assert not world.receivers.refused


@pytest.mark.parametrize("plant", CRITICAL, ids=names(CRITICAL))
def test_a_critical_alert_arrives_by_mail(world: World, plant: Plant) -> None:
    world.wait(lambda: any(plant.alert in mail["Subject"] for mail in list(world.receivers.mails)), plant.alert)
    mail = next(mail for mail in world.receivers.mails if plant.alert in mail["Subject"])
    assert (mail["From"], mail["To"]) == ("tsunagi@example.org", "operators@example.org")


def test_what_is_no_more_than_a_warning_is_not_mailed(world: World) -> None:
    world.wait(lambda: len(world.receivers.mails) >= len(CRITICAL), "mails")
    warnings = set(names(PLANTS)) - set(names(CRITICAL))
    assert not [mail["Subject"] for mail in world.receivers.mails if any(name in mail["Subject"] for name in warnings)]


def test_an_alert_is_held_back_while_another_says_the_same_and_more(world: World) -> None:
    plant = next(plant for plant in PLANTS if plant.alert == "TsunagiRetentionNearSpark")
    behind = plant.expected | {"alertname": "TsunagiSparkBehind"}
    world.wait(lambda: behind in world.suppressed(), "the lesser alert to be held back")
