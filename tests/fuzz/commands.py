"""Every command in odd surroundings, as a process: ``python -m tests.fuzz.commands --seconds 600 --seed 1``.

Nothing may end with a traceback, or with an exit code that the commands do not have. There is no broker; a command
that waits for one, as services do, is ended after a moment. Prints a JSON object for each failure and one of the whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fuzz import odd
from tsunagi.installation import import_path

ROOT = Path(__file__).resolve().parents[2]
CODES = frozenset({0, 1, 2, 130, -signal.SIGTERM})
MOMENT_S = 6.0
END_S = 30.0
"""A question to a broker that is away takes 10 s, and a signal is looked at after it."""
# These start or stop what others may have running, or take a minute each.
LEFT_OUT = frozenset({("up",), ("down",), ("demo",), ("chaos",)})


def main() -> int:
    """Run for a while; return 1 if something failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    until = time.monotonic() + asked.seconds
    runs = failures = 0
    while time.monotonic() < until:
        with tempfile.TemporaryDirectory() as place:
            failure = attempt(chance, Path(place))
        runs += 1
        if failure is not None:
            failures += 1
            sys.stdout.write(json.dumps(failure) + "\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps({"runs": runs, "failures": failures, "seed": asked.seed}) + "\n")
    return 1 if failures else 0


def attempt(chance: random.Random, place: Path) -> dict[str, Any] | None:
    """Run one command; return what was wrong, None = nothing."""
    (place / "data.csv").write_text("time,a,b\n" + "".join(f"{row},{row % 7},{row % 5}\n" for row in range(200)))
    (place / "sensors.csv").write_text("sensor,edge\na,e\nb,f\n")
    spots = [spot for spot in odd.places() if spot.path not in LEFT_OUT]
    spot = chance.choice(spots)
    words = list(spot.path) + odd.needed(spot.path, spot.option, {"history": "data.csv", "--out": "out.bin"})
    if chance.random() < 0.6:
        value = chance.choice(odd.VALUES)
        words += ([spot.option] if spot.option else []) + ([] if spot.flag else [value])
    known = dict(os.environ) | {"TSUNAGI_KAFKA__SERVERS": "127.0.0.1:1", "TSUNAGI_SENSORS": "sensors.csv"}
    if chance.random() < 0.6:
        known[chance.choice(list(odd.variables()))] = chance.choice(odd.VALUES)
    if chance.random() < 0.2:
        known["LC_ALL"] = chance.choice(["C", "POSIX", "xx_YY", "en_US.ISO-8859-1"])
    if chance.random() < 0.2:
        known.pop("HOME", None)
    if chance.random() < 0.2:
        content = chance.choice([chance.randbytes(50), "state = '~x/ä'\n".encode(), b"state = 'data.csv'\n"])
        (place / "tsunagi.toml").write_bytes(content)
    files = chance.choice([0, 0, 0, 0, 12, 40])

    def limit() -> None:
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    known["PYTHONPATH"] = import_path(None)
    done = subprocess.Popen(
        [sys.executable, "-m", "tsunagi.cli", *words],
        cwd=place,
        env=known,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=limit,  # noqa: PLW1509 - this process has no other thread
        start_new_session=True,
    )
    try:
        output = done.communicate(timeout=MOMENT_S)[0]
    except subprocess.TimeoutExpired:
        done.terminate()
        try:
            output = done.communicate(timeout=END_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            output = done.communicate()[0] + b"did not end when told to"
    text = output.decode("utf-8", "replace")
    bad = "Traceback" in text or "a fault of Tsunagi" in text or "did not end" in text or done.returncode not in CODES
    if not bad:
        return None
    changed = {name: value for name, value in known.items() if os.environ.get(name) != value}
    return {"words": words, "environment": changed, "files": files, "code": done.returncode, "output": text[-3000:]}


if __name__ == "__main__":
    sys.exit(main())
