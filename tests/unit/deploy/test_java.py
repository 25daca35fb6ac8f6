from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.jars.java import JavaError, find_java, parse_major


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("no such thing", 0),
    ],
)
def test_major_version_is_read(text: str, major: int) -> None:
    assert parse_major(text) == major


def fake_java(tmp_path: Path, script: str) -> Path:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    java.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    java.chmod(0o755)
    return java


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, "echo 'openjdk version \"17.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)


def test_path_is_searched_without_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, "echo 'openjdk version \"25\"' >&2")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent))
    assert find_java() == str(java)


def test_missing_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match=r"Java is missing.*openjdk-17-jre-headless"):
        find_java()


def test_old_and_broken_java_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=r"from JAVA_HOME\) does not run"):
        find_java()
    fake_java(tmp_path, "echo 'openjdk version \"11.0.2\"' >&2")
    with pytest.raises(JavaError, match=r"is Java 11, expected 17 or newer"):
        find_java()
    fake_java(tmp_path, "exit 3")
    with pytest.raises(JavaError, match="does not run"):
        find_java()
