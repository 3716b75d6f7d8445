"""Leave-one-out without refitting equals refits of q(u) with θ fixed, and ArviZ's for exact methods."""

import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import integrand
from experiments.catalogue import SOURCES
from experiments.datasets import load
from integrand import Dataset, InputError, Model, log_marginal_likelihood
from integrand.data.scaling import Standardiser
from integrand.errors import DataSourceError
from integrand.infer.importance import pareto_smoothed
from integrand.likelihoods import Poisson
from integrand.linalg import Jitter
from integrand.posterior.conditional import (
    VariationalConditional,
    exact_conditional,
    marginals,
    sparse_conditional,
)
from integrand.posterior.leave_one_out import Comparison, LeaveOneOut, leave_one_out
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz

N, D, M, J = 21, 2, 6, 3
rng = np.random.default_rng(0)
X = rng.standard_normal((N, D))
Y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(N)
Z = rng.standard_normal((M, D))
JITTER, SCALER = Jitter(1e-6), Standardiser.identity(D)
MODEL = Model(integrand.RBF(), D)
PHIS = MODEL.start() + 0.4 * rng.standard_normal((J, MODEL.n_theta))
OTHERS = [np.arange(N) != i for i in range(N)]


def sparse(model, phis=PHIS, X=X, Y=Y, v=None):
    target = CollapsedTarget(model, Dataset.of(X, Y, noise_variance=v), JITTER)
    return sparse_conditional(phis, Z, target.inducing_posterior)


def of(model, conditional, X=X, Y=Y, scaler=SCALER, v=None):
    return leave_one_out(model, JITTER, scaler, conditional, Dataset.of(X, Y, noise_variance=v))


def smoothed(gains):
    """What the log weights should be, from L - L₋ᵢ of each draw and row."""
    return pareto_smoothed(-gains.T).log_weights.T


@pytest.mark.parametrize(
    ("bound", "known"),
    [
        ("titsias", False),
        ("tight", True),
        pytest.param("titsias", True, marks=pytest.mark.slow),
        pytest.param("tight", False, marks=pytest.mark.slow),
    ],
)
def test_equals_refits_of_q_with_theta_fixed(bound, known):
    model = Model(integrand.RBF(), D, bound=bound)
    v = np.linspace(0.01, 0.5, N) if known else np.zeros(N)
    given = v if known else None
    found = of(model, sparse(model, v=given), v=given)
    gains, scores = np.empty((J, N)), np.empty((J, N))
    whole = CollapsedTarget(model, Dataset.of(X, Y, noise_variance=given), JITTER)
    for i, others in enumerate(OTHERS):
        left = v[others] if known else None
        target = CollapsedTarget(model, Dataset.of(X[others], Y[others], noise_variance=left), JITTER)
        refitted = sparse(model, X=X[others], Y=Y[others], v=left)
        mean, variance, noise = marginals(model, JITTER, refitted, X[i : i + 1])
        scores[:, i] = norm.logpdf(Y[i], mean[:, 0], np.sqrt(variance[:, 0] + noise + v[i]))
        gains[:, i] = [whole.value(phi, Z) - target.value(phi, Z) for phi in PHIS]
    np.testing.assert_allclose(found.log_scores, scores, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.log_weights, smoothed(gains), rtol=1e-8, atol=1e-8)


def test_the_bounds_weigh_differently_and_score_alike():
    old, tight = (of(model, sparse(model)) for model in (MODEL, Model(integrand.RBF(), D, bound="tight")))
    np.testing.assert_allclose(old.log_scores, tight.log_scores, rtol=1e-12)
    assert np.max(np.abs(old.log_weights - tight.log_weights)) > 1e-3


def test_exact_equals_refits_and_arviz():
    phis = MODEL.start() + 0.2 * rng.standard_normal((60, MODEL.n_theta))
    found = of(MODEL, exact_conditional(MODEL, phis, Dataset.of(X, Y)))
    value = jax.jit(lambda phi, X, y: log_marginal_likelihood(MODEL.gp(MODEL.theta(phi)), X, y))
    with float64_scope():
        few = [jnp.asarray(phi) for phi in phis[:3]]
        whole = np.array([value(phi, X, Y) for phi in few])
        gains = np.array([[value(phi, X[o], Y[o]) for o in OTHERS] for phi in few])
    np.testing.assert_allclose(found.log_scores[:3], whole[:, None] - gains, rtol=1e-8, atol=1e-8)
    data = arviz.from_dict(log_likelihood={"y": found.log_scores[None]}, posterior={"a": np.zeros((1, 60))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = arviz.loo(data, pointwise=True, reff=1.0)
    assert found.elpd == pytest.approx(float(theirs.elpd_loo), abs=1e-6)
    assert found.se == pytest.approx(float(theirs.se), abs=1e-6)
    np.testing.assert_allclose(found.elpd_rows, theirs.loo_i, atol=1e-6)
    np.testing.assert_allclose(found.k_hat, theirs.pareto_k, atol=1e-6)


def test_many_rows_in_blocks_and_a_set_of_inducing_inputs_for_each_draw(monkeypatch):
    model = Model(integrand.RBF(), D, bound="tight")
    whole = of(model, sparse(model))
    monkeypatch.setattr("integrand.posterior.leave_one_out._BLOCK", 8)
    each = sparse_conditional(
        PHIS, np.tile(Z, (J, 1, 1)), CollapsedTarget(model, Dataset.of(X, Y), JITTER).inducing_posterior
    )
    blocked = of(model, each)
    np.testing.assert_allclose(blocked.log_scores, whole.log_scores, rtol=1e-9)
    np.testing.assert_allclose(blocked.log_weights, whole.log_weights, rtol=1e-9, atol=1e-12)


def test_drawn_inducing_variables_weigh_by_the_expected_and_score_by_the_marginal_likelihood():
    counts = np.random.default_rng(1).poisson(2.0, N).astype(float)
    model = Model(integrand.RBF(), D, likelihood=Poisson())
    phis, v = PHIS[:, : model.n_theta], rng.standard_normal((J, M))
    conditional = VariationalConditional(phis, Z, v, np.zeros((J, 0, 0)))
    found = of(model, conditional, Y=counts)
    mean, variance, _ = marginals(model, JITTER, conditional, X)
    f = mean + np.sqrt(variance) * np.random.default_rng(2).standard_normal((200_000, 1, 1))[:2000]
    log_p = counts * f - np.exp(f) - np.array([math.lgamma(c + 1) for c in counts])
    error = 6.0 * np.std(np.exp(log_p), axis=0) / math.sqrt(len(f)) / np.mean(np.exp(log_p), axis=0)
    assert np.all(np.abs(found.log_scores - logsumexp(log_p - math.log(len(f)), axis=0)) < error + 1e-6)


def test_units_of_y_shift_the_score_alone():
    scaler = Standardiser(np.zeros(D), np.ones(D), 0.0, 7.0)
    a, b = of(MODEL, sparse(MODEL)), of(MODEL, sparse(MODEL), scaler=scaler)
    np.testing.assert_allclose(a.log_scores - b.log_scores, math.log(7.0))
    np.testing.assert_allclose(a.log_weights, b.log_weights)


@pytest.mark.usefixtures("as_users_see_it")
def test_other_rows_and_a_fitted_q_are_refused():
    exact = exact_conditional(MODEL, PHIS, Dataset.of(X, Y))
    for conditional in (sparse(MODEL), exact):
        for rows in ({"Y": Y + 0.01}, {"X": X[::-1]}, {"X": X[1:], "Y": Y[1:]}):
            with pytest.raises(InputError, match="not the rows that the model was fitted to"):
                of(MODEL, conditional, **rows)
    fitted = VariationalConditional(PHIS[:1], Z, np.zeros((1, M)), np.eye(M)[None])
    with pytest.raises(InputError, match="integrand compare --folds"):
        of(MODEL, fitted)


def result_of(scores, k_hat=0.1):
    """One draw: rows score what they are told."""
    scores = np.asarray(scores, float)[None]
    return LeaveOneOut(scores, np.zeros_like(scores), np.full(scores.shape[1], k_hat))


def test_models_are_ranked_by_paired_differences():
    base = np.random.default_rng(3).standard_normal(50)
    models = {"low": result_of(base - 1.0), "high": result_of(base), "near": result_of(base[::-1])}
    compared = Comparison.of(models)
    first, second, third = compared.models
    assert compared.best == first.name == "high"
    assert (second.name, third.name) == ("near", "low")
    assert third.difference == pytest.approx(-50.0)
    assert third.difference_se == pytest.approx(0.0, abs=1e-9)
    assert second.difference == pytest.approx(0.0, abs=1e-9)
    assert second.difference_se == pytest.approx(math.sqrt(50) * (base[::-1] - base).std())
    assert compared.answer.startswith("No clear difference: high is ahead of near by")
    assert str(compared).splitlines()[1].startswith("high ")
    assert str(compared).endswith(compared.answer)
    assert json.loads(json.dumps(compared.facts()))["models"]["low"]["difference"] == pytest.approx(-50.0)
    clear = Comparison.of({"low": models["low"], "high": models["high"]}).answer
    assert clear.startswith("high predicts best: its leave-one-out density is above that of low by 50.0 nats")
    assert "k-hat above 0.7" in Comparison.of({"a": models["low"], "b": result_of(base, k_hat=0.9)}).answer
    with pytest.raises(InputError, match="two models"):
        Comparison.of({"one": models["low"]})
    with pytest.raises(InputError, match="different rows"):
        Comparison.of({"one": models["low"], "two": result_of(base[:9])})


def test_in_words_and_as_json():
    loo = result_of([-1.0, -2.0, -3.0], k_hat=0.8)
    assert str(loo).startswith("Leave-one-out: -6.0 nats (standard error 1.4) over 3 rows, -2.000 a row. 3 rows have")
    assert loo.facts() == {"elpd": -6.0, "elpd_se": pytest.approx(math.sqrt(2.0)), "rows": 3, "k_hat": 0.8} | {
        "rows_above_k_hat_limit": 3
    }
    assert repr(loo) == "LeaveOneOut(elpd=-6.00, se=1.41, rows=3, uncertain=3)"
    if arviz.__version__.startswith("0."):
        assert loo.to_arviz() is loo
    else:
        assert loo.to_arviz().elpd == pytest.approx(-6.0)


# ---- true refits without the row, on the paper's yacht data


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
