"""What the code says of the documents is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("services", "spark", "deploy", "examples") for path in (ROOT / folder).rglob("*.py")]


def test_each_heading_of_the_architecture_that_the_code_cites_is_there() -> None:
    headings = set(re.findall(r"(?m)^## (.+)$", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    cited = {
        (path.name, heading)
        for path in SOURCES
        for heading in re.findall(r"architecture,\s+\"([^\"]+)\"", path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 10
    assert {heading for _, heading in cited} <= headings


def test_each_document_that_the_code_or_a_document_names_is_there() -> None:
    documents = [ROOT / "README.md", *ROOT.glob("*/README.md"), *ROOT.glob("docs/*.md")]
    named = {
        (path.relative_to(ROOT), name)
        for path in [*SOURCES, *documents]
        for name in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert [item for item in sorted(named) if not (ROOT / item[1]).exists()] == []
