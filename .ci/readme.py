"""Run the README's commands as they are written.

A command is a line ``$ command`` in a fenced block marked ``console``. The commands of one block run in one shell, in
the repository, and stop at the first that fails. A block below a comment ``<!-- not run in CI: reason -->`` is left
out, and so is `make test`, which CI has run before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DONE_BEFORE = frozenset({"make test"})
SKIP = "<!-- not run in CI:"
LIMIT_S = 900


def blocks(text: str) -> list[list[str]]:
    """Return the commands of each console block that is to be run."""
    found: list[list[str]] = []
    inside = skipped = False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside and line.strip() == "```console" and not skipped
            if inside:
                found.append([])
            skipped = False
        elif inside and line.startswith("$ "):
            found[-1].append(line[2:].strip())
        elif inside and found[-1] and found[-1][-1].endswith("\\"):
            found[-1][-1] += "\n" + line
        elif line.strip():
            skipped = line.startswith(SKIP)
    commands = [[command for command in block if command not in DONE_BEFORE] for block in found]
    return [block for block in commands if block]


def main() -> int:
    """Run the commands; return the exit code of the first block that fails, else 0."""
    environment = os.environ | {"PATH": f"{Path.cwd() / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    for block in blocks(Path(sys.argv[1]).read_text(encoding="utf-8")):
        sys.stdout.write("".join(f"readme: {command}\n" for command in block))
        sys.stdout.flush()
        script = "\n".join(["set -euo pipefail", *block])
        try:
            code = subprocess.run(["bash", "-c", script], env=environment, timeout=LIMIT_S, check=False).returncode
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"readme: not done within {LIMIT_S} s\n")
            return 1
        if code != 0:
            sys.stderr.write(f"readme: exit code {code}\n")
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
