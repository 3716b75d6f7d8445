import warnings

import numpy as np
import pytest

from integrand.data.sources import ArrayRows
from integrand.errors import ConvergenceWarning
from integrand.infer.verdict import Finding
from integrand.methods.fit import fit

HOSTILE = "<script>alert('x')</script> & $\\frac{1}$ \"quoted\""
COLUMNS = ("a column whose name is far too long to stand below a small panel, in mg per litre", HOSTILE)


def data(n_columns):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, n_columns)) * 10.0 + 50.0
    y = 100.0 + 20.0 * np.sin(0.15 * X[:, 0]) + 2.0 * rng.standard_normal(40)
    return X, y


@pytest.fixture(scope="session")
def rows():
    return data(2)


@pytest.fixture(scope="session")
def sampled(rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so few draws are enough to draw
        return fit(ArrayRows(*rows, COLUMNS), n_inducing=8, max_draws=40, chains=2, target_ess=1.0, max_rounds=1)


@pytest.fixture(scope="session")
def optimised(rows):
    return fit(ArrayRows(*rows, COLUMNS), n_inducing=8, method="ml2", steps=40)


@pytest.fixture(scope="session")
def one_column_rows():
    return data(1)


@pytest.fixture(scope="session")
def one_column(one_column_rows):
    return fit(ArrayRows(*one_column_rows, ["time"]), n_inducing=8, method="map", steps=20)


@pytest.fixture
def serious():
    return Finding("r-hat", True, "R-hat is above 1.01 for <noise>.", "Draw more & longer.")
