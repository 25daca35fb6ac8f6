"""Reports rounds: a line for people, a JSON object for programs, and the summary of a run. It does no I/O."""

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
"""The headings above the lines of rounds. The widths are those of `Outcome.line`."""


@dataclass(frozen=True, slots=True)
class TakeoverTimes:
    """The parts of a slot's change of owner, in seconds.

    Attributes:
        slot: the slot that changed its owner.
        epoch: the new term.
        node: the new owner.
        detect_s: time from the fault to the Ownership record.
        catch_up_s: time from the Ownership record to the first output of the new term; None if there was none yet.
        protected_s: time from the Ownership record to a ready secondary; None if there was none yet.
    """

    slot: int
    epoch: int
    node: str
    detect_s: float
    catch_up_s: float | None
    protected_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """The outcome of a round. Times are in seconds.

    Attributes:
        plan: the round as it was planned.
        node: the node that was hit.
        as_role: the role in which it was hit ("owner of slot 0", ...).
        at_us: when it was hit, in microseconds since 1970.
        slots: the slots that the fault concerns.
        silence_s: the longest silence of these slots, less a step.
        others_s: the longest silence of the other slots, less a step.
        takeovers: the changes of owner in the round.
        ready_s: the longest time from the takeover (without one: from the fault) until a slot had a ready secondary.
            Slots that were taken over, and those of `slots`, count. None if no such slot had one.
        recovered_s: time from the fault until all was well again; None if it never was.
        back_as: the roles that a killed or restarted worker had when it came back.
        missing: what had not come back when the time to wait was over.
        found: the findings of the round.
    """

    plan: Round
    node: str
    as_role: str
    at_us: int
    slots: list[int] = field(default_factory=list)
    silence_s: float | None = None
    others_s: float | None = None
    takeovers: list[TakeoverTimes] = field(default_factory=list)
    ready_s: float | None = None
    recovered_s: float | None = None
    back_as: str = ""
    missing: list[str] = field(default_factory=list)
    found: Tally = field(default_factory=Tally)

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, doubled, out of order or wrong, and everything came back."""
        return self.found.ok and not self.missing

    @property
    def verdict(self) -> str:
        """The word "ok", or what was wrong in a few words."""
        return self.found.verdict(self.missing)

    def line(self) -> str:
        """Return the round as a line for people, below `HEADER`."""
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
        """Return the round as the JSON object that `--out` gets."""
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
    """Return the summary of a run, which is the last JSON object of `--out`.

    Args:
        outcomes: the rounds that were carried out.
        total: the findings of the whole run.
        counts: how much was judged, as `AuditLedger.counts` returns it.
        seed: the seed of the plan.
        asked: how many rounds were asked for.
        exit_code: the exit code of the run.
    """
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
