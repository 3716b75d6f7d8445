import jax
import jax.numpy as jnp
import numpy as np
import pytest

from integrand import GP, RBF, Dataset, InputError, Model, collapsed_bound
from integrand.data.scaling import Standardiser
from integrand.inducing import distinct_rows, greedy_variance, k_means, random_subset
from integrand.methods.problem import Problem, Settings
from integrand.methods.warm_start import starting_inducing
from integrand.targets import CollapsedTarget
from reference import KERNELS, covariance, with_arrays

pytestmark = pytest.mark.usefixtures("strict_float64")


def generator(seed=0):
    return np.random.default_rng(seed)


X = generator(1).standard_normal((40, 3))
DOUBLED = np.concatenate([X, X[::-1], X[:5]])
GP_3 = GP(RBF((0.8, 1.3, 2.0), 1.3), 0.2, 0.0)


def rows_of(Z, X):
    """For each row of Z the number of the row of X that it is."""
    same = np.all(Z[:, None, :] == X[None, :, :], axis=2)
    assert np.all(same.any(axis=1))
    return same.argmax(axis=1)


def by_bound(Z, data):
    return float(compiled_bound(jnp.asarray(Z), data))


@jax.jit
def compiled_bound(Z, data):
    return collapsed_bound(GP_3, Z, data)


def test_distinct_rows_in_their_first_order():
    assert np.array_equal(distinct_rows(DOUBLED), X)
    assert np.array_equal(distinct_rows(np.array([[2.0], [1.0], [2.0], [0.0]])), [[2.0], [1.0], [0.0]])


CANDIDATES = {
    "random": random_subset,
    "k-means": k_means,
    "greedy": lambda rng, X, m: greedy_variance(rng, X, m, GP_3),
}


@pytest.mark.parametrize("candidate", CANDIDATES.values(), ids=CANDIDATES)
@pytest.mark.parametrize("m", [1, 7, 40])
def test_candidates_are_distinct_and_the_seed_decides(candidate, m):
    Z = candidate(generator(2), DOUBLED, m)
    assert Z.shape == (m, 3)
    assert Z.dtype == np.float64
    assert len(np.unique(Z, axis=0)) == m
    assert np.all(np.isfinite(Z))
    assert np.array_equal(Z, candidate(generator(2), DOUBLED, m))


@pytest.mark.parametrize("candidate", [random_subset, k_means])
def test_another_seed_gives_another_start(candidate):
    assert not np.array_equal(candidate(generator(2), X, 7), candidate(generator(3), X, 7))


def test_random_rows_are_drawn_without_preference():
    counts = np.zeros(40)
    for seed in range(400):
        counts[rows_of(random_subset(generator(seed), DOUBLED, 10), X)] += 1
    assert np.all(np.abs(counts - 100) < 5 * np.sqrt(400 * 0.25 * 0.75))


def test_k_means_finds_the_clusters():
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    rows = np.concatenate([c + 0.1 * generator(4).standard_normal((30, 2)) for c in centres])
    found = min(
        (k_means(generator(seed), rows, 3) for seed in range(5)),
        key=lambda Z: np.sum(np.min(np.sum((rows[:, None] - Z) ** 2, axis=2), axis=1)),
    )
    means = rows.reshape(3, 30, 2).mean(axis=1)
    np.testing.assert_allclose(found[np.lexsort(found.round().T)], means[np.lexsort(means.round().T)], atol=1e-9)


def plain_pivots(kernel, X, m):
    """Pivoted Cholesky with the whole matrix: after each pivot, the Schur complement of what is left."""
    S = np.array(covariance(kernel, X, X))
    chosen = []
    for _ in range(m):
        variances = np.diag(S).copy()
        variances[chosen] = -1.0
        p = int(np.argmax(variances))
        chosen.append(p)
        S = S - np.outer(S[:, p], S[p]) / S[p, p]
    return chosen


@pytest.mark.parametrize("name", ["rbf", "matern32", "sum", "product of sums"])
def test_greedy_rows_are_the_pivots_of_a_cholesky_factor(name):
    kernel = with_arrays(KERNELS[name])
    Z = greedy_variance(generator(), X, 12, GP(kernel, jnp.asarray(0.1), jnp.asarray(0.0)))
    assert rows_of(Z, X).tolist() == plain_pivots(kernel, X, 12)


def test_greedy_never_takes_a_row_twice_when_nothing_is_left_to_explain():
    rows = np.linspace(0.0, 1e-3, 30)[:, None]
    Z = greedy_variance(generator(), rows, 30, GP(RBF(5.0, 1.0), 0.1, 0.0))
    assert len(np.unique(Z)) == 30


@pytest.mark.slow
def test_the_bound_chooses():
    y = np.sin(2 * X[:, 0])
    data = Dataset.of(X, y, 16)
    model = Model(RBF((0.8, 1.3, 2.0), 1.3), 3, 0.2)
    problem = Problem(model, data, Standardiser.fit(X, y), Settings(n_inducing=8, seed=5))
    Z, name = starting_inducing(problem, CollapsedTarget(model, data), model.start())
    rng = problem.rng(0)  # the candidates draw from one stream, in this order
    candidates = {
        "random subset": random_subset(rng, X, 8),
        "k-means": k_means(rng, X, 8),
        "greedy variance": greedy_variance(rng, X, 8, GP_3),
    }
    bounds = {key: by_bound(value, data) for key, value in candidates.items()}
    assert name == max(bounds, key=lambda key: bounds[key])
    assert by_bound(Z, data) == pytest.approx(max(bounds.values()), rel=1e-12)
    assert min(bounds.values()) < max(bounds.values())


def test_float64_without_a_scope_of_the_caller():
    inside = greedy_variance(generator(), X, 12, GP_3)
    with jax.enable_x64(False):
        assert np.array_equal(greedy_variance(generator(), X, 12, GP_3), inside)


@pytest.mark.parametrize("candidate", CANDIDATES.values(), ids=CANDIDATES)
def test_more_inducing_inputs_than_rows_are_refused(candidate):
    with pytest.raises(InputError, match="41 inducing points were asked for, but the data has only 40 distinct rows"):
        candidate(generator(), DOUBLED, 41)
    with pytest.raises(InputError, match="at least 1, not 0"):
        candidate(generator(), X, 0)
