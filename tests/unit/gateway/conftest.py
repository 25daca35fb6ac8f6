from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]


@pytest.fixture(autouse=True, scope="session")
def _one_blas_thread() -> Iterator[None]:
    """As the services run: matrices this small only wait for a second thread."""
    with threadpool_limits(1):
        yield
