"""Kafka Streams' side of the bench: fetches its jars, compiles `RunningSum.java`, and starts it.

It needs a JDK (`javac`) and Maven Central, which no test does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench import maven
from tsunagi.installation import CACHE
from tsunagi.jars.fetch import expected
from tsunagi.jars.java import find_java

SOURCE = Path(__file__).resolve().with_name("RunningSum.java")
JARS = CACHE / "jars" / "kafka-streams"
CLIENTS = re.compile(r"kafka-clients-(?P<version>.+)\.jar")
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
    """Fetch the jars of Kafka Streams; return their directory.

    Raises:
        RuntimeError: they cannot be fetched.
    """
    return maven.fetch(JARS, ("org.apache.kafka", "kafka-streams", version()))


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
