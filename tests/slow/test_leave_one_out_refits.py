"""Leave-one-out of a sparse fit against true refits without the row, on the paper's yacht data."""

import math
import warnings

import numpy as np
import pytest

import integrand
from experiments.catalogue import SOURCES
from experiments.datasets import load
from integrand.errors import DataSourceError

ROWS = 20


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["titsias", "tight"])
def test_twenty_true_refits_agree(bound):
    try:
        data = load("yacht")
    except DataSourceError as error:
        pytest.skip(str(error))
    X, y = (values[: SOURCES["yacht"].paper_rows] for values in (data.X, data.y))

    def fit(rows):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", integrand.ConvergenceWarning)
            return integrand.fit(X[rows], y[rows], n_inducing=100, bound=bound)

    rows = np.random.default_rng(0).choice(len(y), ROWS, replace=False)
    loo = fit(np.arange(len(y))).loo(X, y)
    refitted = [fit(np.arange(len(y)) != i).predict(X[[i]], include_noise=True).log_density(y[[i]])[0] for i in rows]
    difference = loo.elpd_rows[rows] - np.array(refitted)
    assert abs(difference.mean()) < 2.0 * difference.std(ddof=1) / math.sqrt(ROWS) + 0.02
    assert np.corrcoef(loo.elpd_rows[rows], refitted)[0, 1] > 0.8
