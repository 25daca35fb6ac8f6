#!/usr/bin/env bash
# Set everything up below this directory: .venv (from requirements.lock), Java if we may, the jars. What is up to date is
# left alone. Called by `make setup`; with --quiet only what is done is said.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}

if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "setup: Python 3.11 is missing (tried: $python); on Debian 12: apt-get install python3.11 python3.11-venv;" \
        "elsewhere install it and run: make setup PYTHON=/path/to/python3.11" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "setup: this Python has no venv; on Debian or Ubuntu: apt-get install python3.11-venv" >&2
    exit 1
fi

# The stamp says what is installed; the directory is part of it, since a virtual environment does not survive a move.
wanted=$("$python" - <<'HASH'
import hashlib, pathlib
files = ("requirements.lock", "pyproject.toml")
digest = hashlib.sha256(b"".join(pathlib.Path(name).read_bytes() for name in files)).hexdigest()
print(digest, pathlib.Path.cwd())
HASH
)
stamp=.venv/installed
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "setup: installing the locked dependencies into .venv"
    rm -f "$stamp" .cache/spark.jsa
    case "$(.venv/bin/python -c 'import sys; print(sys.prefix)' 2>/dev/null)" in
        "$PWD/.venv") ;;
        *) "$python" -m venv --clear .venv ;;
    esac
    pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet --no-input install)
    "${pip[@]}" --require-hashes -r requirements.lock
    "${pip[@]}" --no-deps --no-build-isolation --no-index -e .
    echo "$wanted" > "$stamp"
fi

if ! java=$(.venv/bin/python -m deploy.jars.java 2>&1); then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing Java 17"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update
        apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless >/dev/null
        java=$(.venv/bin/python -m deploy.jars.java)
    else
        echo "setup: $java" >&2
        exit 1
    fi
fi

.venv/bin/python -m deploy.jars.fetch
# Optional: halves what the start of a Spark driver costs.
if [ ! -f .cache/spark.jsa ]; then
    echo "setup: archiving the classes that Spark loads (.cache/spark.jsa)"
    .venv/bin/python -m spark.archive >.cache/spark-archive.log 2>&1 ||
        echo "setup: no archive, Spark will start slower (.cache/spark-archive.log says why)" >&2
fi
if [ "${1:-}" != --quiet ]; then
    echo "setup: done ($(.venv/bin/python --version), Java at $java, jars in .cache/jars)"
fi
