"""Finds out how Tsunagi is installed: as a checkout of its sources (or an image that has them), or from a wheel."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
"""The directory of this package."""

CHECKOUT = _PACKAGE.parents[1] if _PACKAGE.parent.name == "services" else None
"""The top directory of the sources; None if the package is installed from a wheel."""

CACHE = (
    CHECKOUT / ".cache"
    if CHECKOUT is not None
    else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsunagi"
)
"""The directory in which the jars of the broker and of Spark are kept. A checkout has its own."""

SETUP = "tsunagi setup" if CHECKOUT is None else "make setup"
"""The command that fetches the jars. Messages name it."""

IMPORT_PATHS = (_PACKAGE.parent,) if CHECKOUT is None else (CHECKOUT / "services", CHECKOUT / "spark", CHECKOUT)
"""The directories that each started process needs on its PYTHONPATH. The last one of a checkout is for its examples."""


def import_path(before: str | None) -> str:
    """Return a PYTHONPATH that has `IMPORT_PATHS` in front of the entries of `before`."""
    paths = [str(path) for path in IMPORT_PATHS] + [path for path in (before or "").split(os.pathsep) if path]
    return os.pathsep.join(dict.fromkeys(paths))


DISTRIBUTION = "tsunagi-stream"
"""The name under which pip installs Tsunagi. The name `tsunagi` belongs to another project."""


def missing(extra: str) -> str:
    """Return a sentence that says how to install the packages of an extra of the distribution, for messages."""
    return f"run `{SETUP}`" if CHECKOUT is not None else f"run `pip install '{DISTRIBUTION}[{extra}]'`"
