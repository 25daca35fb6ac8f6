"""Fetches jars that a bench compares with, by Apache Ivy, which PySpark's wheel has. No test needs them."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from tsunagi.installation import CACHE
from tsunagi.jars.java import find_java

FETCH_S = 900.0


def fetch(folder: Path, *wanted: tuple[str, str, str]) -> Path:
    """Fetch artifacts and all that they need from Maven Central; return the directory of the jars.

    Args:
        wanted: (organisation, name, version) of each.

    Raises:
        RuntimeError: there is no Ivy, or it failed.
    """
    spec = importlib.util.find_spec("pyspark")
    ivy = [] if spec is None or spec.origin is None else sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not ivy:
        raise RuntimeError("no Ivy: PySpark is not installed")
    for organisation, name, version in wanted:
        jar = folder / f"{name}-{version}.jar"
        if jar.exists():
            continue
        asked = ["-dependency", organisation, name, version, "-confs", "default"]
        kept = ["-cache", str(CACHE / "ivy"), "-types", "jar", "bundle"]
        place = f"{folder}/[artifact]-[revision].[ext]"
        command = [find_java(), "-jar", str(ivy[-1]), *kept, *asked, "-retrieve", place]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        if done.returncode or not jar.exists():
            raise RuntimeError(f"Ivy did not fetch {name}:\n{(done.stdout + done.stderr)[-2000:]}")
    return folder
