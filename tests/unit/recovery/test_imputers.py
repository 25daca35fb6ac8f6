import sys

import numpy as np
import pytest

from tests.bench import imputers
from tests.bench.recovery_data import read
from tsunagi.recovery.errors import ModelError


def test_iterative_svd_completes_what_has_its_rank():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 8))
    values = truth.copy()
    values[50:60, 2] = np.nan
    values[120:130, 5:7] = np.nan
    np.testing.assert_allclose(imputers.iterative_svd(values, 2), truth, atol=0.1)  # values reach beyond 5
    filled = imputers.impute("IterativeSVD", 5 + 3 * values)
    gaps = np.isnan(values)
    assert np.sqrt(np.mean((filled - 5 - 3 * truth)[gaps] ** 2)) < 0.5 * np.std(3 * truth)
    np.testing.assert_array_equal(filled[~gaps], 5 + 3 * values[~gaps])


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "imputegap", None)
    with pytest.raises(ModelError, match=r"--offline: CDRec: .*expected ImputeGAP and libopenblas0"):
        imputers.impute("CDRec", np.eye(4))


@pytest.mark.parametrize("text", ["a b\n1 2\n3 4\n", "a,b\n1,2\n3,4\n", "1 2\n3 4\n"])
def test_series_with_and_without_names(text, tmp_path):
    file = tmp_path / "series.txt"
    file.write_text(text)
    assert read(file, "lines").tolist() == [[1, 2], [3, 4]]
