"""Writes what Docker Compose needs to run a project folder's fleet: a file over docker-compose.yml, and variables.

The folder is mounted at /project in each container, and services start there, so paths that are relative to the folder
are the same inside. What cannot be the same is set by environment variables, which count more than tsunagi.toml.
"""

from __future__ import annotations

import json
import os.path
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tsunagi.project.sizing import Proposal, Sizes
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import ConfigError, Settings
from tsunagi.sink.names import node_of

OVERRIDE, VARIABLES = "compose.override.yml", ".env"
"""The files of a project folder that Docker Compose reads."""
HOST = "host.docker.internal"
"""Name by which containers reach the machine that they run on."""
_LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0")  # noqa: S104 - compared with, not listened on
"""Hosts that mean this machine, and in a container the container itself."""
_WRITTEN = frozenset({"state", "store", "checkpoint", "lake"})
"""Keys of directories that services write: in containers these are volumes."""
_FILES = re.compile(r".*(_file|location)|sensors|files|events|path|model")
"""Matches keys of the settings whose values are files that services read."""
SINK_MB = 512
"""Memory of a sink's container, MB: its libraries take 150, and rows that wait the rest."""
LAKE = "/lake"
"""Where a container has the folder of [sinks.lake], in a volume."""
_DEMO_EDGES = ("edge-1", "edge-2", "edge-3", "edge-4")
"""The edges of docker-compose.yml, which read the shipped readings."""
_WORKERS = {"gateway": 2, "secondary": 2, "worker": 1}
"""Workers that docker-compose.yml has, by the beginning of their names."""

_HEAD = """\
# Made from tsunagi.toml and sensors.csv by `tsunagi init` and, each time anew, by `make up PROJECT=...`.
# Changes of yours go into another file, which COMPOSE_FILE of .env names behind this one.

x-project: &project
  working_dir: /project
  environment: &environment
{environment}
  extra_hosts: ["{host}:host-gateway"]
  volumes:
    - {{type: bind, source: "${{TSUNAGI_PROJECT:?expected the project folder}}", target: /project, read_only: true}}
{mounts}
x-worker: &worker
  <<: *project
  deploy: {{resources: {{limits: {{memory: {worker_mb}M}}}}}}

x-new: &new
  restart: unless-stopped
  stop_grace_period: 15s
  read_only: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  logging: {{driver: json-file, options: {{max-size: 10m, max-file: "3"}}}}
  working_dir: /project
  extra_hosts: ["{host}:host-gateway"]
  depends_on:
    topics: {{condition: service_completed_successfully}}
    model: {{condition: service_completed_successfully}}

x-new-environment: &new-environment
  <<: *environment
  TSUNAGI_STATE: /var/lib/tsunagi
  TSUNAGI_KAFKA__TOPICS: check
  TSUNAGI_METRICS__HOST: 0.0.0.0
  TSUNAGI_METRICS__PORT: 9100

services:
  topics: *project
  tools: *project
  scaler: *project
  console: *project
  model: {{command: ["true"]}}  # the demo's; a fleet begins with the model that [recovery] names, or without one
"""
"""What begins the compose file: what every service of docker-compose.yml gets, and what new services have in common."""
_VARIABLES = """\
# Variables of Docker Compose for this folder. Tsunagi's .env.example explains all that there are.
COMPOSE_PROJECT_NAME={{name}}
COMPOSE_FILE={{checkout}}/docker-compose.yml:{{folder}}/compose.override.yml
TSUNAGI_PROJECT={{folder}}
TSUNAGI_SPARK_MASTER=local[{cores}]
"""
"""The variables of a project folder."""
_EDGE = """\
  {service}:
    <<: *new
    image: tsunagi-edge
    command: [edge, run, --edge, {edge}]
    environment: {{<<: *new-environment, {source}}}
    tmpfs: ["/tmp"]
    volumes:
      - {{type: bind, source: "${{TSUNAGI_PROJECT:?expected the project folder}}", target: /project, read_only: true}}
      - ${{TSUNAGI_OPERATORS:-./deploy/operators}}:/operators:ro
      - edges:/var/lib/tsunagi
{mounts}    labels: {{tsunagi.role: edge, tsunagi.node: {edge}}}
    deploy: {{resources: {{limits: {{cpus: "${{TSUNAGI_CPUS:-1.0}}", memory: {edge_mb}M}}}}}}
"""
"""A service for an edge."""
_SERVICE = """\
  {name}:
    <<: *new
    image: {image}
    command: [{command}]
    environment: {environment}
    tmpfs: ["/tmp", "/var/lib/tsunagi:uid=10001,gid=10001"]
    volumes:
      - {{type: bind, source: "${{TSUNAGI_PROJECT:?expected the project folder}}", target: /project, read_only: true}}
      - ${{TSUNAGI_OPERATORS:-./deploy/operators}}:/operators:ro
      - models:/models
{mounts}    labels: {{tsunagi.role: {role}, tsunagi.node: {name}}}
    deploy: {{resources: {{limits: {{cpus: "${{TSUNAGI_CPUS:-1.0}}", memory: {memory_mb}M}}}}}}
"""
"""A service that docker-compose.yml does not have: a worker, the learner, or a sink."""
_VOLUMES = "\nvolumes:\n  lake:\n"
"""What ends the file where there are sinks."""
_BROKER = """\
  # Stands for the broker of [kafka] servers: it is healthy while that takes connections.
  kafka:
    image: tsunagi-services
    entrypoint: [sleep, infinity]
    init: true
    extra_hosts: ["{host}:host-gateway"]
    healthcheck: {{test: [CMD, bash, -c, {test}], interval: 3s, timeout: 4s, retries: 20}}
"""
"""What takes the place of our broker where the user has one."""
_SPARK = """\
  {name}:
    <<: *project
    deploy: {{resources: {{limits: {{memory: {spark_mb}M}}}}}}
"""
"""What Spark and the workers of its cluster get beside the folder."""


def service_names(edges: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the name of a Compose service for each edge: plain small letters, "edge" before them, and no name twice.

    Args:
        taken: names of other services that begin with "edge".
    """
    used, found = set(taken), dict[str, str]()
    for edge in edges:
        plain = unicodedata.normalize("NFKD", edge.lower()).encode("ascii", "ignore").decode()
        plain = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].rstrip("-")
        base = plain if plain.startswith("edge") else f"edge-{plain}".rstrip("-")
        name, number = base, 1
        while name in used:
            number += 1
            name = f"{base}-{number}"
        used.add(name)
        found[edge] = name
    return found


def container_files(settings: Settings, table: SensorTable, sizes: Sizes) -> dict[str, str]:
    """Return the texts of `OVERRIDE` and `VARIABLES`, by name; `variables_text` completes the latter.

    Raises:
        ConfigError: the settings cannot be used in containers; the message names the key, found and expected.
    """
    workers = list(_workers(sizes))
    nodes = {name for _, name in workers}
    for edge in table.edges:
        if edge in nodes:
            raise ConfigError(f"{settings.sensors}: edge: found {edge!r}, expected a name that no worker has")
    own = is_local(settings.kafka.servers)
    named = {"worker_mb": sizes.worker_mb.value, "edge_mb": sizes.edge_mb.value, "spark_mb": sizes.spark_mb.value}
    outside = _outside(settings)
    bind = [
        f"      - {{type: bind, source: {json.dumps(path)}, target: {json.dumps(path)}, read_only: true}}\n"
        for path in outside
    ]
    mounts = "".join(bind)
    environment = {
        "TSUNAGI_CONFIG": "/project/tsunagi.toml",
        "TSUNAGI_SENSORS": str(settings.sensors),
        "TSUNAGI_KAFKA__SERVERS": "${TSUNAGI_KAFKA_SERVERS:-kafka:9092}" if own else settings.kafka.servers,
        "TSUNAGI_KAFKA__REPLICATION": "${TSUNAGI_REPLICATION:-1}" if own else str(settings.kafka.replication),
        "TSUNAGI_SLOTS__COUNT": str(settings.slots.count),
        "TSUNAGI_RECOVERY__STORE": "/models/store",
        "TSUNAGI_SPARK__CHECKPOINT": "/checkpoint",
        "TSUNAGI_SCALER__WORKERS": str(len(workers)),
        "TSUNAGI_SCALER__LAUNCHER": "none",
    }
    parts = [
        _HEAD.format(
            environment="\n".join(f"    {name}: {json.dumps(value)}" for name, value in environment.items()),
            mounts=mounts.replace("      - ", "    - "),
            host=HOST,
            **named,
        )
    ]
    if not own:
        host, _, port = settings.kafka.servers.split(",")[0].strip().rpartition(":")
        parts.append(_BROKER.format(host=HOST, test=json.dumps(f"</dev/tcp/{host}/{port}")))
    parts += [_SPARK.format(name=name, **named) for name in ("spark", "spark-worker-1", "spark-worker-2")]
    parts.append("  spark-master: *project\n")
    for command, name in workers:
        kind, _, number = name.rpartition("-")
        if int(number) <= _WORKERS[kind]:
            parts.append(f"  {name}: *worker\n")
        else:
            started = f"{command}, run, --node, {name}"
            parts.append(_service(name, started, kind, mounts, sizes.worker_mb.value))
    if settings.recovery.learn:
        parts.append(_service("learner", "learner, run", "learner", mounts, sizes.learner_mb.value))
    tables = json.dumps(_sinks(settings)) if settings.sinks else ""
    for sink in settings.sinks:
        node = node_of(sink.name)
        started = f"sink, run, --sink, {sink.name}, --node, {node}"
        parts.append(_service(node, started, "sink", mounts, SINK_MB, sinks=tables))
    parts += [f"  {name}: {{profiles: [demo]}}\n" for name in _DEMO_EDGES]
    source = ", ".join(f"{name}: {json.dumps(value)}" for name, value in _source(settings).items())
    for edge, service in service_names(table.edges, _DEMO_EDGES).items():
        parts.append(_EDGE.format(service=service, edge=json.dumps(edge), source=source, mounts=mounts, **named))
    if settings.sinks:
        parts.append(_VOLUMES)
    variables = _VARIABLES.format(cores=sizes.spark_cores.value)
    return {OVERRIDE: "".join(parts), VARIABLES: variables if own else f"{variables}TSUNAGI_PORT_KAFKA=0\n"}


def _service(name: str, command: str, role: str, mounts: str, memory_mb: int, *, sinks: str = "") -> str:
    """Return a service that docker-compose.yml does not have.

    Args:
        sinks: [[sinks]] as JSON, if the service is a sink.
    """
    if sinks:
        environment = f"{{<<: *new-environment, TSUNAGI_SINKS: {json.dumps(sinks)}}}"
        mounts = f"      - lake:{LAKE}\n{mounts}"
    return _SERVICE.format(
        name=name,
        image="tsunagi-spark" if sinks else "tsunagi-services",
        command=command,
        environment=environment if sinks else "*new-environment",
        role=role,
        mounts=mounts,
        memory_mb=memory_mb,
    )


def variables_text(template: str, checkout: Path, folder: Path) -> str:
    """Return the text of `VARIABLES` for a folder, from the text that `container_files` gives."""
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.name.lower()).strip("-_") or "plant"
    return template.replace("{name}", name).replace("{checkout}", str(checkout)).replace("{folder}", str(folder))


def is_local(servers: str) -> bool:
    """Return whether bootstrap servers, host:port and comma-separated, mean this machine."""
    return all(_host(item) in _LOCAL for item in servers.split(","))


def _host(server: str) -> str:
    return server.strip().rpartition(":")[0] or server.strip()


def _workers(sizes: Sizes) -> Iterator[tuple[str, str]]:
    """Yield (command, name) of each worker."""
    counts: Mapping[str, tuple[str, Proposal]] = {
        "gateway": ("gateway", sizes.gateways),
        "secondary": ("secondary", sizes.secondaries),
        "worker": ("gateway", sizes.spare),
    }
    for name, (command, proposal) in counts.items():
        for number in range(1, max(_WORKERS[name], proposal.value) + 1):
            yield command, f"{name}-{number}"


def _source(settings: Settings) -> dict[str, str]:
    """Return what edges in containers need to reach the source.

    Raises:
        ConfigError: they cannot reach it.
    """
    source = settings.source
    if source.kind == "mqtt":
        host = HOST if source.mqtt.host in _LOCAL else source.mqtt.host
        return {"TSUNAGI_SOURCE__KIND": "mqtt", "TSUNAGI_SOURCE__MQTT__HOST": f"${{TSUNAGI_MQTT_HOST:-{host}}}"}
    if source.kind == "lines":
        raise ConfigError(
            '[source] kind: found "lines", which nothing in a container reaches; expected mqtt, kafka or csv'
        )
    if source.kind == "kafka" and is_local(source.kafka.servers or settings.kafka.servers):
        key = "source.kafka" if source.kafka.servers else "kafka"
        raise ConfigError(
            f"[{key}] servers: found {source.kafka.servers or settings.kafka.servers!r}, expected a broker that "
            f"containers reach: one of this machine needs a listener that is advertised as {HOST}:PORT"
        )
    return {"TSUNAGI_SOURCE__KIND": source.kind}


def _sinks(settings: Settings) -> list[dict[str, Any]]:
    """Return [[sinks]] as containers need it: a target on this machine has another name there."""
    found = []
    for sink in settings.sinks:
        table = sink.model_dump(mode="json", exclude_unset=True)
        for kind, key in (("postgres", "host"), ("mqtt", "host")):
            if sink.kind == kind and getattr(getattr(sink, kind), key) in _LOCAL:
                table.setdefault(kind, {})[key] = HOST
        for kind in ("influxdb", "webhook"):
            if sink.kind == kind:
                url = getattr(sink, kind).url
                host = urlsplit(url).hostname or ""
                if host in _LOCAL:
                    table.setdefault(kind, {})["url"] = url.replace(host, HOST, 1)
        if sink.kind == "lake":
            table["lake"] = table.get("lake", {}) | {"directory": LAKE}
        found.append(table)
    return found


def _outside(settings: Settings) -> list[str]:
    """Return the files outside the folder that services read; they are mounted where they are.

    Raises:
        ConfigError: a relative path leads out of the folder.
    """
    found = []
    for key, text in _paths(settings.model_dump(mode="json"), ""):
        if Path(text).is_absolute():
            found.append(text)
        elif os.path.normpath(text).startswith(".."):
            raise ConfigError(f"[{key}]: found {text!r}, expected a path within the project folder, or an absolute one")
    return sorted(set(found) - {"/project"})


def _paths(tree: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield (key, path) of each file that the settings name; an empty one names none."""
    if isinstance(tree, Mapping):
        for name, item in tree.items():
            if name not in _WRITTEN:
                yield from _paths(item, f"{key}.{name}".lstrip("."))
    elif isinstance(tree, list):
        for item in tree:
            yield from _paths(item, key)
    elif isinstance(tree, str) and tree and any(_FILES.fullmatch(part) for part in key.split(".")):
        yield key, tree
