"""The Spark session and the source of its stream, with options chosen by measurement (docs/measured/psort.md)."""

from __future__ import annotations

import os
import pwd
import re
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tsunagi.installation import CACHE, SETUP, import_path
from tsunagi.jars.archive import reading
from tsunagi.runtime.kafka_client import PROTOCOLS
from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.settings import ConfigError, KafkaSettings, Settings

JARS = CACHE / "jars" / "spark"
"""Directory into which `tsunagi.jars.fetch` puts the jars of Spark's Kafka connector."""
ARCHIVE = CACHE / "spark.jsa"
"""Archive of classes that `tsunagi_spark.archive` makes for a quicker start; it is used if it exists."""
SOURCE_PREFIX = "kafka."
"""Keys of `[spark] options` that begin with this go to the Kafka source, the others to the session."""

# Python workers keep the memory of one batch's columns for the next batch. If it were returned (as glibc does above
# some megabytes, and Arrow's own pool always), the kernel would have to clear each page again: a fifth of the work.
_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
_PLAIN = re.compile(r"[!#%-&(-\[\]-~]+")
"""A password that Kafka's client in the JVM reads from a file without a change: it has no quotes, backslashes, "$" or
blanks."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
"""Key of the options of the driver's JVM, to which options are added later."""
_COMMIT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Class that writes the files of Spark's checkpoint, through Hadoop's FileSystem interface and by renaming."""


def session_options(settings: Settings, jars: Path = JARS) -> dict[str, str]:
    """Return the options of the session; `[spark] options` count more than all others.

    Raises:
        ConfigError: the connector's jars are missing, or the user has no name.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # otherwise Hadoop's login ends in a NullPointerException
        raise ConfigError(
            f"user {os.getuid()}: found no entry in the system's table of users, expected one, which Spark's Hadoop "
            "takes the name from: add it to /etc/passwd, or run as another user"
        ) from None
    found = sorted(jars.glob("*.jar"))
    if not any(path.name.startswith("spark-sql-kafka") for path in found):
        raise ConfigError(f"no Spark connector in {jars}; run `{SETUP}`")
    options = {
        "spark.app.name": "tsunagi",
        "spark.jars": ",".join(str(path) for path in found),
        "spark.driver.memory": settings.spark.memory,
        "spark.executor.memory": settings.spark.executor_memory,
        # The other codec unpacks a library into /tmp to run it, which the /tmp of a container does not allow.
        "spark.shuffle.mapStatus.compression.codec": "lz4",
        # Only the compiler C1: the jobs are short, and to compile them well costs more than it saves.
        _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        **{f"spark.executorEnv.{name}": value for name, value in _MEMORY.items()},
        "spark.sql.shuffle.partitions": str(settings.spark.cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
        "spark.sql.streaming.checkpointFileManagerClass": _COMMIT_MANAGER,
        "spark.sql.streaming.minBatchesToRetain": "4",
        # How often an idle job asks for the ends of the log. At Spark's default, 10 ms, driver and broker need an
        # eighth of a core for it; results are 15 ms later on the average (docs/measured/psort.md).
        "spark.sql.streaming.pollingDelay": "40ms",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.stopTimeout": "20000",
        "spark.sql.session.timeZone": "UTC",
        "spark.locality.wait": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.log.structuredLogging.enabled": "true",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.stage.maxConsecutiveAttempts": "1",
    }
    if not settings.spark.master.startswith("local"):
        del options["spark.driver.bindAddress"], options["spark.driver.host"]
    options |= {
        name: _text(value) for name, value in settings.spark.options.items() if not name.startswith(SOURCE_PREFIX)
    }
    return options


def start_session(settings: Settings, jars: Path = JARS, *, java_options: str = "") -> SparkSession:
    """Start Spark; its Python workers use this Python and import this code.

    Args:
        java_options: further options for the driver's JVM; if empty, the archive of classes is used, if there is one.

    Raises:
        ConfigError: as in `session_options`.
    """
    options = session_options(settings, jars)
    java_options = java_options or " ".join(reading(ARCHIVE))
    options[_JAVA_OPTIONS] = f"{options[_JAVA_OPTIONS]} {java_options}".strip()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = import_path(os.environ.get("PYTHONPATH"))
    builder = SparkSession.builder.master(settings.spark.master)
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def source(session: SparkSession, settings: Settings) -> DataFrame:
    """Return the stream of `recovered`: key, value, partition, offset, timestamp."""
    kafka = settings.kafka
    options: dict[str, str] = {
        "kafka.bootstrap.servers": kafka.servers,
        "subscribe": kafka.prefix + RECOVERED,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(settings.spark.max_offsets),
        "groupIdPrefix": f"{kafka.group_prefix}-spark",
        "kafka.reconnect.backoff.ms": "20",
        "kafka.reconnect.backoff.max.ms": "200",
        # A broker that is away for some time is waited for; the checkpoint says where to go on.
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "120000",
        "kafkaConsumer.pollTimeoutMs": "120000",
        # Spark reads what is there, then asks for the ends of the log on the same connection. The broker answers that
        # after the fetch which the client has sent ahead, and which would wait half a second for records that do not
        # exist yet.
        "kafka.fetch.max.wait.ms": "1",
    }
    options |= security_options(kafka)
    options |= {name: _text(value) for name, value in settings.spark.options.items() if name.startswith(SOURCE_PREFIX)}
    return (
        session.readStream.format("kafka")
        .options(**options)
        .load()
        .select("key", "value", "partition", "offset", "timestamp")
    )


def security_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options of the source for `[kafka] security` and its user.

    A password in a file stays there: Kafka's client looks it up by the name of the file, so that it is in no option,
    plan, log or web page of Spark. The file must also exist where the executors run.

    Raises:
        ConfigError: the password file cannot be read, or holds more than a password on one line.
    """
    options: dict[str, str] = {}
    protocol = str(kafka.options.get("security.protocol", "sasl_plaintext" if kafka.username else "plaintext"))
    mechanism = str(kafka.options.get("sasl.mechanism", kafka.options.get("sasl.mechanisms", "PLAIN")))
    if kafka.security != "plaintext":
        protocol, mechanism = PROTOCOLS[kafka.security], kafka.mechanism
    if protocol != "plaintext":
        options["kafka.security.protocol"] = protocol.upper()
    if kafka.ca_file:
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": kafka.ca_file}
    if not kafka.username:
        return options
    secret = kafka.read_password()
    if kafka.password_file:
        file = Path(kafka.password_file).absolute()
        if file.read_text(encoding="utf-8") != secret or not _PLAIN.fullmatch(secret):
            raise ConfigError(
                f"{file} ([kafka] password_file): Spark's client takes it as it stands; expected a password without "
                'quotes, backslashes, "$" or blanks, and no newline after it'
            )
        secret = f"${{files:{file.parent}:{file.name}}}"
        options |= {
            "kafka.config.providers": "files",
            "kafka.config.providers.files.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        }
    else:
        secret = secret.replace("\\", "\\\\").replace('"', '\\"')
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    return options | {
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        f'username="{kafka.username}" password="{secret}";',
    }


def _text(value: str | float | bool) -> str:  # noqa: FBT001 - a value of the configuration, not a switch
    return str(value).lower() if isinstance(value, bool) else str(value)
