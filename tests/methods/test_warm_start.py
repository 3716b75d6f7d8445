"""Where fits begin: a subsample that is corrected by all rows leads where all rows lead, with few passes over them."""

import numpy as np
import pytest

from integrand import RBF, Dataset
from integrand.methods.problem import Settings
from integrand.methods.warm_start import (
    MAX_THETA_PASSES,
    CorrectedSubsampleBound,
    maximise_theta,
    maximise_theta_and_inducing,
    maximise_with_all_rows,
)
from integrand.model import Model
from integrand.targets import CollapsedTarget, density, likelihood, penalised

N, n, M, D = 1200, 300, 8, 2
rng = np.random.default_rng(4)
X = rng.standard_normal((N, D))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.standard_normal(N)
MODEL = Model(RBF(), D)
CHOSEN = np.sort(rng.choice(N, n, replace=False))
START = MODEL.start(), X[:M].copy()


@pytest.fixture
def all_rows():
    """All rows, with a counter of its own."""
    return CollapsedTarget(MODEL, Dataset.of(X, Y))


@pytest.fixture
def subsample():
    return CollapsedTarget(MODEL, Dataset.of(X[CHOSEN], Y[CHOSEN]).representing(N))


# --- rows that stand for others


@pytest.mark.slow
def test_a_subsample_that_stands_for_copies_of_itself_has_their_bound():
    few = Dataset.of(X[:n], Y[:n]).representing(N)
    many = Dataset.of(np.tile(X[:n], (N // n, 1)), np.tile(Y[:n], N // n))
    assert few.n_rows == many.n_rows == N
    a, b = (CollapsedTarget(MODEL, data) for data in (few, many))
    for left, right in zip(a.evaluate(*START), b.evaluate(*START), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10 * np.abs(right).max())
    assert a.value(*START) == pytest.approx(b.value(*START), rel=1e-12)


def test_it_still_has_its_own_rows():
    few = Dataset.of(X[:n], Y[:n], 128).representing(N)
    np.testing.assert_array_equal(few.arrays()[0], X[:n])
    np.testing.assert_array_equal(few.arrays()[1], Y[:n])
    assert few.local


def test_a_subsample_of_all_rows_is_all_rows(all_rows):
    same = CollapsedTarget(MODEL, Dataset.of(X, Y).representing(N))
    assert same.value(*START) == all_rows.value(*START)


# --- the correction


@pytest.mark.slow
def test_at_its_point_it_has_the_value_and_gradient_of_all_rows(all_rows, subsample):
    wanted = all_rows.evaluate(*START)
    found = CorrectedSubsampleBound(subsample, START, wanted).evaluate(START[0])
    for left, right in zip(found._replace(dZ=wanted.dZ), wanted, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-10 * np.abs(right).max())
    # Or there would be nothing to correct.
    assert abs(subsample.evaluate(*START).log_likelihood - wanted.log_likelihood) > 1.0


def test_away_from_it_the_gradient_is_that_of_its_value(all_rows, subsample):
    corrected = CorrectedSubsampleBound(subsample, START, all_rows.evaluate(*START))
    phi = START[0] + 0.3
    e, step = corrected.evaluate(phi), 1e-5
    for i, d in enumerate(step * np.eye(len(phi))):
        up, down = (corrected.evaluate(phi + s * d).log_likelihood for s in (1, -1))
        assert e.d_likelihood[i] == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-4)


def test_the_prior_is_not_corrected(all_rows, subsample):
    """It does not come from rows."""
    found = CorrectedSubsampleBound(subsample, START, all_rows.evaluate(*START)).evaluate(START[0] + 0.2)
    wanted = all_rows.evaluate(START[0] + 0.2, START[1])
    assert (found.log_prior, found.log_jacobian) == (wanted.log_prior, wanted.log_jacobian)


# --- ascents


@pytest.mark.parametrize("objective", [likelihood, pytest.param(penalised, marks=pytest.mark.slow)])
def test_theta_and_Z_end_as_high_as_after_a_long_ascent(objective, all_rows, subsample):
    settings = Settings(n_inducing=M)
    full = CollapsedTarget(MODEL, all_rows.data)
    optimum = maximise_theta_and_inducing(full, *START, settings, 1000, objective)[2]
    # As a fit does: first on the subsample alone, then with all rows.
    start = maximise_theta_and_inducing(subsample, *START, settings, 1000, objective)[:2]
    phi, Z, e = maximise_with_all_rows(all_rows, start, objective, 60)
    assert objective(e)[0] > optimum.value - 2.0
    assert e.log_likelihood == pytest.approx(all_rows.value(phi, Z), rel=1e-12)
    assert all_rows.counter.gradients <= 60
    assert all_rows.counter.gradients < full.counter.gradients / 2


@pytest.mark.parametrize("passes", [1, 25])
def test_passes_limit_the_gradients_of_all_rows(passes, all_rows):
    phi, Z, e = maximise_with_all_rows(all_rows, START, likelihood, passes)
    assert all_rows.counter.gradients == passes
    assert e.log_likelihood == all_rows.evaluate(phi, Z).log_likelihood
    assert e.log_likelihood >= all_rows.value(*START)


def test_gradients_that_gain_nothing_are_the_last(all_rows):
    phi, Z, _ = maximise_theta_and_inducing(all_rows, *START, Settings(n_inducing=M), 2000, likelihood)
    best, before = all_rows.value(phi, Z), all_rows.counter.gradients
    _, _, e = maximise_with_all_rows(all_rows, (phi, Z), likelihood, 500)
    assert all_rows.counter.gradients - before <= 12
    assert best - 1e-6 <= e.log_likelihood < best + 1.0


def test_ctrl_c_is_not_taken_for_an_end(all_rows, monkeypatch):
    count = all_rows.counter.gradients

    def pressed(self, phi, Z):
        raise KeyboardInterrupt

    monkeypatch.setattr(CollapsedTarget, "evaluate", pressed)
    with pytest.raises(KeyboardInterrupt):
        maximise_with_all_rows(all_rows, START, likelihood, 5)
    assert all_rows.counter.gradients == count


def test_theta_alone_takes_a_handful_of_passes(all_rows, subsample):
    before = density(all_rows.evaluate(*START))[0]
    phi, e = maximise_theta(all_rows, subsample, START, density)
    assert all_rows.counter.gradients <= MAX_THETA_PASSES + 2
    assert density(e)[0] > before + 1.0
    assert np.abs(e.gradient).max() < 20.0  # of hundreds where it began
    assert e.log_likelihood == all_rows.evaluate(phi, START[1]).log_likelihood


def test_no_passes_change_nothing(all_rows, subsample):
    phi, e = maximise_theta(all_rows, subsample, START, likelihood, max_passes=0)
    np.testing.assert_array_equal(phi, START[0])
    assert e.log_likelihood == pytest.approx(all_rows.value(*START), rel=1e-12)


class Tracked:
    """A target that keeps what the objective was wherever a gradient of all rows was taken."""

    def __init__(self, inner, objective):
        self.inner, self.objective, self.path = inner, objective, []
        self.value = inner.value

    def evaluate(self, phi, Z):
        e = self.inner.evaluate(phi, Z)
        self.path.append(self.objective(e)[0])
        return e


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("chosen", "objective"), [("fair", likelihood), ("five rows", density), ("of something else", likelihood)]
)
def test_it_never_goes_downhill(chosen, objective, all_rows):
    """However little the subsample says of all rows."""
    few = np.arange(n) % 5
    rows = {"fair": (X[:n], Y[:n]), "five rows": (X[few], Y[few]), "of something else": (X[:n], np.cos(5 * X[:n, 1]))}
    subsample = CollapsedTarget(MODEL, Dataset.of(*rows[chosen]).representing(N))
    tracked = Tracked(all_rows, objective)
    _, e = maximise_theta(tracked, subsample, START, objective)
    assert objective(e)[0] == tracked.path[-1]
    assert np.all(np.diff(tracked.path) > 0.0)
