"""The paper's two one-dimensional figures: the ridge of its introduction, and the example with a gap."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.measure import facts, fitted, scores
from experiments.store import Task
from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.infer.optimise import maximise_adam, maximise_lbfgs
from integrand.kernels import RBF
from integrand.model import Model
from integrand.precision import float64_scope
from integrand.targets import ExactTarget, likelihood

# The ridge: few rows of a smooth function on an interval shorter than its lengthscale. The paper does not name its
# function. Any function that is nearly flat on the interval has such a surface.
RIDGE_ROWS, RIDGE_END = 20, 1.0
RIDGE_TRUTH = {"lengthscale": 2.0, "scale": 1.5, "noise": 0.1}
RIDGE_STARTS = 12
ADAM_STEPS = 200  # few: it stops where the loss has nearly stopped falling, which is easily taken for convergence
GRID = 90


def ridge(task: Task, data_dir: str | None) -> dict[str, Any]:
    """log p(y | l, σ_f) on a grid with known noise, the ends of optimisers from several starts, and draws."""
    rng = np.random.default_rng(task.split)
    X = np.sort(rng.uniform(0.0, RIDGE_END, RIDGE_ROWS))[:, None]
    truth = RIDGE_TRUTH
    K = truth["scale"] ** 2 * np.exp(-0.5 * ((X - X.T) / truth["lengthscale"]) ** 2)
    f = np.linalg.cholesky(K + 1e-10 * np.eye(len(X))) @ rng.standard_normal(len(X))
    y = f + truth["noise"] * rng.standard_normal(len(X))
    identity = Standardiser.identity(1)
    model = Model(RBF(), 1, noise=truth["noise"])
    target = ExactTarget(model, Dataset.of(X, y, 64))
    log_l, log_s = np.linspace(-2.5, 4.0, GRID), np.linspace(-3.0, 5.0, GRID)

    def phi_of(length: float, scale: float) -> np.ndarray:
        return model.unconstrained({"lengthscale": np.exp(length), "scale": np.exp(scale)})

    surface = [[target.evaluate(phi_of(a, b)).log_likelihood for a in log_l] for b in log_s]
    optima = []
    for _ in range(RIDGE_STARTS):
        start = rng.uniform([-2.0, -2.0], [3.5, 4.0])
        for name, maximise, steps in (("L-BFGS", maximise_lbfgs, 500), ("Adam", maximise_adam, ADAM_STEPS)):
            optimum = maximise(lambda phi: likelihood(target.evaluate(phi)), phi_of(*start), max_steps=steps)
            theta = {key: float(np.ravel(v)[0]) for key, v in _theta(model, optimum.x).items()}
            end = [theta["lengthscale"], theta["scale"]]
            optima.append({"optimiser": name, "start": np.exp(start), "end": end, "value": optimum.value})
    posterior = fitted(task, ArrayRows(X, y, scaler=identity), noise=truth["noise"])
    draws = np.stack([posterior.theta["lengthscale"].ravel(), posterior.theta["scale"].ravel()], axis=1)
    return facts(posterior) | {
        "truth": truth,
        "X": X[:, 0],
        "y": y,
        "log_lengthscale": log_l,
        "log_scale": log_s,
        "surface": surface,
        "optima": optima,
        "sampled": draws[:: max(1, len(draws) // 600)],
    }


def _theta(model: Model, phi: np.ndarray) -> dict[str, Any]:
    with float64_scope():
        return {name: np.asarray(v) for name, v in model.theta(jnp.asarray(phi)).items()}


def example(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the one-dimensional example: sin 3x + 0.3 cos πx with noise 0.4, and nothing between -2 and 2."""
    rng = np.random.default_rng(seed)
    x = 2.0 * rng.standard_normal(1000) - 1.0
    y = truth(x) + 0.4 * rng.standard_normal(1000)
    outside = np.abs(x) > 2.0
    return x[outside][:, None], y[outside]


def truth(x: np.ndarray) -> np.ndarray:
    """The noiseless function of the example."""
    return np.sin(3.0 * x) + 0.3 * np.cos(np.pi * x)


def synthetic(task: Task, data_dir: str | None) -> dict[str, Any]:
    """The example under one method, tested on a grid against the noiseless function; no scaling."""
    X, y = example(task.split)
    grid = np.linspace(-8.0, 8.0, 1000)[:, None]
    Z = np.random.default_rng([task.split, 1]).standard_normal((task.arm.n_inducing, 1))
    rows = ArrayRows(X, y, scaler=Standardiser.identity(1))
    posterior = fitted(task, rows, Z=Z if task.protocol == "paper" else None)
    predictive = posterior.predict(grid, include_noise=True)
    latent = posterior.predict(grid, include_noise=False)
    rng = np.random.default_rng(0)
    return (
        scores(posterior, grid, truth(grid[:, 0]))
        | facts(posterior)
        | {
            "X": X[:, 0],
            "y": y,
            "Z": posterior.Z[:, 0],
            "grid": grid[::4, 0],
            "mean": predictive.mean[::4],
            "sd_y": predictive.sd[::4],
            "sd_f": latent.sd[::4],
            "functions": posterior.predict(grid[::4], include_noise=False).sample_joint(rng, 8),
            "lengthscale": posterior.theta["lengthscale"].ravel()[:2000],
            "noise": posterior.theta["noise"].ravel()[:2000],
        }
    )
