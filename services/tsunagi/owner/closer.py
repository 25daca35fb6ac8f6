"""Decides which edges a step no longer waits for. Only the owner may decide it, since it depends on time.

Its decisions become control records, and take effect for all replicas, the owner included, when they are read back
(architecture, "Step").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsunagi.runtime.messages import EdgeOut, LogRecord, Punctuation, TupleBatch
from tsunagi.runtime.settings import StepsSettings
from tsunagi.slot.book import Book
from tsunagi.slot.deciding import Decider, OwnerView, control
from tsunagi.slot.edges import NEVER, NOT_YET, OUT_AGAIN_US

RECONNECT_S = 1.0
"""The most time that edges' clients get to find the broker again after an outage, seconds."""

DRAIN_SHARE = 0.1
"""The time that edges get to send what they have spooled, as a share of the outage."""

REPEAT_S = 0.5
"""A Punctuation is written again if it has not come back within this time, seconds."""

ASK_S = 1.0
"""Least time between two records that put the same edge out, or take it back, seconds. After this time a record that
has not come back is written again."""

MANY_SHARE, MANY_LEAST = 0.25, 3
"""If the heartbeats of more than this share of a slot's edges stop at once, and of so many at least, the fault lies
between the edges and this owner rather than with each edge. Then an edge is not gone before its batches stop, too.

On an overloaded machine, 200 edges of a process that stood still for a second were put out by their slots again and
again. That cost hundreds of records each time, and the values of the next step (2026-11-29)."""


@dataclass(slots=True)
class _Heard:
    at: float
    step: int


class Closer(Decider):
    """Decides which edges a step waits for, and moves the steps on when no edge is left.

    All times are monotonic seconds of the owner's clock. An edge counts as gone at once when its heartbeats have
    stopped, unless batches of it came after that, or the heartbeats of many edges have stopped (`MANY_SHARE`). While
    the owner's own heartbeats do not come back, the edges' batches may be stuck as well, so no edge is judged. After
    that edges get time to reconnect and to send their spools.
    """

    def __init__(self, steps: StepsSettings, now: float) -> None:
        self._steps = steps
        self._since = now  # an edge's silence before that does not count
        self._decided = now
        self._heard: dict[str, _Heard] = {}
        self._gap_from: float | None = None
        self._hold_until = now
        self._left: dict[str, tuple[int, int]] = {}  # edge -> (incarnation, last step) of a process that left
        self._asked: dict[tuple[str, bool], float] = {}  # (edge, back) -> when this was last written of it
        self._log = 0, now  # the append time of the newest record, microseconds, and when it was read
        self._cursor = 0
        self._cursor_at = now
        self._asked_step = 0
        self._asked_step_at = 0.0

    def on_batch(self, batch: TupleBatch, now: float) -> None:
        self._heard[batch.edge] = _Heard(now, batch.step)

    def on_leaving(self, edge: str, incarnation: int, step: int) -> None:
        self._left[edge] = max((incarnation, step), self._left.get(edge, (0, NOT_YET)))

    def _has_left(self, book: Book, name: str) -> bool:
        """Return whether an edge has said that it stops, and no later batch nor a newer process was seen since."""
        incarnation, step = self._left.get(name, (-1, NOT_YET))
        edge = book.edges[name]
        return edge.incarnation <= incarnation and edge.last_step <= step

    def decide(self, view: OwnerView) -> list[LogRecord]:
        """Return the control records to write now. A slot without steps needs none."""
        book, now, log_us, lost = view.slot.book, view.now, view.slot.appended_us, view.lost
        if book is None or not book.in_steps:
            return []
        if log_us != self._log[0]:
            self._log = log_us, now
        self._look_up(now)
        if not view.connected:
            if self._gap_from is None:
                self._gap_from = now
            return []
        patience_s = self._steps.slide_s + self._steps.grace_s
        if self._gap_from is not None:
            self._forgive(now - self._gap_from, now, patience_s)
            self._gap_from = None
        if book.cursor != self._cursor:
            self._cursor, self._cursor_at = book.cursor, now
        if not book.coming and all(edge.last_step == NOT_YET for edge in book.edges.values()):
            # No edge has ever sent anything, so there is nothing to recover. Nor is an edge late: the time that edges
            # get begins with the slot's first batch. A slot to which edges are about to move keeps the pace of the
            # others, which its results are put in order with.
            self._since = max(self._since, now)
            return []
        if now < self._hold_until:
            return []
        decisions: list[LogRecord] = []
        others_done = book.due(book.cursor)
        waiting = book.awaited(book.cursor)
        # The second part goes through all edges, and is seldom reached.
        alike = len(lost) >= MANY_LEAST and len(lost) > MANY_SHARE * sum(
            edge.out_from == NEVER for edge in book.edges.values()
        )
        for name in waiting:
            heard = self._heard.get(name)
            last_at = self._since if heard is None else max(heard.at, self._since)
            if name in book.coming:
                last_at = max(last_at, self._cursor_at)  # before the move's boundary it sent its batches elsewhere
            silent = now - last_at > patience_s
            gone = not alike and name in lost and (heard is None or heard.at <= lost[name])
            gone = gone or (self._has_left(book, name) and self._left[name][1] < book.cursor)
            # An edge whose clock is slow sends batches of steps that are over. Within the allowed skew it is awaited.
            behind = (
                heard is not None
                and name not in book.coming
                and others_done
                and heard.step + self._steps.max_skew_steps < book.cursor
                and now - self._cursor_at > self._steps.grace_s
            )
            if silent or gone or behind:
                from_step = max(book.cursor, book.edges[name].last_step + 1)
                if self._counts(book.edges[name].out_us, now) and self._may_ask(name, now, back=False):
                    decisions.append(control(edge_out=EdgeOut(epoch=view.epoch, edge=name, from_step=from_step)))
        decisions += self._take_back(book, view, patience_s)
        if not waiting and not others_done:
            decisions += self._all_silent(book, view)
        return decisions

    def _look_up(self, now: float) -> None:
        """Let the time since the last turn not count as silence: the owner was busy, and batches wait to be read.

        One slide of each turn counts nevertheless, so that an owner that is always busy still finds silent edges.
        """
        busy_s = now - self._decided - self._steps.slide_s
        self._decided = now
        if busy_s > 0:
            self._cursor_at = min(self._cursor_at + busy_s, now)
            self._leave_out(busy_s, now)

    def _forgive(self, gap_s: float, now: float, patience_s: float) -> None:
        """Let a gap in the owner's own heartbeats not count as silence of the edges.

        After an outage each edge gets its whole time again. A gap shorter than `patience_s` is only left out: on a busy
        machine such gaps follow each other, and if each gave edges their whole time again, no edge would ever be found
        silent.
        """
        reconnect_s = min(RECONNECT_S, gap_s)  # after a short stall no connection is lost
        allowed_s = reconnect_s + DRAIN_SHARE * gap_s
        self._hold_until = max(self._hold_until, now + allowed_s)
        moved_s = gap_s + allowed_s if gap_s < patience_s else float("inf")
        self._leave_out(moved_s, self._hold_until)

    def _leave_out(self, seconds: float, latest: float) -> None:
        """Let so many seconds not count as silence: move the time when each edge was heard, but not past `latest`."""
        self._since = min(self._since + seconds, latest)
        for heard in self._heard.values():
            heard.at = min(heard.at + seconds, latest)

    def _take_back(self, book: Book, view: OwnerView, patience_s: float) -> list[LogRecord]:
        """Return records that let steps wait again for an edge that is out but sends steps that have just closed.

        A batch for an open step takes its edge back without this. But an edge whose batches always come a little after
        the others' would find each step closed. Only what came after the edge was put out counts.
        """
        now = view.now
        decisions = []
        for name, edge in book.edges.items():
            heard = self._heard.get(name)
            if edge.out_from == NEVER or heard is None or now - heard.at > patience_s or self._has_left(book, name):
                continue
            if heard.at <= self._asked.get((name, False), -math.inf):
                continue
            if heard.step + self._steps.max_skew_steps >= book.cursor and self._may_ask(name, now, back=True):
                decisions.append(control(edge_out=EdgeOut(epoch=view.epoch, edge=name, from_step=NEVER)))
        return decisions

    def _counts(self, out_us: int, now: float) -> bool:
        """Return whether an EdgeOut would count now for an edge that was last put out at `out_us` of the log's time."""
        log_us = self._log[0] + (now - self._log[1]) * 1e6
        return not out_us or not 0 <= log_us - out_us < OUT_AGAIN_US

    def _may_ask(self, name: str, now: float, *, back: bool) -> bool:
        if now - self._asked.get((name, back), -math.inf) < ASK_S:
            return False
        self._asked[name, back] = now
        return True

    def _all_silent(self, book: Book, view: OwnerView) -> list[LogRecord]:
        """Move the steps on although no edge lives, at most one step a slide."""
        now = view.now
        if now - self._cursor_at < self._steps.slide_s:
            return []
        if self._asked_step == book.cursor and now - self._asked_step_at < REPEAT_S:
            return []
        self._asked_step, self._asked_step_at = book.cursor, now
        return [control(punctuation=Punctuation(epoch=view.epoch, step=book.cursor))]
