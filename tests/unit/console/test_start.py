"""A console that was killed is back soon: it loads nothing big that a page does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SERVICES = Path(__file__).parents[3] / "services"


@pytest.mark.slow
def test_it_starts_without_what_only_acts_traces_and_bounds_need() -> None:
    big = ("opentelemetry", "pyarrow", "scipy.optimize", "sqlglot")
    code = f"import sys, tsunagi.console.service; print([name for name in {big} if name in sys.modules])"
    own = os.environ | {"PYTHONPATH": str(SERVICES)}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
