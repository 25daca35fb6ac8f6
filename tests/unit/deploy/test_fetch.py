from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.jars import fetch as fetch_module
from tsunagi.jars.fetch import FetchError, expected, fetch, fetched


def test_lists_name_the_broker_and_the_connector() -> None:
    kafka, spark = expected("kafka"), expected("spark")
    assert len(kafka) == len(set(kafka)) == 46
    assert "kafka_2.13-4.3.0.jar" in kafka
    assert len(spark) == 4
    assert "spark-sql-kafka-0-10_2.13-4.2.0.jar" in spark


def test_pyspark_s_wheel_has_ivy() -> None:
    assert fetch_module._ivy().name.startswith("ivy-")


class Ivy:
    """Stands for `java -jar ivy.jar`: writes the given files where the retrieve pattern says."""

    def __init__(self, directory: Path, names: list[str], code: int = 0) -> None:
        names_file = directory / "names"
        names_file.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        self.path = directory / "java"
        script = f"""#!/bin/sh
            echo called >> '{directory}/calls'
            for last; do :; done
            while read -r name; do echo jar > "${{last%/*}}/$name"; done < '{directory}/names'
            echo 'module not found'
            exit {code}
        """
        self.path.write_text(script, encoding="utf-8")
        self.path.chmod(0o755)
        self._calls = directory / "calls"

    @property
    def calls(self) -> int:
        return len(self._calls.read_text(encoding="utf-8").splitlines()) if self._calls.exists() else 0


def use(monkeypatch: pytest.MonkeyPatch, ivy: Ivy) -> None:
    monkeypatch.setattr(fetch_module, "find_java", lambda: str(ivy.path))


def test_second_run_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ivy = Ivy(tmp_path, expected("spark"))
    use(monkeypatch, ivy)
    assert not fetched("spark", tmp_path)
    directory = fetch("spark", tmp_path)
    assert sorted(path.name for path in directory.glob("*.jar")) == expected("spark")
    assert fetched("spark", tmp_path)
    assert fetch("spark", tmp_path) == directory
    assert ivy.calls == 1


def test_jar_taken_away_or_cut_short_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ivy = Ivy(tmp_path, expected("spark"))
    use(monkeypatch, ivy)
    jar = fetch("spark", tmp_path) / expected("spark")[0]
    jar.write_bytes(b"")
    assert not fetched("spark", tmp_path)
    fetch("spark", tmp_path)
    jar.unlink()
    assert not fetched("spark", tmp_path)
    fetch("spark", tmp_path)
    assert ivy.calls == 3
    assert fetched("spark", tmp_path)


def test_other_jars_than_expected_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected("spark")
    use(monkeypatch, Ivy(tmp_path, [*wanted[1:], "stranger-1.jar"]))
    with pytest.raises(FetchError, match=rf"found 4, expected 4; missing: {wanted[0]}; unexpected: stranger-1.jar"):
        fetch("spark", tmp_path)
    assert not fetched("spark", tmp_path)


def test_failure_of_ivy_shows_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Ivy(tmp_path, [], code=1))
    with pytest.raises(FetchError, match=r"(?s)jars of kafka: Ivy failed \(exit code 1\).*module not found"):
        fetch("kafka", tmp_path)
