"""Runs many generated queries against DuckDB: python -m tests.unit.query.many --count 2000 [--seed S] [--tuples]."""

from __future__ import annotations

import argparse
import json
import time

from tests.unit.query import test_against_duckdb, test_tuples_against_duckdb


def main() -> None:
    """Run them, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--tuples", action="store_true", help="queries over tuples, not over readings")
    options = parser.parse_args()
    complaint = (test_tuples_against_duckdb if options.tuples else test_against_duckdb).complaint
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
