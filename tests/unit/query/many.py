"""Runs many generated queries against DuckDB: python -m tests.unit.query.many --count 2000 [--seed S]."""

from __future__ import annotations

import argparse
import json
import time

from tests.unit.query.test_against_duckdb import complaint


def main() -> None:
    """Run them, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args()
    began, failed = time.monotonic(), []
    for seed in range(options.seed, options.seed + options.count):
        try:
            text = complaint(seed)
        except Exception as error:  # noqa: BLE001 - a crash is a finding like any other
            text = f"seed {seed}: {type(error).__name__}: {error}"
        if text:
            failed.append(seed)
            print(text, flush=True)  # noqa: T201 - a command
    found = {"queries": options.count, "seed": options.seed, "failed": failed, "seconds": time.monotonic() - began}
    print(json.dumps(found))  # noqa: T201 - a command


if __name__ == "__main__":
    main()
