#!/usr/bin/env bash
# Take out of a virtual environment what a running service never reads (pip, tests, headers), and compile the rest: the
# root file system is read-only at run time. Usage: slim.sh VENV
set -euo pipefail
venv=$1
packages=$venv/lib/python3.11/site-packages
"$venv/bin/python" -m pip --disable-pip-version-check --quiet uninstall -y setuptools pip >/dev/null 2>&1 || true
find "$packages" -type d \( -name tests -o -name __pycache__ -o -name include \) -prune -exec rm -rf {} +
find "$packages" \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.c' -o -name '*.h' -o -name '*.a' \) -type f -delete
rm -rf "$packages"/pyspark/examples "$packages"/pyspark/data "$packages"/pyspark/licenses "$packages"/pyarrow/include
"$venv/bin/python" -m compileall -q -j 0 "$packages" || true  # templates of other Python versions do not compile
