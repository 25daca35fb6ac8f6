"""The broker's configuration: the properties of the template, and the options of its JVM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TEMPLATE = Path(__file__).with_name("server.properties.template")
"""Properties that every broker of Tsunagi has; `$name` stands for what a caller fills in."""

JVM = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dlog4j2.configurationFile=log4j2.properties",
)
"""Options of a broker's JVM. On a lack of memory it ends, since a broker that goes on without memory answers nobody."""
QUIET_JVM = ("-Xmx128m", "-XX:TieredStopAtLevel=1")
"""Options of the JVM of a tool that runs for a second: a small heap and a fast start."""


def read_properties(path: Path = TEMPLATE) -> dict[str, str]:
    """Return the properties of a file without its comments; values that a template leaves open are still ``$name``."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a configuration that only its owner can read, since it may hold passwords."""
    path.touch(mode=0o600, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
