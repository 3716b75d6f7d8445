"""The judge of the peer benchmarks: what is a result, and whether two posteriors agree."""

import sys
from pathlib import Path

import numpy as np
import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

from agreement import agreement  # noqa: E402
from judge import accuracy_numbers, convergence_numbers, judged, referee_bound  # noqa: E402


def test_agreement_of_equal_and_of_shifted_posteriors():
    rng = np.random.default_rng(1)
    a, b, c = (np.exp(rng.standard_normal((4, 400, 2))) for _ in range(3))
    rows = [{"judged": convergence_numbers(draws)} for draws in (a, b, c, a * np.exp(0.5))]
    equal, shifted = agreement(rows[:1], rows[1:3]), agreement(rows[3:], rows[1:3])
    assert equal.largest < 4.0
    assert equal.p > 0.001
    assert equal.chi2 == pytest.approx(sum(z * z for z in equal.z))
    assert min(shifted.z) > 5.0
    assert shifted.p < 1e-6
    assert shifted.rms == pytest.approx(np.sqrt(np.mean(np.square(shifted.z))))


def test_agreement_is_of_all_repeats_that_mixed():
    def row(mean, error, r_hat=1.0):
        return {"judged": {"log_mean": [mean], "mcse": [error], "r_hat": r_hat}}

    # Two means of 1 and 3 with error 1 are one of 2 with error 1/√2.
    found = agreement([row(1.0, 1.0), row(3.0, 1.0)], [row(0.0, 0.0)])
    assert found.z == pytest.approx([2.0 * np.sqrt(2.0)])
    again = agreement([row(1.0, 1.0), row(3.0, 1.0), row(90.0, 1.0, 1.3)], [row(0.0, 0.0)])
    assert again.z == found.z
    assert agreement([row(1.0, 1.0, 1.3)], [row(0.0, 0.0)]) is None


def test_results_that_are_not_finite_are_no_results(tmp_path):
    none = tmp_path / "none.npz"
    assert judged("ml2", none, none, {"bound": 1.0}) == {}
    for task, key in (("ml2", "bound"), ("gradient", "value")):
        with pytest.raises(ValueError, match="the bound is -inf"):
            judged(task, none, none, {key: -np.inf})
    problem, arrays = tmp_path / "problem.npz", tmp_path / "arrays.npz"
    np.savez(problem, y_sd=1.0, y_mean=0.0, y_test=np.zeros(2))
    np.savez(arrays, means=np.full((1, 2), np.nan), variances=np.ones((1, 2)))
    with pytest.raises(ValueError, match="means has NaN"):
        judged("ml2", problem, arrays, {"bound": 1.0})
    given = {"X": np.ones((3, 1)), "y": np.ones(3)}
    theta = {"lengthscale": np.array([np.nan]), "scale": np.array(1.0), "noise": np.array(0.1)}
    np.savez(problem, **given)
    np.savez(arrays, **theta, Z=given["X"][:2])
    with pytest.raises(ValueError, match="the referee's bound is"):
        judged("ml2", problem, arrays, {"bound": 1.0})
    with pytest.raises(ValueError, match="draws are not finite"):
        convergence_numbers(np.full((4, 9, 1), np.nan))


def test_chains_that_share_a_seed_are_no_result():
    draws = np.exp(np.random.default_rng(0).standard_normal((4, 100, 3)))
    draws[3] = draws[1]
    with pytest.raises(ValueError, match="two chains are the same"):
        convergence_numbers(draws)


def test_judges_agree_with_the_library():
    from integrand.bounds.exact import log_marginal_likelihood
    from integrand.gp import GP
    from integrand.kernels import RBF
    from integrand.precision import float64_scope

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 2)), rng.standard_normal(12)
    found = {"lengthscale": np.ones(2), "scale": np.array(1.0), "noise": np.array(0.5), "Z": X}
    with float64_scope():
        import jax.numpy as jnp

        kernel = RBF(lengthscale=jnp.ones(2), scale=jnp.array(1.0))
        exact = log_marginal_likelihood(GP(kernel, jnp.array(0.5), jnp.array(0.0)), X, y)
    assert referee_bound({"X": X, "y": y}, found) == pytest.approx(float(exact), abs=1e-3)
    given = {"y_sd": 2.0, "y_mean": 1.0, "y_test": np.array([1.0, 3.0])}
    scores = accuracy_numbers(given, np.array([[0.0, 0.0]]), np.array([[1.0, 1.0]]))
    assert scores["rmse"] == pytest.approx(np.sqrt(2.0))
