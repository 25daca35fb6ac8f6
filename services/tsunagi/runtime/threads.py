"""Restricts each process to one BLAS thread. This must happen before numpy is loaded.

Primary and secondary must compute the same bits. The threads of several processes would also wait for each other on
busy cores: a fit of 3 s took more than 100 s of processor time that way. A user who wants more threads sets the
variables.
"""

from __future__ import annotations

from collections.abc import MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""The environment variables from which BLAS libraries take the number of their threads."""


def one_thread(environment: MutableMapping[str, str]) -> None:
    """Set each of `VARIABLES` to 1 that is not set yet."""
    for name in VARIABLES:
        environment.setdefault(name, "1")
