"""Debian's Chromium, driven through its own driver, with nothing of it fetched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

AXE = Path(__file__).resolve().parents[2] / ".cache" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
"""The checker of accessibility, from npm (`make npm`)."""
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
"""Widths and heights of the windows in which pages are looked at."""
SERIOUS = ("serious", "critical")
PATIENCE_S = 120.0


class Browser:
    """One browser window.

    Args:
        address: of the console, which all paths are below.
    """

    def __init__(self, driver: Chrome, address: str) -> None:
        self.driver = driver
        self.address = address

    def open(self, path: str) -> None:
        """Load a page anew."""
        self.driver.get(self.address + path)

    def text(self, selector: str = "main") -> str:
        """Return the text that a reader sees in an element; "" if it is not there."""
        return next(iter(self.texts(selector)), "")

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements of a kind, as they are at one moment: the page may change at every step."""
        script = "return Array.from(document.querySelectorAll(arguments[0]), (item) => item.innerText)"
        return list(self.driver.execute_script(script, selector))

    def wait(self, holds: Callable[[], Any], what: str) -> None:
        """Wait until something holds.

        Raises:
            AssertionError: it does not for a long time; the message has the page's text.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s\n{self.text('body')}"
            time.sleep(0.05)

    def type(self, selector: str, text: str) -> None:
        """Put a text into a field."""
        field = self.driver.find_element(By.CSS_SELECTOR, selector)
        field.clear()
        field.send_keys(text)

    def click(self, selector: str) -> None:
        """Click on an element."""
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def login(self, user: str, password: str) -> None:
        """Log in on the page that is open."""
        self.wait(lambda: self.texts(".login"), "the login")
        self.type("input[name=user]", user)
        self.type("input[name=password]", password)
        self.click(".login button")
        self.wait(lambda: user in self.text("#who"), f"the login of {user}")

    def look(self, size: str, scheme: str) -> None:
        """Use a size of the window, and light or dark colours."""
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def _logged(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))  # type: ignore[no-untyped-call]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call."""
        found = []
        for entry in self._logged("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(str(message["params"]["request"]["url"]))
        return found

    def complaints(self) -> list[str]:
        """Return the errors that the browser has logged since the last call: of scripts, and of the page's rules."""
        return [str(entry["message"]) for entry in self._logged("browser") if entry["level"] == "SEVERE"]

    def findings(self) -> list[str]:
        """Return what axe finds serious or critical on the page."""
        self.driver.execute_script(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")
        return [
            f"{item['id']} ({item['impact']}): {node['html']}"
            for item in found["violations"]
            if item["impact"] in SERIOUS
            for node in item["nodes"]
        ]


@contextmanager
def browsing(directory: Path, address: str) -> Iterator[Browser]:
    """Start a browser whose profile is a folder of its own; end it."""
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "disable-dev-shm-usage", f"user-data-dir={directory / 'profile'}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_script_timeout(60)
        yield Browser(driver, address)
    finally:
        driver.quit()
