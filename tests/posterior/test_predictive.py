import dataclasses
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from integrand import RBF, Dataset, ExtrapolationWarning, InputError, Jitter, Model, Normal, fit
from integrand.data.scaling import Standardiser
from integrand.kernels import Linear, Periodic
from integrand.posterior.conditional import SparseConditional, joints, marginals, sparse_conditional
from integrand.posterior.extrapolation import beyond, outside_text, reach
from integrand.posterior.predictive import Predictive
from integrand.targets import CollapsedTarget

DRAWS = 6


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(8)
    X = rng.uniform(-2.0, 2.0, (29, 2))
    y = np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 0.2 * rng.standard_normal(29)
    model = Model(RBF(), 2, mean=Normal(0.0, 1.0))
    phis = 0.3 * rng.standard_normal((DRAWS, model.n_theta)) - 0.4
    conditional = sparse_conditional(phis, X[:8] + 0.05, CollapsedTarget(model, Dataset.of(X, y)).inducing_posterior)
    return SimpleNamespace(model=model, conditional=conditional, X=rng.uniform(-3.0, 3.0, (150, 2)), rng=rng)


SCALER = Standardiser([3.0, -1.0], [2.0, 0.1], 100.0, 25.0)
PLAIN = Standardiser.identity(2)


def predictive(case, rows=150, scaler=PLAIN, include_noise=True, **keywords):
    return Predictive(case.model, Jitter(), scaler, case.conditional, case.X[:rows], include_noise, **keywords)


def everything(p, y):
    return {
        "mean": p.mean,
        "variance": p.variance,
        "sd": p.sd,
        "quantile": p.quantile(0.3),
        "quantiles": p.quantile(np.array([0.05, 0.5, 0.9])),
        "lower": p.interval(0.8)[0],
        "cdf": p.cdf(y),
        "log_density": p.log_density(y),
        "crps": p.crps(y),
    }


def assert_close(a, b, rtol=1e-12):
    for name in a:
        assert a[name].shape == b[name].shape, name
        np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=rtol, err_msg=name)


def test_it_is_the_mixture_of_the_draws(case):
    p = predictive(case)
    means, variances, noise = marginals(case.model, Jitter(), case.conditional, case.X)
    np.testing.assert_allclose(p.mean, means.mean(axis=0), rtol=1e-12)
    total = variances.mean(axis=0) + means.var(axis=0) + noise.mean()
    np.testing.assert_allclose(p.variance, total, rtol=1e-12)
    np.testing.assert_allclose(p.sd, np.sqrt(total), rtol=1e-12)
    y = np.linspace(-2, 2, 150)
    normal = stats.norm(means, np.sqrt(variances + noise[:, None]))
    np.testing.assert_allclose(p.log_density(y), np.log(normal.pdf(y).mean(axis=0)), rtol=1e-9)
    np.testing.assert_allclose(p.cdf(y), normal.cdf(y).mean(axis=0), rtol=1e-12)
    assert p.n_draws == DRAWS


def test_noise_is_what_separates_y_from_f(case):
    of_f = predictive(case, include_noise=False)
    noise = marginals(case.model, Jitter(), case.conditional, case.X)[2]
    np.testing.assert_allclose(predictive(case).variance - of_f.variance, noise.mean(), rtol=1e-9)
    np.testing.assert_array_equal(predictive(case).mean, of_f.mean)


@pytest.mark.parametrize("include_noise", [True, False])
def test_quantiles_invert_the_distribution_function(case, include_noise):
    p = predictive(case, scaler=SCALER, include_noise=include_noise)
    levels = np.array([1e-6, 0.025, 0.5, 0.8, 0.999])
    for level, q in zip(levels, p.quantile(levels), strict=True):
        np.testing.assert_allclose(p.cdf(q), level, rtol=0, atol=1e-9)
    lower, upper = p.interval(0.9)
    np.testing.assert_allclose(p.cdf(upper) - p.cdf(lower), 0.9, atol=1e-9)


def test_the_density_integrates_to_one(case):
    p = predictive(case, rows=3, scaler=SCALER)
    reach = np.linspace(-12.0, 12.0, 4001)
    grid = p.mean + reach[:, None] * p.sd
    total = np.trapezoid(np.exp([p.log_density(y) for y in grid]), grid, axis=0)
    np.testing.assert_allclose(total, 1.0, atol=1e-8)


@pytest.mark.slow
def test_blocks_do_not_matter(case):
    y = np.linspace(60.0, 140.0, 150)
    whole, blocked = predictive(case, scaler=SCALER), predictive(case, scaler=SCALER, memory=1)
    assert whole._cached_mixture is not None
    assert blocked._cached_mixture is None
    assert len(list(blocked._row_blocks())) > 1
    assert_close(everything(blocked, y), everything(whole, y))
    np.testing.assert_allclose(blocked.mixture().means, whole.mixture().means, rtol=1e-12)
    np.testing.assert_allclose(blocked.joint_log_density(y), whole.joint_log_density(y), rtol=1e-12)
    a = blocked.sample_joint(np.random.default_rng(1), 9)
    np.testing.assert_allclose(a, whole.sample_joint(np.random.default_rng(1), 9), rtol=1e-12)


@pytest.mark.parametrize("memory", [1, 256 * 2**20])
def test_latent_is_what_predicting_without_noise_gives(case, memory):
    p = predictive(case, scaler=SCALER, memory=memory)
    f = p.latent()
    assert not f.include_noise
    again = dataclasses.replace(p, include_noise=False)
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(getattr(f, name), getattr(again, name))
    assert np.all(f.variance < p.variance)
    assert memory == 1 or f._cached is p._cached


def test_units_of_the_user(case):
    """The standardised answer, taken back by hand."""
    ours, plain = predictive(case, scaler=SCALER), predictive(case)
    y = np.linspace(60.0, 140.0, 150)
    z = (y - 100.0) / 25.0
    a, b = everything(ours, y), everything(plain, z)
    for name in ("mean", "quantile", "quantiles", "lower"):
        b[name] = 25.0 * b[name] + 100.0
    for name in ("sd", "crps"):
        b[name] = 25.0 * b[name]
    b["variance"] = 625.0 * b["variance"]
    b["log_density"] = b["log_density"] - np.log(25.0)
    assert_close(a, b, rtol=1e-10)
    expected = plain.joint_log_density(z) - 150 * np.log(25.0)
    np.testing.assert_allclose(ours.joint_log_density(y), expected, rtol=1e-10)


@pytest.mark.parametrize("include_noise", [True, False])
def test_joint_log_density_against_scipy(case, include_noise):
    p = predictive(case, rows=5, scaler=SCALER, include_noise=include_noise)
    means, covariances, noise = joints(case.model, Jitter(), case.conditional, case.X[:5])
    y = p.mean + 5.0 * case.rng.standard_normal(5)
    found = p.joint_log_density(y)
    assert found.shape == (DRAWS,)
    for j in range(DRAWS):
        covariance = 625.0 * (covariances[j] + include_noise * noise[j] * np.eye(5))
        expected = stats.multivariate_normal.logpdf(y, 100.0 + 25.0 * means[j], covariance, allow_singular=False)
        assert found[j] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("include_noise", [True, False])
def test_moments_of_joint_draws(case, include_noise):
    p = predictive(case, rows=4, scaler=SCALER, include_noise=include_noise)
    means, covariances, noise = joints(case.model, Jitter(), case.conditional, case.X[:4])
    n = 6000
    draws = p.sample_joint(np.random.default_rng(0), n)
    assert draws.shape == (n, 4)
    mean = 100.0 + 25.0 * means.mean(axis=0)
    covariance = covariances.mean(axis=0) + include_noise * noise.mean() * np.eye(4)
    covariance = 625.0 * (covariance + np.cov(means.T, ddof=0))
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean), 4.5 * np.sqrt(np.diag(covariance) / n))
    centred = draws - mean
    for i in range(4):
        for j in range(i + 1):
            product = centred[:, i] * centred[:, j]
            assert abs(product.mean() - covariance[i, j]) < 4.5 * product.std() / np.sqrt(n)
    # The order of the draws does not follow the draws of θ.
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.06


def test_moments_of_marginal_draws(case):
    p = predictive(case, rows=4, scaler=SCALER)
    n = 20_000
    draws = p.sample(np.random.default_rng(0), n)
    assert draws.shape == (n, 4)
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - p.mean), 4.5 * p.sd / np.sqrt(n))
    np.testing.assert_allclose(draws.var(axis=0), p.variance, rtol=0.06)
    np.testing.assert_array_equal(draws, p.sample(np.random.default_rng(0), n))


def test_sixteen_threads_equal_one(case):
    y = np.linspace(60.0, 140.0, 150)
    expected = everything(predictive(case, scaler=SCALER), y)
    shared = predictive(case, scaler=SCALER)

    def work(i):
        own = predictive(case, scaler=SCALER, memory=1 if i % 3 == 0 else 2**28)
        return everything(shared, y), everything(own, y)

    with ThreadPoolExecutor(16) as pool:
        for a, b in pool.map(work, range(16)):
            for name in expected:
                np.testing.assert_array_equal(a[name], expected[name])
            assert_close(b, expected)


class Broken(SparseConditional):
    @staticmethod
    def project(*_):
        raise ZeroDivisionError


def test_nothing_is_computed_before_it_is_asked_for(case):
    broken = replace(predictive(case), conditional=Broken(**vars(case.conditional)))
    assert broken.n_draws == DRAWS
    with pytest.raises(ZeroDivisionError):
        broken.mean  # noqa: B018


@pytest.mark.usefixtures("as_users_see_it")
def test_errors_name_the_cause(case):
    p = predictive(case)
    with pytest.raises(InputError, match="one number per row"):
        p.cdf(np.zeros(3))
    with pytest.raises(InputError, match="one number per row"):
        p.log_density(np.zeros((150, 2)))
    many = replace(p, X=np.zeros((5_001, 2)))
    with pytest.raises(InputError, match="at most 5000 rows"):
        many.sample_joint(np.random.default_rng(0), 1)
    with pytest.raises(InputError, match="between 0 and 1"):
        p.quantile(1.5)
    with pytest.raises(InputError):
        p.interval(1.2)


# ---- rows that lie outside the data

INF = np.inf


@pytest.mark.parametrize(
    ("kernel", "distances"),
    [
        (RBF(lengthscale=2.0, scale=1.0), [2.0, 2.0]),
        (RBF(lengthscale=(2.0, 3.0), scale=1.0), [2.0, 3.0]),
        (RBF(lengthscale=2.0, scale=1.0, active=0), [2.0, INF]),
        (RBF(lengthscale=2.0, scale=1.0, active=0) + RBF(lengthscale=3.0, scale=1.0, active=1), [2.0, 3.0]),
        (RBF(lengthscale=2.0, scale=1.0) + RBF(lengthscale=9.0, scale=1.0), [9.0, 9.0]),
        (RBF(lengthscale=2.0, scale=1.0) + Linear(scale=1.0), [INF, INF]),
        (RBF(lengthscale=2.0, scale=1.0) * Periodic(lengthscale=1.0, period=1.0, scale=1.0), [2.0, 2.0]),
    ],
)
def test_reach(kernel, distances):
    np.testing.assert_array_equal(reach(kernel, 2), distances)


def test_beyond_counts_in_reaches():
    X, ranges = np.array([[0.5, 9.0], [3.0, 0.0], [-1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
    np.testing.assert_allclose(beyond(X, ranges, np.array([2.0, INF])), [[0.0, 0.0], [1.0, 0.0], [0.5, 0.0]])


def test_one_row_in_two_hundred_is_no_warning():
    far = np.zeros((200, 2), bool)
    far[0, 1] = True
    assert outside_text(far, ("a", "b")) == ""
    assert "b" in outside_text(far[:20], ("a", "b"))


def test_predictions_warn_once():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (40, 2))
    posterior = fit(X, np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(40), n_inducing=10, method="ml2", steps=50)
    near, far = X[:5] * 1.01, X[:5] + 1e4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(near, include_noise=True)
    assert np.all(posterior.outside(far) > 1.0)
    with pytest.warns(ExtrapolationWarning, match=r"5 of 5 rows \(100%\)"):
        posterior.predict(far, include_noise=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(far, include_noise=True)
