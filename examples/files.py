"""What every example's generator writes: data, the sensors table, and a configuration that runs the example."""

from __future__ import annotations

import argparse
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tsunagi import Pipeline

EDGES = 2
QUERIES = Path(__file__).with_name("queries")

CONFIG = """\
state = "{out}/run"
sensors = "{out}/sensors.csv"
[source]
path = "{out}/data.csv"
repeat = true
[steps]
interval_s = {interval_s}
[slots]
count = {slots}
[query]
mode = "tuples"
files = ["{out}/{queries}"]
[recovery]
store = "{out}/models"
[spark]
checkpoint = "{out}/checkpoint"
[scaler]
workers = {workers}
"""


def write(
    out: Path, queries: str, names: Sequence[str], values: npt.NDArray[np.float64], *, interval_s: float = 0.1
) -> None:
    """Write readings, and a configuration that runs a file of `examples/queries` on them.

    Args:
        queries: the file's name.
        names: of the sensors.
        values: float64[rows, sensors]; a row every `interval_s`.
    """
    lines = [",".join(names), *(",".join(repr(float(value)) for value in row) for row in values)]
    _write(out, queries, names, lines, interval_s)


def write_tuples(
    out: Path,
    queries: str,
    names: Sequence[str],
    columns: Sequence[str],
    tuples: Iterable[Sequence[object]],
    *,
    interval_s: float,
) -> None:
    """Write tuples of several columns, and a configuration that runs a file of `examples/queries` on them.

    Args:
        names: the keys, which are the sensors.
        columns: the names of the tuples' values; the first one is the key.
        tuples: one every `interval_s`.
    """
    lines = [",".join(columns), *(",".join(map(str, item)) for item in tuples)]
    _write(out, queries, names, lines, interval_s)


def _write(
    out: Path, queries: str, names: Sequence[str], lines: Sequence[str], interval_s: float, slots: int = 4
) -> None:
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [f"{name},edge-{number % EDGES + 1},group-1," for number, name in enumerate(names)]
    (out / "sensors.csv").write_text("\n".join(["sensor,edge,group,threshold", *rows]) + "\n", encoding="utf-8")
    shutil.copy(QUERIES / queries, out / queries)
    text = CONFIG.format(out=out, interval_s=interval_s, slots=slots, queries=queries, workers=slots + 2)
    (out / "tsunagi.toml").write_text(text, encoding="utf-8")


def generate(about: str, make: Callable[[Path, int, np.random.Generator], None], query: str) -> None:
    """Run a generator's command line: `make(out, rows, chance)`.

    Args:
        query: the query whose rows `--run` prints.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, required=True, help="directory to write into")
    parser.add_argument("--rows", type=int, default=3000, help="rows of the CSV [3000]")
    parser.add_argument("--run", action="store_true", help="run it in this process too, and print its results")
    parser.add_argument("--seed", type=int, default=1, help="of the data [1]")
    options = parser.parse_args()
    make(options.out, options.rows, np.random.default_rng(options.seed))
    if options.run:
        settings = tomllib.loads((options.out / "tsunagi.toml").read_text(encoding="utf-8"))
        source = settings.pop("source") | {"repeat": False}
        for row in Pipeline(source, **settings).run(memory=True).query(query):
            sys.stdout.write(f"{row.time.isoformat()} {dict(row)}\n")
