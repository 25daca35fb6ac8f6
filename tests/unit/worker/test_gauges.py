"""What a worker exports of its replicas; time is the test's."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from prometheus_client import REGISTRY

from tests.unit.slot.small_slot import make_config
from tsunagi.owner.deciders import CalibrationDecider, HelperDecider
from tsunagi.recovery.coverage import Coverage
from tsunagi.recovery.factors import Traits
from tsunagi.runtime.log import Traffic
from tsunagi.runtime.settings import Target
from tsunagi.slot.steps import StepBook
from tsunagi.standby.batching import LimitVerdict
from tsunagi.standby.costs import Estimate
from tsunagi.standby.speculation import Speculated
from tsunagi.worker.gauges import REFRESH_S, Gauges


def replica(slot: int, role: str = "standby", primary: Any = None) -> Any:
    return SimpleNamespace(
        slot_id=slot,
        role=role,
        epoch=3,
        lag=7,
        processor=SimpleNamespace(record_s=0.001),
        batching=SimpleNamespace(batch_tuples=100.0, verdict=verdict(), target=Target(max_bandwidth=5000.0)),
        unready=lambda: "",
        primary=primary,
        speculated=Speculated(),
        slot=SimpleNamespace(book=None, chain=None, position=9, register=SimpleNamespace(void=0)),
        trust=SimpleNamespace(contradictions=0, foundings=0),
        intake=SimpleNamespace(pulls=0, read_bytes=0, trimmed=0),
    )


def verdict() -> LimitVerdict:
    estimate = Estimate(100.0, 2.0, 50.0, 0.001, 0.002, 10_000.0, 0.008, 0.3)
    return LimitVerdict(estimate, bandwidth_ok=False, recovery_ok=True)


def term(emitted: int, exact: int = 0, **side: int) -> Any:
    counts = np.array([exact, 0, 0, 0])
    return SimpleNamespace(
        emitted=emitted,
        quality_counts=counts,
        query_rows={},
        side_counts=side,
        level0_offset=5,
        level1_offset=-1,
        deciders=(CalibrationDecider(suspects=False), HelperDecider()),
    )


def sample(name: str, **labels: str) -> float:
    value = REGISTRY.get_sample_value(name, labels)
    return -1.0 if value is None else value


def test_a_slot_that_was_let_go_is_shown_no_longer() -> None:
    gauges = Gauges()
    gauges.refresh([replica(91)], (), 0.0)
    assert sample("tsunagi_standby_ready", slot="91") == 1.0
    assert sample("tsunagi_slot_role", slot="91", tsunagi_slot_role="standby") == 1.0
    gauges.refresh([], (), REFRESH_S)
    for name in ("tsunagi_standby_ready", "tsunagi_slot_position", "tsunagi_slot_epoch"):
        assert sample(name, slot="91") == -1.0
    assert sample("tsunagi_slot_role", slot="91", tsunagi_slot_role="standby") == -1.0


def test_a_standby_shows_what_its_batch_size_costs_and_whether_the_limits_hold() -> None:
    gauges = Gauges()
    gauges.refresh([replica(95)], (), 0.0)
    assert sample("tsunagi_standby_bandwidth_bytes_per_second", slot="95") == 10_000.0
    assert sample("tsunagi_standby_recovery_seconds", slot="95") == 0.3
    assert sample("tsunagi_standby_takeover_seconds", slot="95") == 0.008
    assert sample("tsunagi_standby_send_seconds", slot="95") == 0.001
    assert sample("tsunagi_standby_process_seconds", slot="95") == 0.002
    assert sample("tsunagi_standby_sends_per_second", slot="95") == 2.0
    assert sample("tsunagi_standby_tuple_bytes", slot="95") == 50.0
    assert sample("tsunagi_standby_limit", slot="95", limit="recovery") == math.inf
    assert sample("tsunagi_standby_limit", slot="95", limit="bandwidth") == 5000.0
    assert sample("tsunagi_standby_limit_ok", slot="95", limit="bandwidth") == 0.0
    assert sample("tsunagi_standby_limit_ok", slot="95", limit="recovery") == 1.0
    gauges.refresh([replica(95, "primary")], (), REFRESH_S)
    assert sample("tsunagi_standby_limit_ok", slot="95", limit="bandwidth") == -1.0


def test_what_goes_over_the_readers_is_counted() -> None:
    gauges = Gauges()
    before = sample("tsunagi_standby_received_bytes_total"), sample("tsunagi_standby_requests_total")
    traffic = Traffic(700, 50, 3)
    gauges.refresh([], (traffic, traffic), 0.0)
    gauges.refresh([], (traffic, traffic), REFRESH_S)
    assert sample("tsunagi_standby_received_bytes_total") == before[0] + 1400
    assert sample("tsunagi_standby_requests_total") == before[1] + 6


def test_counters_go_on_over_the_terms_of_one_process() -> None:
    gauges = Gauges()
    gauges.refresh([replica(92, "primary", term(10, exact=30))], (), 0.0)
    gauges.refresh([replica(92)], (), 1.0)
    gauges.refresh([replica(92, "primary", term(25, exact=50))], (), 2.0)  # a new term, already past the last count
    assert sample("tsunagi_outputs_sent_total", slot="92") == 35.0
    assert sample("tsunagi_values_total", slot="92", quality="exact") == 80.0
    assert sample("tsunagi_slot_level0_position", slot="92") == 5.0
    assert sample("tsunagi_slot_level1_position", slot="92") == -1.0


def test_a_term_is_counted_once() -> None:
    gauges = Gauges()
    mine = term(10)
    for second in range(3):
        mine.emitted += 1
        gauges.refresh([replica(93, "primary", mine)], (), float(second))
    assert sample("tsunagi_outputs_sent_total", slot="93") == 13.0


def count(coverage: Coverage, *, group: int, within: int, truths: int, level: float = 0.0, age: float = 1.0) -> None:
    """Count truths of the sensor that alone is the group."""
    of = np.full(truths, group)
    traits = Traits(np.full(truths, level), np.ones(truths), np.full(truths, age))
    coverage.add(of, of, np.arange(truths) < within, traits, 0.25)


def test_a_calibrations_truths_are_counted_by_group() -> None:
    gauges, mine = Gauges(), term(10)
    calibrator = mine.deciders[0].calibrator = SimpleNamespace(
        groups=("left", "right"),
        recovery=SimpleNamespace(distrusted=np.array([True, False]), longest_outage=7),
        coverage=Coverage(2, 2),
        median_factors=lambda: np.array([1.5, 2.5]),
        tried_steps=lambda: np.array([10.0, 30.0]),
    )
    count(calibrator.coverage, group=0, within=9, truths=10)
    count(calibrator.coverage, group=1, within=17, truths=20)
    gauges.refresh([replica(94, "primary", mine)], (), 0.0)
    count(calibrator.coverage, group=0, within=20, truths=20)
    count(calibrator.coverage, group=1, within=24, truths=40, level=1.0, age=50.0)
    gauges.refresh([replica(94, "primary", mine)], (), 1.0)
    assert sample("tsunagi_recovery_truths_total", slot="94", group="left") == 30.0
    assert sample("tsunagi_recovery_truths_within_total", slot="94", group="right") == 41.0
    level = {"slot": "94", "kind": "level", "class": "highest"}
    assert sample("tsunagi_recovery_truths_by_total", **level) == 40.0
    assert sample("tsunagi_recovery_truths_within_by_total", **level) == 24.0
    assert sample("tsunagi_recovery_truths_by_total", slot="94", kind="steps", **{"class": "31-100"}) == 40.0
    assert sample("tsunagi_recovery_worst_sensor_within", slot="94") == 41 / 60
    assert sample("tsunagi_recovery_tried_steps", slot="94", group="right") == 30.0
    assert sample("tsunagi_recovery_outage_steps", slot="94") == 7.0
    assert sample("tsunagi_recovery_calibration_factor", slot="94", group="right") == 2.5
    assert sample("tsunagi_recovery_distrusted_sensors", slot="94") == 1.0


def test_every_number_of_a_slot_is_shown_under_its_own_metric() -> None:
    """Each has a value of its own, so that none can stand for another."""
    gauges, mine = Gauges(), term(10, exact=30, **{"late/closed": 31, "dead-letters/damaged": 32})
    mine.deciders[1].helping = SimpleNamespace(wanted=SimpleNamespace(unmet={"cap": 33}))
    mine.query_rows = {"vwap": 34}
    book = StepBook(make_config(), 40, helpers={6: "e3", 9: "e4"}, helper_readings=[0, 0])
    book.edges["e1"].out_from = 39
    shown = replica(96, "primary", mine)
    shown.slot.book, shown.slot.chain = (
        book,
        SimpleNamespace(
            recover=SimpleNamespace(withheld=5),
            stream=SimpleNamespace(sizes={"vwap": 35, "gone": 36}, faults={"vwap": "too large"}),
        ),
    )
    dead = {"topic": "tuples", "reason": "damaged"}
    dead_before = max(0.0, sample("tsunagi_dead_letters_total", **dead))
    gauges.refresh([shown], (), 0.0)
    assert sample("tsunagi_late_total", slot="96", reason="closed") == 31.0
    assert sample("tsunagi_dead_letters_total", **dead) == dead_before + 32.0
    # What was counted standing by, silently, is not the term's.
    assert sample("tsunagi_recovery_withheld_values_total", slot="96") == 0.0
    shown.slot.register.void, shown.slot.chain.recover.withheld = 11, 17
    shown.trust = SimpleNamespace(contradictions=12, foundings=13)
    shown.intake = SimpleNamespace(pulls=14, read_bytes=15, trimmed=16)
    shown.speculated = Speculated(begun=18, in_vain=19, outputs=20, repeats=21)
    book.helper_readings = [22, 23]
    assert sample("tsunagi_slot_query_state_bytes", slot="96", query="gone") == 36.0
    shown.slot.chain.stream.sizes = {"vwap": 37}  # the other one was dropped
    gauges.refresh([shown], (), 1.0)
    expected = {
        "tsunagi_slot_position": 9.0,
        "tsunagi_slot_lag_records": 7.0,
        "tsunagi_slot_epoch": 3.0,
        "tsunagi_slot_record_seconds": 0.001,
        "tsunagi_standby_batch_tuples": 100.0,
        "tsunagi_slot_step_closed": 39.0,
        "tsunagi_slot_edges_out": 1.0,
        "tsunagi_void_control_records_total": 11.0,
        "tsunagi_log_contradictions_total": 12.0,
        "tsunagi_generations_begun_total": 13.0,
        "tsunagi_standby_pulls_total": 14.0,
        "tsunagi_standby_bytes_total": 15.0,
        "tsunagi_standby_trimmed_records_total": 16.0,
        "tsunagi_recovery_withheld_values_total": 12.0,
        "tsunagi_speculations_total": 18.0,
        "tsunagi_speculations_in_vain_total": 19.0,
        "tsunagi_speculative_outputs_total": 20.0,
        "tsunagi_speculative_repeats_total": 21.0,
        "tsunagi_recovery_helpers": 2.0,
    }
    assert {name: sample(name, slot="96") for name in expected} == expected
    assert sample("tsunagi_recovery_helper_readings_total", slot="96", state="used") == 22.0
    assert sample("tsunagi_recovery_helper_readings_total", slot="96", state="late") == 23.0
    assert sample("tsunagi_recovery_unmet_sensors", slot="96", reason="cap") == 33.0
    assert sample("tsunagi_slot_query_rows_total", slot="96", query="vwap") == 34.0
    assert sample("tsunagi_slot_query_state_bytes", slot="96", query="vwap") == 37.0
    assert sample("tsunagi_slot_query_stopped", slot="96", query="vwap") == 1.0
    assert sample("tsunagi_slot_query_state_bytes", slot="96", query="gone") == -1.0
    gauges.refresh([replica(96)], (), 2.0)  # what only an owner says is said no longer
    assert sample("tsunagi_recovery_helpers", slot="96") == -1.0
    assert sample("tsunagi_recovery_unmet_sensors", slot="96", reason="cap") == -1.0


def test_it_is_due_once_a_second() -> None:
    gauges = Gauges()
    assert gauges.due(7.0)
    gauges.refresh([], (), 7.0)
    assert not gauges.due(7.0 + REFRESH_S / 2)
    assert gauges.due(7.0 + REFRESH_S)
