import pytest

from tests.unit.standby.shell import Cluster


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()
