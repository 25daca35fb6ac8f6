"""Fetches the Java packages of the broker and of Spark's Kafka connector.

Apache Ivy does the work. It comes in PySpark's wheel, so nothing but Java is needed. ``<set>.ivy.xml`` names the
packages that are wanted, and ``<set>.jars`` lists the files that must be there afterwards. Run it as
``python -m tsunagi.jars.fetch``; a second run does nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tsunagi.installation import CACHE, SETUP, missing
from tsunagi.jars.java import JavaError, find_java

SETS = ("kafka", "spark")
"""The sets of jars: one for the broker, one for Spark's connector. Each has its own directory."""
MARKER = "fetched"
"""Name of a file beside the jars. It has the digest of what was asked for, then the name and size of each jar."""

_HERE = Path(__file__).resolve().parent
"""The directory of the lists of jars."""
_TIMEOUT_S = 900.0
"""Longest time that Ivy may take for a set, in seconds: downloads may be slow, but a hanging one must end."""


class FetchError(RuntimeError):
    """The jars could not be fetched; the message says which and why."""


def expected(name: str) -> list[str]:
    """Return the file names of the jars of a set, sorted."""
    return sorted((_HERE / f"{name}.jars").read_text(encoding="utf-8").split())


def fetched(name: str, cache: Path = CACHE) -> bool:
    """Return whether all jars of the set are there, in the versions that are wanted now."""
    directory = cache / "jars" / name
    try:
        return (directory / MARKER).read_text(encoding="utf-8") == _marker(name, directory)
    except OSError:
        return False


def fetch(name: str, cache: Path = CACHE) -> Path:
    """Fetch the jars of a set into ``<cache>/jars/<name>``, and return that directory.

    Raises:
        FetchError: Ivy failed, or fetched other jars than expected.
        JavaError: there is no usable Java.
    """
    directory = cache / "jars" / name
    if fetched(name, cache):
        return directory
    fresh = directory.with_name(f"{name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    options = (
        "-cache",
        str(cache / "ivy"),
        "-ivy",
        str(_HERE / f"{name}.ivy.xml"),
        "-confs",
        name,
        "-types",
        "jar",
        "bundle",
    )
    command = [find_java(), "-jar", str(_ivy()), *options, "-retrieve", f"{fresh}/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"jars of {name}: Ivy was not done within {_TIMEOUT_S:g} s; run `{SETUP}` again") from None
    if done.returncode != 0:
        raise FetchError(
            f"jars of {name}: Ivy failed (exit code {done.returncode}); it said:\n{_ending(done.stdout + done.stderr)}"
        )
    found = sorted(path.name for path in fresh.glob("*.jar"))
    wanted = expected(name)
    if found != wanted:
        missing = ", ".join(sorted(set(wanted) - set(found))) or "none"
        surplus = ", ".join(sorted(set(found) - set(wanted))) or "none"
        raise FetchError(
            f"jars of {name}: found {len(found)}, expected {len(wanted)}; missing: {missing}; unexpected: {surplus}"
        )
    (fresh / MARKER).write_text(_marker(name, fresh), encoding="utf-8")
    shutil.rmtree(directory, ignore_errors=True)
    fresh.rename(directory)
    return directory


def _marker(name: str, directory: Path) -> str:
    """Return what the marker must contain. The sizes show whether a jar was cut short since it was fetched."""
    asked = hashlib.sha256((_HERE / f"{name}.ivy.xml").read_bytes() + (_HERE / f"{name}.jars").read_bytes()).hexdigest()
    jars = [f"{jar} {(directory / jar).stat().st_size}" for jar in expected(name)]
    return "\n".join([asked, *jars, ""])


def _ivy() -> Path:
    named = os.environ.get("IVY_JAR")  # the build of an image has an Ivy but no PySpark
    if named:
        return Path(named)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FetchError(f"pyspark is not installed in this Python; {missing('spark')}")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise FetchError(f"no ivy-*.jar in {Path(spec.origin).parent / 'jars'}; is this PySpark's own wheel?")
    return found[-1]


def _ending(text: str) -> str:
    """Return the last 25 lines of Ivy's output that are not blank: it sums up its warnings and errors at the end."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-25:])


def fetch_all(tell: Callable[[str], None], cache: Path = CACHE) -> None:
    """Fetch all sets that are not there.

    Args:
        tell: called with a line for each set that is fetched.

    Raises:
        FetchError, JavaError: as for `fetch`.
    """
    for name in SETS:
        if not fetched(name, cache):
            tell(f"jars of {name}: fetching {len(expected(name))} into {cache / 'jars' / name}")
            fetch(name, cache)


def main() -> int:
    """Fetch every set, and return the exit code."""
    try:
        fetch_all(lambda text: print(text, flush=True))  # noqa: T201 - this is a script, which prints its progress
    except (FetchError, JavaError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
