"""The package as users import it: all names, quickly, above everything else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tsunagi

SERVICES = Path(tsunagi.__file__).parent
FACE = ("kafka_run", "memory", "operator_names", "pipeline", "pipeline_files", "results", "testing")


def test_every_name_is_there() -> None:
    for name in tsunagi.__all__:
        assert getattr(tsunagi, name) is not None
    assert set(tsunagi.__all__) <= set(dir(tsunagi))
    with pytest.raises(AttributeError, match="'tsunagi' has no attribute 'nothing'"):
        tsunagi.nothing  # noqa: B018 - asked for


@pytest.mark.parametrize("module", ["tsunagi", "tsunagi.cli"])
def test_nothing_heavy_is_imported_with_it(module: str) -> None:
    heavy = ("numpy", "pydantic", "confluent_kafka", "google")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_can_be_read_without_running_anything() -> None:
    tree = ast.parse((SERVICES / "__init__.py").read_text(encoding="utf-8"))
    assigned = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert ast.literal_eval(assigned["__version__"]) == tsunagi.__version__


def test_nothing_below_imports_from_the_face() -> None:
    modules = "|".join(FACE)
    names = "|".join(name for name in (*tsunagi.__all__, *FACE) if name != "__version__")
    upward = re.compile(
        rf"^\s*(?:from tsunagi\.(?:{modules})\b|import tsunagi\.(?:{modules})\b|from tsunagi import .*\b(?:{names})\b)",
        re.MULTILINE,
    )
    below = [path for path in SERVICES.rglob("*.py") if path.parent != SERVICES or path.stem not in (*FACE, "__init__")]
    below += (SERVICES.parents[1] / "spark").rglob("*.py")
    assert [path.name for path in below if upward.search(path.read_text(encoding="utf-8"))] == []
