"""Where Tsunagi stands: in a checkout of its sources (or an image that has them), or installed from a wheel."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

CHECKOUT = _PACKAGE.parents[1] if _PACKAGE.parent.name == "services" else None
"""The sources' top directory; None where the package is installed."""

CACHE = (
    CHECKOUT / ".cache"
    if CHECKOUT is not None
    else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsunagi"
)
"""Where the jars of the broker and of Spark are kept."""

SETUP = "tsunagi setup" if CHECKOUT is None else "make setup"
"""The command that brings the jars, for messages."""

IMPORT_PATHS = (_PACKAGE.parent,) if CHECKOUT is None else (CHECKOUT / "services", CHECKOUT / "spark", CHECKOUT)
"""What a process that is started must have on its PYTHONPATH; of a checkout also the examples."""


def import_path(before: str | None) -> str:
    """Return a PYTHONPATH with `IMPORT_PATHS` in front of what it was."""
    paths = [str(path) for path in IMPORT_PATHS] + [path for path in (before or "").split(os.pathsep) if path]
    return os.pathsep.join(dict.fromkeys(paths))


DISTRIBUTION = "tsunagi-stream"
"""The name under which pip installs Tsunagi; `tsunagi` is another project's."""


def missing(extra: str) -> str:
    """Return what brings the packages of an extra of the distribution, for messages."""
    return f"run `{SETUP}`" if CHECKOUT is not None else f"run `pip install '{DISTRIBUTION}[{extra}]'`"
