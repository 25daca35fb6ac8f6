"""How long a fit of many sensors takes, and in how much memory: `tsunagi fit` on a file, as a user runs it.

    python -m tests.bench.fit_many --sensors 5000 --rows 10000 --out out/fit-many.json

A Parquet history is written (deleted afterwards), and `tsunagi fit` fits it. One JSON object comes out:

    wall_s, cpu_s   of the command, from its start to its end
    peak_mib        greatest resident memory of all its processes together
    file_mib        size of the model file; rank, nrmse: what it says about itself
    load_s          time to read the file and select the sensors of one of `--slots` slots
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from tests.bench import outcome
from tests.bench.fit_pass import EDGES, write_history
from tsunagi.recovery.model import Model


def peak_of(process: subprocess.Popen[bytes], found: dict[str, float]) -> None:
    """Follow the memory and the CPU time of a process and its children until it ends."""
    top = psutil.Process(process.pid)
    spent: dict[int, float] = {}
    while process.poll() is None:
        used = 0.0
        for one in [top, *top.children(recursive=True)]:
            try:
                used += one.memory_info().rss / 2**20
                times = one.cpu_times()
                spent[one.pid] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
        found["peak_mib"] = max(found.get("peak_mib", 0.0), used)
        found["cpu_s"] = sum(spent.values())
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sensors", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--missing", type=float, default=0.02, help="share of the readings lost in outages of edges")
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("out/fit-many.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        history, table, model = (Path(directory) / name for name in ("history.parquet", "sensors.csv", "model.bin"))
        write_history(history, given.sensors, given.rows, given.missing)
        lines = [f"s{place},e{place % EDGES}" for place in range(given.sensors)]
        table.write_text("\n".join(["sensor,edge", *lines]) + "\n", encoding="utf-8")
        config = Path(directory) / "tsunagi.toml"
        config.write_text(f'sensors = "{table}"\n', encoding="utf-8")
        command = ["-m", "tsunagi.cli", "--config", str(config), "fit", str(history), "--out", str(model)]
        began = time.monotonic()
        process = subprocess.Popen([sys.executable, *command])
        found: dict[str, float] = {}
        follower = threading.Thread(target=peak_of, args=(process, found))
        follower.start()
        code = process.wait()
        wall_s = time.monotonic() - began
        follower.join()
        if code:
            return code
        began = time.monotonic()
        fitted = Model.load(model)
        fitted.select(fitted.names[: given.sensors // given.slots])
        load_s = time.monotonic() - began
        file_mib = model.stat().st_size / 2**20
    outcome.write(
        {
            "bench": "fit_many",
            "sensors": given.sensors,
            "rows": given.rows,
            "missing": given.missing,
            "load": os.getloadavg()[0],
            "wall_s": round(wall_s, 1),
            "cpu_s": round(found["cpu_s"], 1),
            "peak_mib": round(found["peak_mib"]),
            "file_mib": round(file_mib, 1),
            "load_s": round(load_s, 2),
            "rank": fitted.about.get("rank"),
            "nrmse": fitted.about.get("nrmse"),
        },
        given.out,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
