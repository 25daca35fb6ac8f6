from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tsunagi.runtime.threads import EVERYWHERE, KERNELS, VARIABLES, fix_arithmetic


def test_what_is_set_stays() -> None:
    environment = {"OMP_NUM_THREADS": "4"}
    fix_arithmetic(environment)
    kernels = {KERNELS: EVERYWHERE} if platform.machine() == "x86_64" else {}
    assert environment == {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | kernels
    chosen = {KERNELS: "Zen"}
    fix_arithmetic(chosen)
    assert chosen[KERNELS] == "Zen"


@pytest.mark.slow
def test_the_command_sets_them_before_numpy_is_there() -> None:
    script = (
        "import os, sys; import tsunagi.cli as c; assert 'numpy' not in sys.modules\n"
        "sys.argv = ['tsunagi', '--help']\n"
        "try: c.main()\n"
        "except SystemExit: sys.stderr.write(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == "1"
