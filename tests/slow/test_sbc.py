"""Simulation-based calibration of prior → data → NUTS or independence MH → prediction at Z = X, and controls that fail.

Parameters are drawn from the prior and data from the model; if the sampler is right, the rank of each true value among
its posterior draws is uniform (Talts et al. 2018). Ranks are judged by a simultaneous 95 % band for their ECDF, whose
pointwise level is found by simulation (Säilynoja et al. 2022). A dropped trace term is not seen at Z = X: the density
identity in tests/targets/test_collapsed_target.py and the four-way fixture catch that one.
"""

import numpy as np
import pytest
from scipy.stats import binom

from integrand import RBF, Dataset, Gamma, Jitter, Model
from integrand.compilation import one_blas_thread
from integrand.infer.base import Plan, keep_going
from integrand.infer.coordinates import coordinates_from_hessian
from integrand.infer.independence_mh import IndependenceMH
from integrand.infer.nuts import NUTS
from integrand.infer.optimise import maximise_lbfgs
from integrand.posterior.conditional import marginals, sparse_conditional
from integrand.targets import CollapsedTarget
from known_posteriors import FunctionTarget

pytestmark = pytest.mark.slow

SIMULATIONS, N = 200, 20
CHAINS, DRAWS, THIN = 2, 150, 3
RANKS = CHAINS * DRAWS // THIN
JITTER = Jitter(relative=1e-10)
X = np.linspace(-2.0, 2.0, N)[:, None]
X_NEW = np.array([[0.37]])
# Priors that keep all three away from zero: a posterior without a funnel, so that 1000 of them are cheap to sample.
MODEL = Model(RBF(lengthscale=Gamma(4.0, 4.0), scale=Gamma(4.0, 4.0)), 1, noise=Gamma(4.0, 12.0))
QUANTITIES = ("lengthscale", "scale", "noise", "f*", "log density")


def simulated(rng: np.random.Generator, noise_factor: float):
    """θ from the prior, and y and f* from the model at θ, in plain NumPy."""
    theta = {"lengthscale": rng.gamma(4.0, 1 / 4), "scale": rng.gamma(4.0, 1 / 4), "noise": rng.gamma(4.0, 1 / 12)}
    points = np.concatenate([X, X_NEW])
    K = theta["scale"] ** 2 * np.exp(-0.5 * (points - points.T) ** 2 / theta["lengthscale"] ** 2)
    values, vectors = np.linalg.eigh(K)
    f = vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(N + 1))
    y = f[:N] + np.sqrt(noise_factor) * theta["noise"] * rng.standard_normal(N)
    return theta, y, f[N]


# Each with the draws of its warm-up and the acceptance that it adapts to.
SAMPLERS = {"nuts": (NUTS(), 60, 0.9), "independence": (IndependenceMH(), 120, 0.8)}


def ranks_of_one(seed: int, model: Model, jacobian: bool, noise_factor: float, sampler: str) -> list[int]:
    rng = np.random.default_rng([11, seed])
    theta, y, f_new = simulated(rng, noise_factor)
    target = CollapsedTarget(model, Dataset.of(X, y), JITTER)

    def density(phi):
        e = target.evaluate(phi, X)
        # All three transforms are exponentials, so the log Jacobian is the sum of φ.
        return (e.log_density, e.gradient) if jacobian else (e.log_density - phi.sum(), e.gradient - 1.0)

    optimum = maximise_lbfgs(density, model.start(), max_steps=200).x
    coordinates = coordinates_from_hessian(lambda phi: density(phi)[1], optimum)
    starts = coordinates.to_x(0.5 * rng.standard_normal((CHAINS, len(optimum))))
    algorithm, warmup, target_accept = SAMPLERS[sampler]
    plan = Plan(warmup, DRAWS, (seed,), target_accept=target_accept)
    run = algorithm.run(FunctionTarget(density, dimension=len(optimum)), starts, coordinates, plan, keep_going)
    draws = run.chains.x[:, THIN - 1 :: THIN].reshape(-1, len(optimum))
    mean, variance, _ = marginals(model, JITTER, sparse_conditional(draws, X, target.inducing_posterior), X_NEW)
    f_draws = mean[:, 0] + np.sqrt(variance[:, 0]) * rng.standard_normal(len(draws))
    phi = model.unconstrained(theta)
    log_densities = np.array([density(draw)[0] for draw in draws])
    ranks = [int(np.sum(draws[:, i] < phi[i])) for i in range(3)]
    return [*ranks, int(np.sum(f_draws < f_new)), int(np.sum(log_densities < density(phi)[0]))]


def all_ranks(
    simulations: int, model: Model = MODEL, jacobian: bool = True, noise_factor: float = 1.0, sampler: str = "nuts"
) -> np.ndarray:
    with one_blas_thread():
        return np.array([ranks_of_one(seed, model, jacobian, noise_factor, sampler) for seed in range(simulations)])


def worst_level(ranks: np.ndarray) -> np.ndarray:
    """Smallest pointwise two-sided p-value of the ECDF of ranks 0..RANKS, over the last axis of simulations."""
    n = ranks.shape[-1]
    grid = np.arange(1, RANKS + 1)
    counts = (ranks[..., None] < grid).sum(axis=-2)
    p = grid / (RANKS + 1)
    return np.minimum(2 * binom.cdf(counts, n, p), 2 * binom.sf(counts - 1, n, p)).min(axis=-1)


def limit(n: int, level: float = 0.05) -> float:
    """The pointwise level whose band holds 95 % of all uniform ECDFs everywhere."""
    rng = np.random.default_rng(0)
    return float(np.quantile(worst_level(rng.integers(0, RANKS + 1, size=(2_000, n))), level))


def test_band_holds_uniform_ranks_and_catches_shifted_ones():
    rng = np.random.default_rng(1)
    uniform = worst_level(rng.integers(0, RANKS + 1, size=(400, SIMULATIONS)))
    assert 0.9 < np.mean(uniform >= limit(SIMULATIONS)) <= 1.0
    shifted = np.minimum(rng.integers(0, RANKS + 1, size=SIMULATIONS) + RANKS // 5, RANKS)
    assert worst_level(shifted) < limit(SIMULATIONS)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_calibrated(sampler):
    levels = worst_level(all_ranks(SIMULATIONS, sampler=sampler).T)
    print(dict(zip(QUANTITIES, levels.round(4), strict=True)), "limit", round(limit(SIMULATIONS), 4))
    assert np.all(levels >= limit(SIMULATIONS)), dict(zip(QUANTITIES, levels, strict=True))


HALVED = Model(RBF(lengthscale=Gamma(4.0, 8.0), scale=Gamma(4.0, 8.0)), 1, noise=Gamma(4.0, 24.0))


@pytest.mark.parametrize(
    "fault",
    [{"model": HALVED}, {"jacobian": False}, {"noise_factor": 1.5}],
    ids=["halved prior scale", "missing Jacobian", "noise variance x 1.5"],
)
def test_faults_are_seen(fault):
    levels = worst_level(all_ranks(SIMULATIONS, **fault).T)
    print(fault, dict(zip(QUANTITIES, levels.round(6), strict=True)), "limit", round(limit(SIMULATIONS), 4))
    assert np.any(levels < limit(SIMULATIONS)), dict(zip(QUANTITIES, levels, strict=True))
