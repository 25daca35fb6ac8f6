"""A real browser that looks at the console of a benchmark's fleet (tests.bench.fleet), and what it measures there."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from tests.bench.system import spread
from tests.browser.browser import Browser, browsing
from tsunagi.audit.evidence import Kill
from tsunagi.local.up import System
from tsunagi.system import processes

LOOK_S = 5.0
"""Time between two looks at the tab's memory."""
FIRST_PAGE = """
const page = performance.getEntriesByType("navigation")[0], parts = performance.getEntriesByType("resource");
return [[page, ...parts].reduce((sum, item) => sum + item.transferSize, 0), page.duration];
"""
"""Bytes that the page and all that it loads took on the wire, and milliseconds until it was loaded."""
WATCH = """
window.takeovers = {};
const rows = document.querySelector('table[aria-label="Takeovers"] tbody');
new MutationObserver(() => {
  for (const row of rows.children) {
    const cells = Array.from(row.children, (cell) => cell.textContent);
    if (cells.length > 3) window.takeovers[[cells[1], cells[2], cells[cells.length - 1]].join()] ??= Date.now();
  }
}).observe(rows, { childList: true, subtree: true, characterData: true });
"""
"""Has the page note when each takeover (slot, former owner, epoch) is first to be read there, in ms since 1970."""
FRAMES = """
const done = arguments[1], times = [];
const draw = (now) => {
  times.push(now);
  if (now - times[0] < arguments[0] * 1000) requestAnimationFrame(draw);
  else done([(times.length - 1) / (now - times[0]) * 1000, Math.max(...times.slice(1).map((at, n) => at - times[n]))]);
};
requestAnimationFrame(draw);
"""
"""Frames a second, and the longest one, in milliseconds."""
FRAMES_S = 10.0


class Tab:
    """One tab: it opens the first page, and then follows the slots until it is asked for more."""

    def __init__(self, work: Path, address: str) -> None:
        self._open = ExitStack()
        self._browser: Browser = self._open.enter_context(browsing(work, address))
        self._megabytes: list[float] = []
        self._ended = threading.Event()
        self._browser.open("/")
        self._browser.wait(lambda: self._browser.texts("dl.card dd"), "the first page")
        bytes_first, ms = self._browser.driver.execute_script(FIRST_PAGE)
        self._first = {"first_page_bytes": bytes_first, "first_page_s": round(ms / 1000, 3)}
        self._follow_slots()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow_slots(self) -> None:
        self._browser.open("/slots")
        self._browser.wait(self._slots, "slots")
        self._browser.driver.execute_script(WATCH)

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._megabytes.append(self._memory_mb())

    def _memory_mb(self) -> float:
        """Return the memory of the largest process that draws a page: this tab's."""
        found = [0.0]
        for process in psutil.Process(self._browser.driver.service.process.pid).children(recursive=True):
            try:
                if "--type=renderer" in process.cmdline():
                    found.append(process.memory_full_info().pss / 1e6)
            except psutil.Error:
                continue
        return max(found)

    def measured(self, kills: Sequence[Kill], sensor: str) -> dict[str, Any]:
        """Return what was seen: when kills were, the tab's memory, and how smoothly it draws the chart of a sensor."""
        self._ended.set()
        self._thread.join()
        takeovers = self._browser.driver.execute_script("return window.takeovers")
        seen = [(*key.split(","), at_ms) for key, at_ms in takeovers.items()]
        seen_s = []
        for kill in kills:
            after = [
                at_ms / 1000 - kill.at_us / 1e6
                for slot, former, _, at_ms in seen
                if int(slot) == kill.slot and former == kill.node and at_ms * 1000 > kill.at_us
            ]
            seen_s += [min(after)] if after else []
        self._browser.open("/sensors?" + urlencode({"name": sensor}))
        self._browser.wait(lambda: self._browser.texts(".chart canvas"), "the chart")
        rate, longest_ms = self._browser.driver.execute_async_script(FRAMES, FRAMES_S)
        return self._first | {
            "kills": len(kills),
            "kills_seen_s": spread(seen_s),
            "tab_mb": {"first": round(self._megabytes[0]), "last": round(self._megabytes[-1])},
            "frames_a_second": round(rate, 1),
            "longest_frame_ms": round(longest_ms, 1),
        }

    def back_s(self, system: System) -> float:
        """Kill the console and start it again; return how long it then takes until the tab shows the slots, seconds."""
        self._follow_slots()
        process = processes.find(system.settings.state, "console")
        assert process is not None
        processes.kill(process, signal.SIGKILL)
        self._browser.wait(lambda: self._browser.text("#link"), "the page's word of it")
        self._browser.driver.execute_script(
            "document.querySelector('table[aria-label=\"Slots\"] tbody').textContent = ''"
        )
        processes.forget(system.settings.state, "console")
        began = time.monotonic()
        system.start_console()
        self._browser.wait(lambda: self._slots() and not self._browser.text("#link"), "the console's return")
        return round(time.monotonic() - began, 2)

    def _slots(self) -> list[str]:
        return self._browser.texts('table[aria-label="Slots"] tbody tr')

    def close(self) -> None:
        """End the browser."""
        self._ended.set()
        self._open.close()
