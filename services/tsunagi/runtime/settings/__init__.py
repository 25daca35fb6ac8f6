"""The configuration: a module for each section, and `load`, which reads the file and the environment."""

from tsunagi.runtime.settings.console import ConsoleSettings
from tsunagi.runtime.settings.edge import EdgeSettings
from tsunagi.runtime.settings.kafka import KafkaSettings
from tsunagi.runtime.settings.loading import CONFIG_VARIABLE, Settings, load, make
from tsunagi.runtime.settings.metrics import MetricsSettings
from tsunagi.runtime.settings.paper import PaperSettings
from tsunagi.runtime.settings.query import AggregateSettings, OperatorSettings, QuerySettings
from tsunagi.runtime.settings.recovery import RecoverySettings
from tsunagi.runtime.settings.results import ResultsSettings
from tsunagi.runtime.settings.scaler import LOCAL, SPARE, ContainersSettings, ScalerSettings, SizeSettings
from tsunagi.runtime.settings.section import MICROSECONDS, ConfigError
from tsunagi.runtime.settings.security import SecuritySettings
from tsunagi.runtime.settings.sinks import SinkSettings
from tsunagi.runtime.settings.slots import SlotsSettings
from tsunagi.runtime.settings.source import MqttSettings, SourceSettings
from tsunagi.runtime.settings.spark import SparkSettings
from tsunagi.runtime.settings.standby import StandbySettings, Target
from tsunagi.runtime.settings.steps import StepsSettings
from tsunagi.runtime.settings.table import TableSettings

__all__ = [
    "CONFIG_VARIABLE",
    "LOCAL",
    "MICROSECONDS",
    "SPARE",
    "AggregateSettings",
    "ConfigError",
    "ConsoleSettings",
    "ContainersSettings",
    "EdgeSettings",
    "KafkaSettings",
    "MetricsSettings",
    "MqttSettings",
    "OperatorSettings",
    "PaperSettings",
    "QuerySettings",
    "RecoverySettings",
    "ResultsSettings",
    "ScalerSettings",
    "SecuritySettings",
    "Settings",
    "SinkSettings",
    "SizeSettings",
    "SlotsSettings",
    "SourceSettings",
    "SparkSettings",
    "StandbySettings",
    "StepsSettings",
    "TableSettings",
    "Target",
    "load",
    "make",
]
