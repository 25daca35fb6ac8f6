"""What the code and the documents say of the documents is there: pages, headings, links."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("services", "spark", "deploy", "examples", "tests")
SOURCES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")] + [
    path for folder in (*FOLDERS, "data") for path in (ROOT / folder).rglob("*.md")
]
OTHERS = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "tsunagi.toml.example", ROOT / ".env.example"]
OTHERS += [path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".yml", ".toml", ".sh"}]
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """Return the text of a page without fenced blocks; a code span is the word "code"."""
    return re.sub(r"`[^`\n]*`", "code", re.sub(r"(?ms)^```.*?^```$", "", text_of(path)))


def headings(path: Path) -> list[str]:
    return re.findall(r"(?m)^#{1,6} (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text_of(path)))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in headings(path):
        text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def broken(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    wrong = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        to = (page.parent / name).resolve() if name else page
        if not to.exists() or (anchor and anchor not in anchors(to)):
            wrong.append(target)
    return wrong


def test_each_heading_of_the_architecture_that_the_code_cites_is_there() -> None:
    cited = {
        (path.name, heading)
        for path in SOURCES
        for heading in re.findall(r"architecture,\s+\"([^\"]+)\"", text_of(path))
    }
    assert len(cited) > 10
    assert {heading for _, heading in cited} <= set(headings(DOCS / "architecture.md"))


def test_each_heading_of_a_page_that_is_cited_is_there() -> None:
    cited = {
        (name, " ".join(heading.split()))
        for path in [*SOURCES, *PAGES, *OTHERS]
        for name, heading in re.findall(r"\b(docs/[\w/-]+\.md)(?:\)|`)?,\s+\"([^\"]+)\"", text_of(path))
    }
    assert cited
    assert [item for item in sorted(cited) if item[1] not in headings(ROOT / item[0])] == []


def test_each_document_that_the_code_or_a_document_names_is_there() -> None:
    named = {
        (path.relative_to(ROOT), name)
        for path in [*SOURCES, *PAGES, *OTHERS]
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", text_of(path))
    }
    assert [item for item in sorted(named) if not (ROOT / item[1]).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_each_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text(
        "# A heading, `code` and [a link](x.md)\n\n## Twice\n\n## Twice\n", encoding="utf-8"
    )
    page = tmp_path / "page.md"
    good = ["there.md", "there.md#a-heading-code-and-a-link", "there.md#twice-1", "#here", "https://example.org/x"]
    bad = ["missing.md", "there.md#other", "#nowhere", "there.md#twice-2"]
    page.write_text("# Here\n\n" + "\n".join(f"[text]({target})" for target in good + bad), encoding="utf-8")
    assert broken(page) == bad


def test_each_page_is_in_the_index() -> None:
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in LINK.findall(prose(DOCS / "README.md"))}
    linked |= {
        (DOCS / "measured" / target.partition("#")[0]).resolve()
        for target in LINK.findall(prose(DOCS / "measured" / "README.md"))
    }
    assert [path.name for path in sorted(DOCS.rglob("*.md")) if path not in linked and path != DOCS / "README.md"] == []
