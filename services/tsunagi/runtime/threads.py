"""Makes all processes compute the same bits: one BLAS thread each, and the same kernels on every x86-64 processor.

This must happen before numpy is loaded. A slot's outputs are compared by their bytes when another node writes them
again. OpenBLAS otherwise chooses its kernels by the processor, and those of different processors round sums in
different orders: an owner with AVX-512 and a secondary without it would differ in the last bit of an estimate. The
threads of several processes would also wait for each other on busy cores: a fit of 3 s took more than 100 s of
processor time that way. A user who wants something else sets the variables.
"""

from __future__ import annotations

import platform
from collections.abc import MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""The environment variables from which BLAS libraries take the number of their threads."""
KERNELS = "OPENBLAS_CORETYPE"
"""The environment variable that names OpenBLAS's kernels."""
EVERYWHERE = "Haswell"
"""The kernels that every x86-64 processor of the last ten years can run: those with AVX2 and FMA."""


def fix_arithmetic(environment: MutableMapping[str, str]) -> None:
    """Set each of `VARIABLES` to 1, and `KERNELS` on x86-64, unless they are set."""
    for name in VARIABLES:
        environment.setdefault(name, "1")
    if platform.machine() in ("x86_64", "AMD64"):
        environment.setdefault(KERNELS, EVERYWHERE)
