from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import ConstantKernel

from integrand import RBF, Dataset, Jitter, Model
from integrand.posterior.conditional import exact_conditional, joints, marginals, sparse_conditional
from integrand.targets import CollapsedTarget

TIGHT = Jitter(0.0, 1e-12)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(4)
    X = rng.uniform(-2.0, 2.0, (30, 2))
    y = np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 0.2 * rng.standard_normal(30)
    model = Model(RBF(), 2)
    theta = [
        {"lengthscale": (0.7, 1.1), "scale": 1.3, "noise": 0.25},
        {"lengthscale": (1.6, 0.8), "scale": 0.7, "noise": 0.5},
    ]
    phis = np.array([model.unconstrained(t) for t in theta])
    return SimpleNamespace(
        X=X, y=y, data=Dataset.of(X, y), model=model, theta=theta, phis=phis, X_new=rng.uniform(-3.0, 3.0, (17, 2))
    )


def of_kind(kind, case, jitter=TIGHT, Z=None):
    if kind == "exact":
        return exact_conditional(case.model, case.phis, case.data)
    return sparse_conditional(
        case.phis, case.X if Z is None else Z, CollapsedTarget(case.model, case.data, jitter).inducing_posterior
    )


@pytest.mark.parametrize("kind", ["sparse", "exact"])
def test_every_row_inducing_equals_scikit_learn(kind, case):
    conditional = of_kind(kind, case)
    means, variances, noise = marginals(case.model, TIGHT, conditional, case.X_new)
    _, covariances, _ = joints(case.model, TIGHT, conditional, case.X_new)
    assert means.shape == variances.shape == (2, 17)
    for j, theta in enumerate(case.theta):
        kernel = ConstantKernel(theta["scale"] ** 2) * SklearnRBF(theta["lengthscale"])
        theirs = GaussianProcessRegressor(kernel, alpha=theta["noise"] ** 2, optimizer=None).fit(case.X, case.y)
        mean, covariance = theirs.predict(case.X_new, return_cov=True)
        np.testing.assert_allclose(means[j], mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(variances[j], np.diag(covariance), rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(covariances[j], covariance, rtol=1e-8, atol=1e-8)
        assert noise[j] == pytest.approx(theta["noise"] ** 2, rel=1e-12)


def test_four_libraries_agree(four_way):
    model = Model(RBF(lengthscale=four_way.lengthscale, scale=float(four_way.scale)), 3, noise=float(four_way.noise))
    jitter = Jitter(0.0, four_way.jitter)
    target = CollapsedTarget(model, Dataset.of(four_way.X, four_way.y), jitter)
    conditional = sparse_conditional(np.zeros((1, 0)), four_way.Z, target.inducing_posterior)
    means, variances, noise = marginals(model, jitter, conditional, four_way.X_new)
    np.testing.assert_allclose(means[0], four_way.mean, rtol=1e-10)
    np.testing.assert_allclose(variances[0], four_way.variance, rtol=1e-10)
    assert noise[0] == pytest.approx(0.09)


@pytest.mark.parametrize("kind", ["sparse", "exact"])
@pytest.mark.parametrize("noise", [1e-6, 1.0])
def test_variances_are_never_negative(kind, noise, case):
    """Repeated rows, nearly no noise, predictions on top of the data and far away."""
    X = np.vstack([case.X, case.X[:10]])
    y = np.append(case.y, case.y[:10])
    model = case.model
    phis = np.array([model.unconstrained(t | {"noise": noise}) for t in case.theta])
    data, jitter = Dataset.of(X, y), Jitter()
    if kind == "exact":
        conditional = exact_conditional(model, phis, data)
    else:
        target = CollapsedTarget(model, data, jitter)
        conditional = sparse_conditional(phis, X[15:], target.inducing_posterior)  # ten of them twice
    where = np.vstack([X, X + 1e-9, 100.0 * X])[:64]
    means, variances, _ = marginals(model, jitter, conditional, where)
    assert np.all(np.isfinite(means))
    assert np.all(variances >= 0.0)
    far = marginals(model, jitter, conditional, np.full((1, 2), 1e4))
    np.testing.assert_allclose(far[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(far[1][:, 0], [t["scale"] ** 2 for t in case.theta], rtol=1e-12)


@pytest.mark.parametrize("kind", ["sparse", "exact"])
def test_the_diagonal_of_the_joint_is_the_marginal(kind, case):
    conditional = of_kind(kind, case, Jitter(), case.X[::4])
    jitter = Jitter()
    means, variances, _ = marginals(case.model, jitter, conditional, case.X_new)
    joint_means, covariances, _ = joints(case.model, jitter, conditional, case.X_new)
    np.testing.assert_allclose(joint_means, means, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(covariances, axis1=1, axis2=2), variances, rtol=1e-9, atol=1e-12)


def test_padding_of_rows_does_not_matter(case):
    conditional = of_kind("sparse", case, Jitter(), case.X[::4])
    X = np.vstack([case.X_new] * 8)  # 136 rows are padded to 256
    means, variances, _ = marginals(case.model, Jitter(), conditional, X)
    for n in (1, 17, 64, 65, 136):
        some = marginals(case.model, Jitter(), conditional, X[:n])
        np.testing.assert_allclose(some[0], means[:, :n], rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(some[1], variances[:, :n], rtol=1e-13, atol=1e-14)


def test_nothing_of_the_training_data_is_kept(case):
    """29 rows, and no array that is as long; the inducing inputs are not rows of the data either."""
    data = Dataset.of(case.X[:29], case.y[:29])
    conditional = sparse_conditional(case.phis, case.X[:6] + 0.1, CollapsedTarget(case.model, data).inducing_posterior)
    assert [a.shape for a in vars(conditional).values()] == [(2, 4), (6, 2), (2, 6), (2, 6, 6)]


def test_some_of_the_draws(case):
    conditional = of_kind("sparse", case, Jitter(), case.X[::4])
    second = conditional.subset(np.array([1]))
    all_means, all_variances, all_noise = marginals(case.model, Jitter(), conditional, case.X_new)
    means, variances, noise = marginals(case.model, Jitter(), second, case.X_new)
    np.testing.assert_array_equal(means[0], all_means[1])
    np.testing.assert_array_equal(variances[0], all_variances[1])
    assert noise[0] == all_noise[1]
    assert type(second) is type(conditional)


@pytest.mark.slow
def test_inputs_may_differ_between_draws(case):
    Z = np.stack([case.X[:6] + 0.1, case.X[6:12]])
    target = CollapsedTarget(case.model, case.data)
    conditional = sparse_conditional(case.phis, Z, target.inducing_posterior)
    assert conditional.inputs_vary
    means, variances, _ = marginals(case.model, Jitter(), conditional, case.X_new)
    for j in range(2):
        alone = sparse_conditional(case.phis[[j]], Z[j], target.inducing_posterior)
        assert not alone.inputs_vary
        assert conditional.subset(slice(j, j + 1)).inputs.shape == (1, 6, 2)
        for some in (alone, conditional.subset(slice(j, j + 1))):
            mean, variance, _ = marginals(case.model, Jitter(), some, case.X_new)
            np.testing.assert_allclose(mean[0], means[j], rtol=1e-12)
            np.testing.assert_allclose(variance[0], variances[j], rtol=1e-11)
