"""The configuration: a module for each section, and `load`, which reads the file and the environment."""

from tsunagi.runtime.settings.edge import Edge
from tsunagi.runtime.settings.kafka import Kafka
from tsunagi.runtime.settings.loading import CONFIG_VARIABLE, Settings, load, make
from tsunagi.runtime.settings.metrics import Metrics
from tsunagi.runtime.settings.paper import Paper
from tsunagi.runtime.settings.query import Aggregate, Operator, Query
from tsunagi.runtime.settings.recovery import Recovery
from tsunagi.runtime.settings.results import Results
from tsunagi.runtime.settings.scaler import LOCAL, Containers, Scaler, Size
from tsunagi.runtime.settings.section import MICROSECONDS, ConfigError
from tsunagi.runtime.settings.security import Security
from tsunagi.runtime.settings.slots import Slots
from tsunagi.runtime.settings.source import Mqtt, Source
from tsunagi.runtime.settings.spark import Spark
from tsunagi.runtime.settings.standby import Standby, Target
from tsunagi.runtime.settings.steps import Steps

__all__ = [
    "CONFIG_VARIABLE",
    "LOCAL",
    "MICROSECONDS",
    "Aggregate",
    "ConfigError",
    "Containers",
    "Edge",
    "Kafka",
    "Metrics",
    "Mqtt",
    "Operator",
    "Paper",
    "Query",
    "Recovery",
    "Results",
    "Scaler",
    "Security",
    "Settings",
    "Size",
    "Slots",
    "Source",
    "Spark",
    "Standby",
    "Steps",
    "Target",
    "load",
    "make",
]
