"""Triangles are inverted by halves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg

from services.recovery import forms


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 130, 257])
@pytest.mark.parametrize("most", [forms.HALVED_INVERSE, 100])
def test_an_inverted_triangle(monkeypatch: pytest.MonkeyPatch, n: int, most: int) -> None:
    monkeypatch.setattr(forms, "HALVED_INVERSE", most)
    draw = np.random.default_rng(n)
    root = draw.normal(size=(n, n + 3))
    factor = np.asfortranarray(np.linalg.cholesky(root @ root.T))
    expected = linalg.solve_triangular(factor, np.eye(n), lower=True)
    forms._invert(factor)
    np.testing.assert_allclose(factor, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    assert not np.triu(factor, 1).any()
