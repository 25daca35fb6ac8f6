"""What a worker is told by its type."""

from __future__ import annotations

import pytest

from tsunagi.runtime.settings import ConfigError, Scaler, Settings, Size
from tsunagi.worker.service import limit_of


@pytest.mark.parametrize(("kind", "limit"), [("", 800.0), ("local", 800.0), ("small", 400.0), ("large", None)])
def test_a_worker_keeps_to_its_type_s_limit(kind: str, limit: float | None) -> None:
    sizes = {"local": Size(limit=800.0), "small": Size(limit=400.0), "large": Size(rate=900.0)}
    assert limit_of(Settings(scaler=Scaler(sizes=sizes)), kind) == limit


def test_without_types_a_worker_is_local_and_has_no_limit() -> None:
    assert limit_of(Settings(), "") is None
    assert limit_of(Settings(), "local") is None
    with pytest.raises(ConfigError, match="found 'small', expected one of none"):
        limit_of(Settings(), "small")
