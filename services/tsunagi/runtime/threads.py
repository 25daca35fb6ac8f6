"""One BLAS thread a process, set before numpy is loaded.

Primary and secondary must compute the same bits, and the threads of several processes would wait for each other on busy
cores: a fit of 3 s was seen to take more than 100 s of CPU that way. Whoever wants more sets the variables.
"""

from __future__ import annotations

from collections.abc import MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread(environment: MutableMapping[str, str]) -> None:
    """Set what is not set yet."""
    for name in VARIABLES:
        environment.setdefault(name, "1")
