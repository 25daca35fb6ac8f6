"""Kafka Streams' side of the bench: fetches its jars, compiles `RunningSum.java`, and starts it.

It needs a JDK (`javac`) and Maven Central, which no test does.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tsunagi.installation import CACHE
from tsunagi.jars.fetch import expected
from tsunagi.jars.java import find_java

SOURCE = Path(__file__).resolve().with_name("RunningSum.java")
JARS = CACHE / "jars" / "kafka-streams"
CLIENTS = re.compile(r"kafka-clients-(?P<version>.+)\.jar")
FETCH_S = 600.0
STORES = {
    "default": ("persistent", "uncached"),
    "cached": ("persistent", "cached"),
    "memory": ("memory", "cached"),
}
"""The state stores to compare with: that on disk as `Stores` gives it, the same with a cache, one in memory with it."""


def version() -> str:
    """Return the version of the broker's jars. Kafka Streams is taken in the same one."""
    return next(found["version"] for name in expected("kafka") if (found := CLIENTS.fullmatch(name)))


def fetch() -> Path:
    """Fetch the jars of Kafka Streams with Apache Ivy, which PySpark's wheel has; return their directory.

    Raises:
        RuntimeError: there is no Ivy, or it failed.
    """
    wanted = JARS / f"kafka-streams-{version()}.jar"
    if wanted.exists():
        return JARS
    spec = importlib.util.find_spec("pyspark")
    ivy = [] if spec is None or spec.origin is None else sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not ivy:
        raise RuntimeError("no Ivy: PySpark is not installed")
    shutil.rmtree(JARS, ignore_errors=True)
    asked = ["-dependency", "org.apache.kafka", "kafka-streams", version(), "-confs", "default"]
    kept = ["-cache", str(CACHE / "ivy"), "-types", "jar", "bundle"]
    command = [find_java(), "-jar", str(ivy[-1]), *kept, *asked, "-retrieve", f"{JARS}/[artifact]-[revision].[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    if done.returncode or not wanted.exists():
        raise RuntimeError(f"Ivy did not fetch Kafka Streams:\n{(done.stdout + done.stderr)[-2000:]}")
    return JARS


def compiled(work: Path) -> str:
    """Compile the program into a directory; return the class path with which it runs.

    Raises:
        RuntimeError: there is no JDK, or the jars cannot be fetched.
    """
    compiler = shutil.which("javac")
    if compiler is None:
        raise RuntimeError("no javac: this bench needs a JDK, such as openjdk-17-jdk-headless")
    jars, classes = f"{fetch()}/*", work / "classes"
    command = [compiler, "-cp", jars, "-d", str(classes), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return f"{classes}:{jars}"


def begin(class_path: str, servers: str, name: str, work: Path, window: int, store: str) -> subprocess.Popen[bytes]:
    """Start the program: it reads the topic `NAME-in` and writes `NAME-out`.

    Args:
        store: one of `STORES`.
    """
    with (work / f"{name}.log").open("wb") as output:
        arguments = [servers, f"{name}-in", f"{name}-out", name, str(work / "state"), str(window), *STORES[store]]
        command = [find_java(), "-cp", class_path, "RunningSum", *arguments]
        return subprocess.Popen(command, stdout=output, stderr=output)


def make_topics(servers: str, *names: str) -> None:
    """Make topics of one partition each."""
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(timeout=60.0)
