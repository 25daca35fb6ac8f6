"""What a round was: a line for people, a JSON object for programs, and the summary of a run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from tsunagi.audit.silence import longest
from tsunagi.audit.tally import Tally, number
from tsunagi.chaos.plan import Round

HEADER = (
    f"{'n':>4}  {'node':<13} {'fault':<22} {'silent s':>9} {'others':>7}  {'takeover s':<31} {'ready s':>7}  verdict"
)


@dataclass(frozen=True, slots=True)
class Takeover:
    """The parts of a slot's change of owner, in seconds.

    Attributes:
        detect_s: from the fault to the Ownership record; catch_up_s: from there to the first output of the new term.
        protected_s: from the Ownership record to a ready secondary; None = there was none yet.
    """

    slot: int
    epoch: int
    node: str
    detect_s: float
    catch_up_s: float | None
    protected_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """What came of a round. Times in seconds.

    Attributes:
        node: what was hit; `as_role`: as what ("owner of slot 0", ...).
        at_us: when, microseconds since the epoch.
        slots: those that the fault concerns.
        silence_s: the longest silence of theirs beyond a step; others_s: of the other slots.
        ready_s: from the takeover (without one: from the fault) until all of `slots` had a ready secondary; None = they
            did not, or the fault concerns no slot.
        recovered_s: from the fault until everything was as before.
        back_as: what a killed or restarted worker was when it came back.
        missing: what had not come back when patience ended.
    """

    plan: Round
    node: str
    as_role: str
    at_us: int
    slots: list[int] = field(default_factory=list)
    silence_s: float | None = None
    others_s: float | None = None
    takeovers: list[Takeover] = field(default_factory=list)
    ready_s: float | None = None
    recovered_s: float | None = None
    back_as: str = ""
    missing: list[str] = field(default_factory=list)
    found: Tally = field(default_factory=Tally)

    @property
    def ok(self) -> bool:
        """Nothing lost, doubled, out of order or wrong, and everything came back."""
        return self.found.ok and not self.missing

    @property
    def verdict(self) -> str:
        """`ok`, or what was wrong."""
        return self.found.verdict(self.missing)

    def line(self) -> str:
        """Return the round in one line."""
        plan = self.plan
        strength = f" {plan.seconds:.1f} s" if plan.seconds else ""
        if plan.fault == "delay":
            strength += f" {plan.delay_ms:.0f} ms"
        elif plan.fault == "loss":
            strength += f" {plan.loss:.0%}"
        elif plan.fault == "cpu":
            strength += f" {plan.cpus:.2f}"
        splits = "; ".join(
            f"{item.slot}->{item.node}: {item.detect_s:.3f}+{number(item.catch_up_s)}" for item in self.takeovers
        )
        back = f"; back as {self.back_as}" if self.back_as else ""
        return (
            f"{plan.number:>4}  {self.node:<13} {plan.fault + strength:<22} {number(self.silence_s):>9} "
            f"{number(self.others_s):>7}  {splits or '-':<31} {number(self.ready_s):>7}  "
            f"{self.verdict} ({self.as_role}{back})"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the round for `--out`."""
        return {
            "round": asdict(self.plan),
            "node": self.node,
            "as": self.as_role,
            "at_us": self.at_us,
            "slots": self.slots,
            "silence_s": self.silence_s,
            "others_silence_s": self.others_s,
            "takeovers": [asdict(item) for item in self.takeovers],
            "ready_s": self.ready_s,
            "recovered_s": self.recovered_s,
            "back_as": self.back_as,
            "missing": self.missing,
            **_findings(self.found),
            "verdict": self.verdict,
        }


def summary(
    outcomes: Sequence[Outcome], total: Tally, counts: Mapping[str, int], *, seed: int, asked: int, exit_code: int
) -> dict[str, Any]:
    """Return the last object of `--out`."""
    hits = Counter(f"{item.plan.target} {item.plan.fault}" for item in outcomes)
    per_kind = {}
    for kind in sorted(hits):
        chosen = [item for item in outcomes if f"{item.plan.target} {item.plan.fault}" == kind]
        silences = [item.silence_s for item in chosen if item.silence_s is not None]
        per_kind[kind] = {
            "rounds": len(chosen),
            "ok": sum(item.ok for item in chosen),
            "silence_p50_s": median(silences) if silences else None,
            "silence_max_s": longest(silences),
            "ready_max_s": longest(item.ready_s for item in chosen),
        }
    return {
        "summary": True,
        "seed": seed,
        "rounds": len(outcomes),
        "asked": asked,
        "ok": sum(item.ok for item in outcomes),
        "kinds": per_kind,
        "takeovers": sum(len(item.takeovers) for item in outcomes),
        "unaffected_silence_max_s": longest(item.others_s for item in outcomes if item.plan.target != "kafka"),
        **_findings(total),
        "judged": dict(counts),
        "exit_code": exit_code,
    }


def _findings(found: Tally) -> dict[str, Any]:
    return {
        "lost": found.lost,
        "duplicated": found.duplicated,
        "inverted": found.inverted,
        "wrong": dict(found.wrong),
        "repeats": found.repeats,
        "problems": found.problems,
    }
