"""Configures the logging of a process: JSON lines for machines, or readable text on a terminal, both on stderr.

Every line has the time (UTC), the level, the event, the name of the service, and the bound fields (slot, epoch, node).
Lines of libraries that use Python's own logging, and warnings, get the same form.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO, cast

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor

# Tracebacks have no local variables: a batch of readings in each line helps nobody, and a password must not be logged.
_TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def configure(
    service: str, *, level: str = "info", stream: TextIO | None = None, **bound: object
) -> structlog.stdlib.BoundLogger:
    """Set up the process's logging and return its logger.

    Args:
        service: the name of the service, which every line has.
        level: the lowest level that is written, as `log_level` of the settings.
        stream: the stream to write to; None means stderr. A terminal gets text, everything else JSON lines.
        bound: further fields of every line, for example ``node="gw-1"``.
    """
    target = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.stdlib.ExtraAdder(),
    ]
    terminal = target.isatty()
    rendered: list[Processor] = (
        [structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=structlog.dev.plain_traceback)]
        if terminal
        else [_TRACEBACKS, structlog.processors.JSONRenderer(default=str)]
    )

    def name_service(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        for key, value in {"service": service, **bound}.items():
            event.setdefault(key, value)
        return event

    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, name_service],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            name_service,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return cast("structlog.stdlib.BoundLogger", structlog.get_logger(f"tsunagi.{service}"))
