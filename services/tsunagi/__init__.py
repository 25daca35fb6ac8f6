"""Tsunagi: stream processing for fleets of sensors. What a user imports stands here.

    import tsunagi as ts

    pipeline = ts.Pipeline("plant.csv", operators=["recover", MyOperator])
    for row in pipeline.run(memory=True):
        print(row.time, row.sensor, row.value, row.bound)

- `Pipeline` runs a source through operators, in this process or on Kafka; `Results` reads what a running system gives.
- `Operator`, `Frame` and `Run`, `SlotConfig`, `OperatorError`, `Quality`, `pack_arrays` and `unpack_arrays` are what an
  operator of one's own is written with (docs/howto/operators.md).
- `testing` has the laws of operators, a log in memory and a clock that a test moves.

services/README.md says what each folder is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsunagi import testing
    from tsunagi.operator_names import PipelineError
    from tsunagi.pipeline import Pipeline
    from tsunagi.results import Results
    from tsunagi.runtime.columns import pack_arrays, unpack_arrays
    from tsunagi.runtime.messages import Quality
    from tsunagi.runtime.results import Row
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
    "Results",
    "Row",
    "Run",
    "SlotConfig",
    "__version__",
    "pack_arrays",
    "testing",
    "unpack_arrays",
]

_MODULES = {
    "tsunagi.operator_names": ("PipelineError",),
    "tsunagi.pipeline": ("Pipeline",),
    "tsunagi.results": ("Results",),
    "tsunagi.runtime.columns": ("pack_arrays", "unpack_arrays"),
    "tsunagi.runtime.messages": ("Quality",),
    "tsunagi.runtime.results": ("Row",),
    "tsunagi.slot.operators": ("Frame", "Operator", "OperatorError", "OperatorFailedError", "Run"),
    "tsunagi.slot.config": ("SlotConfig",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - each name has its type above
    """Import what is asked for: every command imports this package, and few need numpy, pydantic and Kafka."""
    if name == "testing":
        return import_module("tsunagi.testing")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tsunagi' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
