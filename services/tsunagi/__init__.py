"""Tsunagi processes the streams of sensor fleets. This module has every name that a user imports.

    import tsunagi as ts

    pipeline = ts.Pipeline("plant.csv", operators=["recover", MyOperator])
    for row in pipeline.run(memory=True):
        print(row.time, row.sensor, row.value, row.bound)

- `Pipeline` runs a source through operators, in this process or on Kafka; `Results` reads the results of a running
  system.
- `Operator`, `Frame` and `Run`, `SlotConfig`, `OperatorError`, `Quality`, `pack_arrays` and `unpack_arrays` are for
  users who write their own operators (docs/howto/operators.md).
- `SourceReader` and `SourceMessage` are for users who write their own sources (docs/howto/sources.md).
- `Sink`, `SinkBatch`, `SinkRows`, `Refusal` and `RefusedError` are for users who write their own sinks
  (docs/howto/sinks.md).
- `testing` has the laws of operators, sources and sinks, a log in memory and a clock that a test moves.

services/README.md says what is in each folder.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsunagi import testing
    from tsunagi.edge.own_source import SourceMessage, SourceReader
    from tsunagi.operator_names import PipelineError
    from tsunagi.pipeline import Pipeline
    from tsunagi.results import Results
    from tsunagi.runtime.columns import pack_arrays, unpack_arrays
    from tsunagi.runtime.messages import Quality
    from tsunagi.runtime.results import Row
    from tsunagi.sink.base import Refusal, RefusedError, Sink
    from tsunagi.sink.rows import SinkBatch, SinkRows
    from tsunagi.slot.config import SlotConfig
    from tsunagi.slot.operators import Frame, Operator, OperatorError, OperatorFailedError, Run

__version__ = "0.1.0"

__all__ = [
    "Frame",
    "Operator",
    "OperatorError",
    "OperatorFailedError",
    "Pipeline",
    "PipelineError",
    "Quality",
    "Refusal",
    "RefusedError",
    "Results",
    "Row",
    "Run",
    "Sink",
    "SinkBatch",
    "SinkRows",
    "SlotConfig",
    "SourceMessage",
    "SourceReader",
    "__version__",
    "pack_arrays",
    "testing",
    "unpack_arrays",
]

_MODULES = {
    "tsunagi.edge.own_source": ("SourceMessage", "SourceReader"),
    "tsunagi.operator_names": ("PipelineError",),
    "tsunagi.pipeline": ("Pipeline",),
    "tsunagi.results": ("Results",),
    "tsunagi.runtime.columns": ("pack_arrays", "unpack_arrays"),
    "tsunagi.runtime.messages": ("Quality",),
    "tsunagi.runtime.results": ("Row",),
    "tsunagi.sink.base": ("Refusal", "RefusedError", "Sink"),
    "tsunagi.sink.rows": ("SinkBatch", "SinkRows"),
    "tsunagi.slot.operators": ("Frame", "Operator", "OperatorError", "OperatorFailedError", "Run"),
    "tsunagi.slot.config": ("SlotConfig",),
}
"""The public names, by the module that defines them. `__getattr__` imports that module when a name is first used."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
"""The module of each public name: `_MODULES` the other way round."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - each name has its type above
    """Import a public name when it is first used.

    Every command imports this package, and few commands need numpy, pydantic and Kafka's client.
    """
    if name == "testing":
        return import_module("tsunagi.testing")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tsunagi' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
