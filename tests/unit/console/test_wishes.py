"""What stands in `plan` is shown as it is in force: limits, helpers, and what operators did."""

from __future__ import annotations

import structlog

from tsunagi.console.wishes import KEPT_ACTS, Wishes, WishesFollower
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import VERSION, Act, HelperRequest, Placement, Plan, StandbyTarget
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog

SETTINGS = Settings.model_validate({"standby": {"max_recovery_s": 3.0, "slots": {"1": {"max_bandwidth": 500.0}}}})
LOGGER = structlog.get_logger()


def followed(*plans: Plan) -> Wishes:
    log = MemoryLog(ManualClock(), {PLAN: 1})
    for plan in plans:
        log.append(PLAN, 0, b"any", plan.SerializeToString())
    wishes = Wishes(SETTINGS, LOGGER)
    follower = WishesFollower(log, wishes, LOGGER)
    follower.turn()
    follower.close()
    return wishes


def target(slot: int, serial: int, max_recovery_s: float | None = None) -> Plan:
    asked = StandbyTarget(slot=slot, as_configured=max_recovery_s is None, max_recovery_s=max_recovery_s)
    return Plan(version=VERSION, serial=serial, target=asked)


def test_limits_are_those_of_the_settings_until_somebody_asks_for_others_and_again_when_he_takes_it_back() -> None:
    assert followed().limits(0) == {"max_bandwidth": None, "max_recovery_s": 3.0}
    assert followed().limits(1) == {"max_bandwidth": 500.0, "max_recovery_s": 3.0}
    asked = target(1, 2, max_recovery_s=0.5)
    assert followed(asked).limits(1) == {"max_bandwidth": 500.0, "max_recovery_s": 0.5}
    assert followed(asked, target(1, 1, max_recovery_s=9.0)).limits(1)["max_recovery_s"] == 0.5, "an older wish"
    assert followed(asked, target(1, 3)).limits(1) == {"max_bandwidth": 500.0, "max_recovery_s": 3.0}


def test_the_helpers_of_a_sensor_are_those_that_its_slot_asks_for() -> None:
    placed = Plan(version=VERSION, placement=Placement(serial=1, slot=pack_sensors([0, 1, 0])))
    asked = HelperRequest(slot=1, epoch=1, sensor=pack_sensors([0, 2]), from_step=5)
    found = followed(placed, Plan(version=VERSION, serial=1, helpers=asked))
    assert found.helpers(1) == [0, 2]
    assert found.helpers(0) == []
    assert found.helpers(7) == [], "a sensor that came later"
    over = Plan(version=VERSION, serial=2, helpers=HelperRequest(slot=1, epoch=1, from_step=9))
    assert followed(placed, Plan(version=VERSION, serial=1, helpers=asked), over).helpers(1) == []


def test_the_newest_acts_are_kept() -> None:
    acts = [Plan(version=VERSION, act=Act(by="olga", what=f"scale: {n}", at_us=n)) for n in range(KEPT_ACTS + 3)]
    found = followed(*acts).acts()
    assert [item["at_us"] for item in found] == list(range(KEPT_ACTS + 2, 2, -1))
    assert found[0] == {"by": "olga", "what": f"scale: {KEPT_ACTS + 2}", "at_us": KEPT_ACTS + 2}
