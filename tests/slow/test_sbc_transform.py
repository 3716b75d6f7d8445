"""Simulation-based calibration of fits with a transformed target, whose parameters are ranked, too; see `test_sbc.py`.

A run of other length: `python tests/slow/test_sbc_transform.py box-cox 40`.
"""

import sys

import jax
import numpy as np
import pytest
import test_sbc as sbc

from integrand import RBF, Dataset, Gamma, LogNormal, Model, Normal
from integrand.compilation import one_blas_thread
from integrand.infer.base import Plan, keep_going
from integrand.infer.coordinates import coordinates_from_hessian
from integrand.infer.nuts import NUTS
from integrand.infer.optimise import maximise_lbfgs
from integrand.posterior.conditional import marginals, sparse_conditional
from integrand.posterior.transformed import transforms_of
from integrand.targets import CollapsedTarget
from integrand.transforms import BoxCox, SinhArcsinh
from known_posteriors import FunctionTarget

pytestmark = pytest.mark.slow

TRANSFORMS = {
    "box-cox": BoxCox(power=Normal(0.0, 0.5)),
    "sinh-arcsinh": SinhArcsinh(skewness=Normal(0.0, 0.5), tails=LogNormal(0.0, 0.3)),
}


def ranks_of_one(seed: int, model: Model) -> list[int]:
    """Ranks of φ, of a new y and of the log density among the draws."""
    rng = np.random.default_rng([12, seed])
    theta, z, f_new = sbc.simulated(rng, 1.0)
    drawn = model.sample_prior(jax.random.key(seed), 1)
    own = {name: float(value[0]) for name, value in drawn.items() if name.startswith("transform")}
    theta |= own
    phi = model.unconstrained(theta)
    transform = transforms_of(model, phi[None])
    assert transform is not None
    y, y_new = (transform.inverse(np.atleast_2d(value))[0] for value in (z, f_new + theta["noise"] * rng.normal()))
    target = CollapsedTarget(model, Dataset.of(sbc.X, y), sbc.JITTER)

    def density(phi):
        e = target.evaluate(phi, sbc.X)
        return e.log_density, e.gradient

    optimum = maximise_lbfgs(density, model.start(), max_steps=200).x
    coordinates = coordinates_from_hessian(lambda phi: density(phi)[1], optimum)
    starts = coordinates.to_x(0.5 * rng.standard_normal((sbc.CHAINS, len(optimum))))
    plan = Plan(100, sbc.DRAWS, (seed,), target_accept=0.9)
    run = NUTS().run(FunctionTarget(density, dimension=len(optimum)), starts, coordinates, plan, keep_going)
    draws = run.chains.x[:, sbc.THIN - 1 :: sbc.THIN].reshape(-1, len(optimum))
    conditional = sparse_conditional(draws, sbc.X, target.inducing_posterior)
    mean, variance, noise = marginals(model, sbc.JITTER, conditional, sbc.X_NEW)
    each = transforms_of(model, draws)
    assert each is not None
    y_draws = each.inverse((mean[:, 0] + np.sqrt(variance[:, 0] + noise) * rng.standard_normal(len(draws)))[:, None])
    log_densities = np.array([density(draw)[0] for draw in draws])
    ranks = [int(np.sum(draws[:, i] < phi[i])) for i in range(len(phi))]
    return [*ranks, int(np.sum(y_draws[:, 0] < y_new[0])), int(np.sum(log_densities < density(phi)[0]))]


def levels(name: str, simulations: int) -> dict[str, float]:
    """The worst pointwise level of each quantity."""
    kernel = RBF(lengthscale=Gamma(4.0, 4.0), scale=Gamma(4.0, 4.0))
    model = Model(kernel, 1, noise=Gamma(4.0, 12.0), target_transform=TRANSFORMS[name], mean=0.0)
    with one_blas_thread():
        ranks = np.array([ranks_of_one(seed, model) for seed in range(simulations)])
    return dict(zip((*model.names, "y*", "log density"), sbc.worst_level(ranks.T).tolist(), strict=True))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_calibrated(name):
    found, limit = levels(name, sbc.SIMULATIONS), sbc.limit(sbc.SIMULATIONS)
    print(found, "limit", limit)
    # Seven quantities share the level of the band.
    assert min(found.values()) >= sbc.limit(sbc.SIMULATIONS, 0.05 / len(found))


if __name__ == "__main__":
    asked = int(sys.argv[2])
    print(sys.argv[1], asked, levels(sys.argv[1], asked), "limit", sbc.limit(asked))
