"""Figures and report of the small world."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.audit import small_world
from tests.unit.audit.small_world import SmallWorld
from tsunagi.audit.check import Checked, check
from tsunagi.demo import charts
from tsunagi.demo.figures import (
    NEVER_US,
    finite,
    latency_figures,
    latency_rows,
    recovered_figures,
    takeover_spans,
    takeovers,
)


@pytest.fixture
def small(tmp_path: Path) -> SmallWorld:
    return small_world.make(tmp_path)


@pytest.fixture
def checked(small: SmallWorld) -> Checked:
    return check(small.collected(), small.world)


def test_recovered_figures(small: SmallWorld, checked: Checked) -> None:
    figures = recovered_figures(checked.delivery, small.world, 0.9)
    assert set(figures["coverage_by"]) == {"level", "steps", "missing"}
    truth = small.world.truth
    missed = [(n, s) for n in range(small_world.DEAD[1], small_world.DEAD[2]) for s in (4, 5, 6, 7)]
    missed += [(small_world.LATE_STEP, s) for s in (1, 3)]
    off = np.array([truth.values[:, s].mean() - truth.values[n, s] for n, s in missed])
    unit = np.array([small.world.scale[s] for _, s in missed])
    assert figures["values"] == len(missed)
    assert figures["rmse"] == pytest.approx(np.sqrt((off**2).mean()))
    assert figures["nrmse"] == pytest.approx(np.sqrt(((off / unit) ** 2).mean()))
    assert figures["coverage"] == pytest.approx((np.abs(off) <= 1.7 * 0.4).mean())


def test_takeovers_carry_their_owners_figures(small: SmallWorld, checked: Checked) -> None:
    (found,) = takeovers(checked, small.collected(), small.world.steps.slide_us)
    assert (found["slot"], found["epoch"], found["from"], found["to"], found["cause"]) == (
        0,
        2,
        "gw-1",
        "sec-1",
        "kill",
    )
    assert (found["detect_s"], found["promote_s"], found["catch_up_s"]) == (0.5, 0.01, 0.02)
    assert found["silence_s"] == 0.0


def test_latency_is_from_the_last_input_to_the_reader(small: SmallWorld, checked: Checked) -> None:
    late = latency_rows(checked, small.world.truth, small.collected())
    assert len(late.at_s) == checked.findings.rows_out
    assert latency_figures(late.seconds)["p50"] == pytest.approx(0.004)
    assert latency_figures(np.empty(0))["p50"] is None


def test_a_takeover_counts_from_the_kill_until_the_new_owner_has_caught_up(small: SmallWorld, checked: Checked) -> None:
    collected = small.collected()
    (kill,) = (kill for kill in collected.kills if kill.what == "owner")
    new = checked.logs[0].owners[1]
    assert takeover_spans(checked, collected) == [(kill.at_us, new.appended_us + 20_000)]
    late = latency_rows(checked, small.world.truth, collected)
    blocks = [block for of in checked.delivery.blocks.values() for block in of]
    read_us = {(read.partition, read.offset): read.read_us for read in collected.reads}
    touched = [
        len(block.sensor)
        for block in blocks
        if block.appended_us <= new.appended_us + 20_000 and read_us[block.partition, block.offset] >= kill.at_us
    ]
    assert 0 < sum(touched) == int((~late.quiet).sum()) < len(late.quiet)


def test_without_a_successor_nothing_after_the_kill_is_outside_a_takeover(small: SmallWorld, checked: Checked) -> None:
    (kill,) = (kill for kill in small.collected().kills if kill.what == "owner")
    collected = replace(small.collected(), kills=[replace(kill, node="nobody")])
    assert takeover_spans(checked, collected) == [(kill.at_us, NEVER_US)]


@pytest.mark.slow
def test_charts_are_svg(small: SmallWorld, checked: Checked) -> None:
    figure = charts.recovered_chart(checked, small.world, small_world.ORIGIN_US)
    assert figure is not None
    assert charts.svg(figure).startswith("<svg")


def test_what_json_cannot_hold_becomes_null() -> None:
    assert json.dumps(finite({"a": float("nan"), 1: [float("inf"), 2.0]})) == '{"a": null, "1": [null, 2.0]}'
