#!/usr/bin/env bash
# Set everything up below this directory: .venv (from requirements.lock) and the jars. What is up to date is left alone.
# First it looks for all that the machine must have; what is missing is installed (as root, with apt-get) or named in one
# list. Called by `make setup`.
#   --quiet                 say only what is done
#   --for test|containers   what `make test` or `make test-containers` needs as well; may be given twice
#   --machine               stop when the machine has what it must have
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
quiet= machine= containers= tests=
declare -A packages=()  # command -> package of Debian and Ubuntu
while [ $# -gt 0 ]; do
    case $1 in
        --quiet) quiet=yes ;;
        --machine) machine=yes ;;
        --for)
            case ${2:-} in
                test)
                    tests=yes
                    packages+=([mosquitto]=mosquitto [prometheus]=prometheus [promtool]=prometheus [openssl]=openssl)
                    packages+=([prometheus-alertmanager]=prometheus-alertmanager)
                    packages+=([pg_ctlcluster]=postgresql [psql]=postgresql-client [influxd]=influxdb)
                    packages+=([chromium]=chromium [chromedriver]=chromium-driver [npm]=npm)
                    ;;
                containers)
                    containers=yes
                    packages+=([dockerd]=docker.io [docker]=docker.io [docker-compose]=docker-compose [iptables]=iptables)
                    packages+=([debootstrap]=debootstrap)
                    ;;
                *) echo "setup: --for: found '${2:-}', expected test or containers" >&2; exit 2 ;;
            esac
            shift
            ;;
        *) echo "setup: found '$1', expected --quiet, --for or --machine" >&2; exit 2 ;;
    esac
    shift
done

# Daemons are in directories that are not on everybody's PATH.
PATH=$PATH:/usr/sbin:/sbin

# Fill `missing` (a line each, for people) and `wanted` (packages that would bring it).
look() {
    missing=() wanted=()
    local java=
    if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        missing+=("Python 3.11 (tried: $python; another one: make PYTHON=/path/to/python3.11 ...)")
        wanted+=(python3.11 python3.11-venv)
        packages[java]=openjdk-17-jre-headless  # how new it is, Python will say
    else
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            missing+=("the modules ensurepip and venv of $python")
            wanted+=(python3.11-venv)
        fi
        unset 'packages[java]'
        if ! java=$(PYTHONPATH=services "$python" -m tsunagi.jars.java 2>&1); then
            missing+=("java: ${java##*$'\n'}")
            wanted+=(openjdk-17-jre-headless)
        fi
    fi
    local command
    for command in $(printf '%s\n' "${!packages[@]}" | sort); do
        if ! command -v "$command" >/dev/null; then
            missing+=("$command")
            wanted+=("${packages[$command]}")
        fi
    done
}

look
if [ ${#wanted[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    mapfile -t wanted < <(printf '%s\n' "${wanted[@]}" | sort -u)
    echo "setup: installing ${wanted[*]}"
    export DEBIAN_FRONTEND=noninteractive
    if apt-get -qq update && apt-get -qq install -y --no-install-recommends "${wanted[@]}" >/dev/null; then
        hash -r
    else
        echo "setup: apt-get could not install them; what it said is above" >&2
    fi
    look
fi
if [ -n "$containers" ] && [ -z "$machine" ]; then
    [ "$(id -u)" = 0 ] || missing+=("root: containers are cut off from each other by the kernel's packet filter")
    if command -v docker >/dev/null && ! docker info >/dev/null 2>&1; then
        missing+=("a Docker engine that answers: start dockerd; \`docker info\` says why it does not")
    fi
fi
if [ ${#missing[@]} -gt 0 ]; then
    {
        echo "setup: this machine lacks"
        printf '  %s\n' "${missing[@]}"
        if [ ${#wanted[@]} -gt 0 ]; then
            echo "on Debian 12, as root: apt-get install $(printf '%s\n' "${wanted[@]}" | sort -u | paste -sd ' ')"
        fi
    } >&2
    exit 1
fi
if [ -n "$machine" ]; then exit 0; fi

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
    rm -f "$stamp" .cache/spark.jsa .cache/kafka.jsa
    case "$(.venv/bin/python -c 'import sys; print(sys.prefix)' 2>/dev/null)" in
        "$PWD/.venv") ;;
        *) "$python" -m venv --clear .venv ;;
    esac
    pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet --no-input install)
    "${pip[@]}" --require-hashes -r requirements.lock
    "${pip[@]}" --no-deps --no-build-isolation --no-index -e .
    echo "$wanted" > "$stamp"
fi

.venv/bin/python -m tsunagi.jars.fetch
if [ -n "$tests" ] && ! cmp -s deploy/console/package-lock.json .cache/npm/installed; then
    echo "setup: fetching what tests of the console need from npm"
    mkdir -p .cache/npm
    cp deploy/console/package.json deploy/console/package-lock.json .cache/npm
    npm --prefix .cache/npm ci --ignore-scripts --no-audit --no-fund --silent
    cp deploy/console/package-lock.json .cache/npm/installed
fi
# Optional: halves what the start of a Spark driver, or of the broker, costs.
archive() {  # name, module
    [ -f ".cache/$1.jsa" ] && return
    echo "setup: archiving the classes that $1 loads (.cache/$1.jsa)"
    .venv/bin/python -m "$2" >".cache/$1-archive.log" 2>&1 ||
        echo "setup: no archive, $1 will start slower (.cache/$1-archive.log says why)" >&2
}
archive spark tsunagi_spark.archive
archive kafka tsunagi.broker.archive
if [ -z "$quiet" ]; then
    echo "setup: done ($(.venv/bin/python --version), Java at $(.venv/bin/python -m tsunagi.jars.java), jars in .cache/jars)"
fi
