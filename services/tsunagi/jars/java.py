"""Finds a Java that is new enough. If there is none, the error says what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM = 17
"""The oldest version of Java on which Kafka 4 and Spark 4 run."""

_ADVICE = (
    "on Debian or Ubuntu: apt-get install openjdk-17-jre-headless; "
    "elsewhere: any JRE 17 or newer, on the PATH or named by JAVA_HOME"
)
"""How to install a Java that is new enough. Every error here ends with it."""
_VERSION = re.compile(r'version "(?P<version>[^"]+)"')
"""Matches the version in the output of ``java -version``, such as 17.0.12 or 1.8.0."""


class JavaError(RuntimeError):
    """There is no usable Java; the message says what was found and what to install."""


def find_java() -> str:
    """Return the path of a Java of version `MINIMUM` or newer, from ``$JAVA_HOME`` if it is set, else from the PATH.

    Raises:
        JavaError: there is no Java, or it does not run, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise JavaError(
            f"Java is missing: no `java` on the PATH and JAVA_HOME is not set; install Java {MINIMUM} ({_ADVICE})"
        )
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        origin = "JAVA_HOME" if home else "PATH"
        raise JavaError(f"{java} (from {origin}) does not run: {error}; install Java {MINIMUM} ({_ADVICE})") from None
    major = parse_major(done.stderr + done.stdout)
    if major < MINIMUM:
        raise JavaError(f"{java} is Java {major or 'of unknown version'}, expected {MINIMUM} or newer; {_ADVICE}")
    return java


def parse_major(text: str) -> int:
    """Return the major version in the output of ``java -version`` (8 for ``1.8.0``); 0 if the output names none."""
    match = _VERSION.search(text)
    if match is None:
        return 0
    numbers = [int(part) for part in re.findall(r"\d+", match["version"])[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def main() -> int:
    """Print which Java is used (exit code 0), or what to install (exit code 1)."""
    try:
        sys.stdout.write(f"{find_java()}\n")
    except JavaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
