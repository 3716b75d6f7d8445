"""Inequalities and symmetries of the bounds, over thousands of random cases.

A case is a shape, a kernel and a seed, so that few programs are compiled. A quarter of the cases has duplicated
rows; the noise variance runs from 1e-4 to 10.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from integrand import (
    GP,
    RBF,
    Dataset,
    Jitter,
    Linear,
    Matern12,
    Matern52,
    collapsed_bound,
    log_marginal_likelihood,
    upper_bound,
)

pytestmark = pytest.mark.usefixtures("strict_float64")

# Cases of each property in the slow suite; the default one has a tenth.
CASES = {"sandwich": 2_000, "nested": 400, "exact": 400, "permuted": 300, "repeated Z": 300, "repeated rows": 200}

SHAPES = [(12, 4, 1), (20, 6, 3)]  # N, M, D
FAMILIES = ["rbf", "matern12", "matern52 + linear"]
USUAL, EXACT = Jitter(), Jitter(0.0, 1e-12)


class Case(NamedTuple):
    gp: GP
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    rng: np.random.Generator


def make_kernel(rng, family, D):
    lengthscale, scale, other = (jnp.asarray(np.exp(rng.normal(0.0, 0.7, shape))) for shape in (D, (), ()))
    if family == "rbf":
        return RBF(lengthscale, scale)
    return Matern12(lengthscale, scale) if family == "matern12" else Matern52(lengthscale, scale) + Linear(other)


def make_case(description) -> Case:
    (N, M, D), family, seed = description
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D))
    if rng.random() < 0.25:
        X = X[rng.integers(N, size=N)]
    Z = X[rng.choice(N, M, replace=False)] if rng.random() < 0.5 else rng.standard_normal((M, D))
    gp = GP(make_kernel(rng, family, D), jnp.asarray(np.sqrt(10 ** rng.uniform(-4, 1))), jnp.asarray(rng.normal()))
    y = np.sin(2 * X[:, 0]) + float(gp.noise) * rng.standard_normal(N) + float(gp.mean)
    return Case(gp, X, y, Z, rng)


def cases_of(shapes, families):
    return st.tuples(st.sampled_from(shapes), st.sampled_from(families), st.integers(0, 2**63 - 1))


cases = cases_of(SHAPES, FAMILIES)
# The same with two programs where a property does not depend on more.
few_cases = cases_of(SHAPES[1:], FAMILIES[1:])

lower = jax.jit(collapsed_bound, static_argnames=("jitter", "bound"))
upper = jax.jit(upper_bound, static_argnames="jitter")
exact = jax.jit(log_marginal_likelihood)
gram = jax.jit(lambda kernel, X: kernel.gram(X))


def bound(case, Z=None, X=None, y=None, jitter=USUAL):
    X, y = (case.X if X is None else X), (case.y if y is None else y)
    return float(lower(case.gp, jnp.asarray(case.Z if Z is None else Z), Dataset.of(X, y), jitter=jitter))


def log_p(case):
    return float(exact(case.gp, jnp.asarray(case.X), jnp.asarray(case.y)))


def rounding(case):
    """What rounding may cost: double precision of the two large terms that nearly cancel, yᵀy / 2s and cᵀc / 2."""
    s = float(case.gp.noise) ** 2
    residual = case.y - float(case.gp.mean)
    return 1e-10 * (len(case.y) + residual @ residual / s)


def lost_by_whitening(case):
    """What rounding may cost in Σk(x, x) - tr W where only the jitter j of `EXACT` keeps Kmm from being singular.

    A = L⁻¹ K is right to double precision times the condition of L, at most √(Σk / j).
    """
    s, total = float(case.gp.noise) ** 2, float(jnp.sum(case.gp.kernel.diagonal(jnp.asarray(case.X))))
    return np.finfo(float).eps * np.sqrt(total / EXACT.absolute) * total / (2 * s)


def test_enough_cases():
    assert sum(CASES.values()) >= 2000


def holds(check, name, of, share):
    """Run a property on this share of its cases."""
    settings(max_examples=round(share * CASES[name]))(given(of)(check))()


each_share = pytest.mark.parametrize("share", [0.1, pytest.param(1.0, marks=pytest.mark.slow)])


def sandwich(description):
    """titsias ≤ tight ≤ log p ≤ upper."""
    case = make_case(description)
    value, slack, Z, data = log_p(case), rounding(case), jnp.asarray(case.Z), Dataset.of(case.X, case.y)
    tight = float(lower(case.gp, Z, data, jitter=USUAL, bound="tight"))
    assert bound(case) - slack <= tight <= value + slack
    assert value <= float(upper(case.gp, Z, data, jitter=USUAL)) + slack


@each_share
def test_log_marginal_likelihood_lies_between_the_bounds(share):
    holds(sandwich, "sandwich", cases, share)


def more(description):
    case = make_case(description)
    assert bound(case, case.Z[: len(case.Z) // 2]) <= bound(case) + rounding(case)


@each_share
def test_more_inducing_inputs_never_lower_the_bound(share):
    holds(more, "nested", few_cases, share)


def exactness(description):
    """Up to what the jitter j costs, j (N/s + ‖(K + sI)⁻¹ r‖²) / 2."""
    case = make_case(description)
    s = float(case.gp.noise) ** 2
    K = np.asarray(gram(case.gp.kernel, jnp.asarray(case.X)))
    alpha = np.linalg.solve(K + s * np.eye(len(K)), case.y - float(case.gp.mean))
    cost = EXACT.absolute * (len(K) / s + alpha @ alpha) / 2
    gap = log_p(case) - bound(case, case.X, jitter=EXACT)
    slack = rounding(case) + lost_by_whitening(case)
    assert -slack <= gap <= 1.01 * cost + slack


@each_share
def test_exact_where_every_row_is_an_inducing_input(share):
    holds(exactness, "exact", few_cases, share)


def permuted(description):
    case = make_case(description)
    rows, inducing = case.rng.permutation(len(case.y)), case.rng.permutation(len(case.Z))
    shuffled = bound(case, case.Z[inducing], case.X[rows], case.y[rows])
    assert abs(shuffled - bound(case)) <= 10 * rounding(case)  # another order, another factor of a near-singular Kmm


@each_share
def test_the_order_of_rows_and_of_inducing_inputs_does_not_matter(share):
    holds(permuted, "permuted", few_cases, share)


def repeated_Z(description):
    case = make_case(description)
    repeated = np.concatenate([case.Z, case.Z[:1]])
    assert bound(case, repeated) >= bound(case) - rounding(case)


@each_share
def test_a_repeated_inducing_input_never_lowers_the_bound(share):
    holds(repeated_Z, "repeated Z", few_cases, share)


def repeated_rows(description):
    """Rows twice, Z once: still the exact value, up to the jitter."""
    case = make_case(description)
    X, y = np.concatenate([case.X, case.X]), np.concatenate([case.y, case.y + 0.1])
    twice = case._replace(X=X, y=y)
    s = float(case.gp.noise) ** 2
    K = np.asarray(gram(case.gp.kernel, jnp.asarray(X)))
    alpha = np.linalg.solve(K + s * np.eye(len(K)), y - float(case.gp.mean))
    halves = alpha[: len(case.X)] + alpha[len(case.X) :]  # both copies lean on one inducing variable
    cost = EXACT.absolute * (len(K) / s + halves @ halves) / 2
    gap = log_p(twice) - bound(twice, case.X, jitter=EXACT)
    slack = rounding(twice) + lost_by_whitening(twice)
    assert -slack <= gap <= 1.01 * cost + slack


@each_share
def test_repeated_rows_are_covered_by_one_inducing_input(share):
    holds(repeated_rows, "repeated rows", few_cases, share)
