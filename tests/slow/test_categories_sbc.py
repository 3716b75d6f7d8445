"""Simulation-based calibration of a model with categories: B is recovered.

θ is drawn from the prior and data from the model, in plain NumPy; with Z = X the rank of each true entry of scale² B
among its posterior draws is uniform (Talts et al. 2018). The entries are what the pivots do not change.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_sbc import limit, worst_level

from integrand import RBF, Categorical, Dataset, Gamma, Jitter, Model
from integrand.compilation import one_blas_thread
from integrand.infer.base import Plan, keep_going
from integrand.infer.coordinates import coordinates_from_hessian
from integrand.infer.nuts import NUTS
from integrand.infer.optimise import maximise_lbfgs
from integrand.kernels.categorical import pivots
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget

pytestmark = pytest.mark.slow

SIMULATIONS = int(os.environ.get("INTEGRAND_SBC", "200"))
K, N = 3, 36
CHAINS, DRAWS, THIN = 2, 150, 3
X = np.column_stack([np.tile(np.linspace(-2.0, 2.0, N // K), K), np.repeat(np.arange(float(K)), N // K)])
OTHERS = {"1.lengthscale": (4.0, 4.0), "0.scale": (4.0, 4.0), "noise": (4.0, 12.0)}  # Gamma: away from zero
ENTRIES = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]


def model(chosen: tuple[str, ...]) -> Model:
    kernel = Categorical(1, 1, scale=Gamma(4, 4), levels=("a", "b", "c"), pivots=chosen)
    return Model(kernel * RBF(lengthscale=Gamma(4, 4)), ["t", "level"], noise=Gamma(4, 12), mean=0.0)


def covariance(model: Model, phis: np.ndarray) -> np.ndarray:
    with float64_scope():
        of_one = jax.jit(lambda phi: model.gp(model.theta(phi)).kernel.parts[0].covariance())
        return np.array([of_one(jnp.asarray(phi)) for phi in phis])


def ranks_of_one(seed: int) -> list[int]:
    rng = np.random.default_rng([13, seed])
    lengthscale, scale, noise = (rng.gamma(a, 1.0 / b) for a, b in OTHERS.values())
    w, kappa = rng.standard_normal(K), rng.exponential(1.0, K)  # a full W
    B = scale**2 * (np.outer(w, w) + np.diag(kappa))
    level = X[:, 1].astype(int)
    covariances = B[np.ix_(level, level)] * np.exp(-0.5 * (X[:, :1] - X[:, 0]) ** 2 / lengthscale**2)
    values, vectors = np.linalg.eigh(covariances)
    y = vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(N)) + noise * rng.standard_normal(N)
    chosen = pivots(X[:, :1], y, X[:, 1], K, 1)
    of_pivots = model(tuple("abc"[i] for i in chosen))
    target = CollapsedTarget(of_pivots, Dataset.of(X, y), Jitter(relative=1e-10)).at(X)
    optimum = maximise_lbfgs(target.value_and_gradient, of_pivots.start(), max_steps=200).x
    coordinates = coordinates_from_hessian(lambda phi: target.value_and_gradient(phi)[1], optimum)
    starts = coordinates.to_x(0.5 * rng.standard_normal((CHAINS, len(optimum))))
    plan = Plan(100, DRAWS, (seed,), target_accept=0.9)
    chains = NUTS().run(target, starts, coordinates, plan, keep_going).chains
    draws = covariance(of_pivots, chains.x[:, THIN - 1 :: THIN].reshape(-1, len(optimum)))
    return [int(np.sum(draws[:, i, j] < B[i, j])) for i, j in ENTRIES]


def test_B_is_recovered():
    with one_blas_thread():
        ranks = np.array([ranks_of_one(seed) for seed in range(SIMULATIONS)])
    levels = worst_level(ranks.T)
    print({f"B{e}": round(float(v), 4) for e, v in zip(ENTRIES, levels, strict=True)}, "limit", limit(SIMULATIONS))
    # Six entries are looked at together.
    assert np.all(levels >= limit(SIMULATIONS, 0.05 / len(ENTRIES)))
