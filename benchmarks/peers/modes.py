"""Find the modes of a hyperposterior at the benchmark's Z, and their masses by Laplace's approximation.

Where chains end in different modes, R-hat does not say which modes matter. Their masses do:

    python -m benchmarks.peers.modes energy [--starts 16]
"""

import argparse
import os
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from benchmarks.peers.plan import COMMON_JITTER
from benchmarks.peers.problems import problem_file

HERE = Path(__file__).resolve().parent

# Modes whose log hyperparameters all differ by less than this are the same.
_SAME = 0.2


def target_of(problem, data_dir):
    """The negative log density of φ with its gradient at fixed Z, and a function that draws wide starts."""
    from integrand.data.dataset import Dataset, block_rows_for
    from integrand.kernels import RBF
    from integrand.linalg import Jitter
    from integrand.model import Model
    from integrand.targets import CollapsedTarget

    with np.load(problem_file(problem, HERE / ".work" / "problems", data_dir)) as arrays:
        X, y, Z = arrays["X"], arrays["y"], arrays["Z"]
    model = Model(RBF(), X.shape[1], priors="paper")
    target = CollapsedTarget(model, Dataset.of(X, y, block_rows_for(len(Z))), Jitter(0.0, COMMON_JITTER))

    def loss(phi):
        evaluation = target.evaluate(phi, Z)
        good = np.isfinite(evaluation.log_density)
        return (-evaluation.log_density, -evaluation.gradient) if good else (1e10, np.zeros_like(phi))

    def start(rng):
        lengthscale = rng.gamma(2.0, 1.0, X.shape[1]) * np.exp(rng.standard_normal(X.shape[1]))
        scale, noise = np.exp(rng.normal(0.0, 1.0)), np.exp(rng.normal(-2.0, 1.0))
        return model.unconstrained({"lengthscale": lengthscale, "scale": scale, "noise": noise})

    return loss, start


def mode_from(loss, phi, step=1e-4):
    """Log mass, log density and location of the mode that L-BFGS reaches from φ."""
    optimum = minimize(loss, phi, jac=True, method="L-BFGS-B", options={"maxiter": 400, "gtol": 1e-4})
    rows = [(loss(optimum.x + d)[1] - loss(optimum.x - d)[1]) / (2.0 * step) for d in step * np.eye(len(phi))]
    curvature = np.linalg.eigvalsh(0.5 * (np.array(rows) + np.array(rows).T))
    volume = 0.5 * len(phi) * np.log(2.0 * np.pi) - 0.5 * np.sum(np.log(np.maximum(curvature, 1e-3)))
    return -optimum.fun + volume, -optimum.fun, optimum.x


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--starts", type=int, default=16)
    parser.add_argument("--data-dir", default=os.environ.get("INTEGRAND_DATA"))
    arguments = parser.parse_args()

    from integrand.compilation import one_blas_thread

    loss, start = target_of(f"{arguments.dataset}-0", arguments.data_dir)
    rng, modes = np.random.default_rng(0), []
    with one_blas_thread():
        ends = sorted((mode_from(loss, start(rng)) for _ in range(arguments.starts)), key=lambda mode: -mode[0])
    for mass, value, phi in ends:
        same = next((m for m in modes if np.abs(m["phi"] - phi).max() < _SAME), None)
        if same is None:
            modes.append({"mass": mass, "value": value, "phi": phi, "starts": 1})
        else:
            same["starts"] += 1
    for mode in modes:
        place = " ".join(f"{v:.2f}" for v in mode["phi"])
        less, starts = mode["mass"] - modes[0]["mass"], mode["starts"]
        print(f"log mass {less:8.2f}  log density {mode['value']:9.2f}  starts {starts:3d}  log θ {place}")


if __name__ == "__main__":
    main()
