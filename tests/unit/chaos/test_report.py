from __future__ import annotations

import json
from collections import Counter

from tsunagi.audit.tally import Tally
from tsunagi.chaos.plan import Round
from tsunagi.chaos.report import HEADER, Outcome, TakeoverTimes, summary


def outcome(number: int = 1, **fields) -> Outcome:
    plan = Round(number, "gateway", "kill", 0.1, 0.2, 0.0)
    return Outcome(plan, "gateway-1", "owner of slot 0", 5, [0], **fields)


def test_a_line_says_what_happened():
    takeover = TakeoverTimes(0, 2, "secondary-1", 0.75, 0.1)
    line = outcome(silence_s=0.8, others_s=0.0, takeovers=[takeover], ready_s=2.5, back_as="idle").line()
    for word in ("gateway-1", "kill", "0.800", "0->secondary-1: 0.750+0.100", "2.500", "ok", "back as idle"):
        assert word in line
    assert len(HEADER.splitlines()) == 1


def test_a_verdict_names_what_is_wrong():
    found = Tally(lost=3, inversions=Counter({"g0": 1}))
    found.amiss("second primary", "x")
    item = outcome(found=found, missing=["slot 0 has no ready secondary"])
    assert item.verdict == "lost 3, inverted 1, second primary 1, not recovered: slot 0 has no ready secondary"
    assert not item.ok


def test_the_summary_is_json_and_counts():
    items = [outcome(1, silence_s=0.8), outcome(2, silence_s=1.0), outcome(3, found=Tally(lost=1))]
    found = summary(items, Tally(lost=1), {"readings": 4}, seed=9, asked=4, exit_code=1)
    assert json.loads(json.dumps(found)) == found
    assert (found["rounds"], found["asked"], found["ok"], found["seed"]) == (3, 4, 2, 9)
    assert found["kinds"]["gateway kill"]["silence_p50_s"] == 0.9
    assert found["kinds"]["gateway kill"]["silence_max_s"] == 1.0
    assert json.loads(json.dumps(items[0].as_json()))["node"] == "gateway-1"


def test_a_summary_has_the_median_of_the_silences():
    for silences, median in (([3.0, 1.0, 2.0], 2.0), ([1.0, 2.0], 1.5), ([], None)):
        items = [outcome(number, silence_s=silence) for number, silence in enumerate([*silences, None])]
        found = summary(items, Tally(), {}, seed=9, asked=4, exit_code=0)
        assert found["kinds"]["gateway kill"]["silence_p50_s"] == median


def test_since_counts_only_what_is_new():
    tally = Tally(lost=1, problems=["old"])
    before = tally.copy()
    tally.lost += 2
    tally.amiss("values", "new", 3)
    found = tally.since(before)
    assert (found.lost, found.wrong["values"], found.problems) == (2, 3, ["new"])
    assert before.ok is False
    assert before.wrong == {}
