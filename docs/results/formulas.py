"""Joint NLPD of the same draws under several predictive formulas: is that why a number differs from the paper's?

INTEGRAND_DATA=DIR python docs/results/formulas.py concrete 0,1,2

Fits `sgpr-hmc` under the paper's priors and prints, for each split, the mean over draws of the joint NLPD of the test
set. With Λ the noise of the training rows and R the prior covariance of the test rows that Z leaves open:
- vfe: Λ = σ²I, all of R (this library, and the paper's text);
- fitc: Λ = σ²I + diag(Kff - Qff), the diagonal of R alone;
- fitc mean: the same Λ, all of R (how the library that the paper's runs used predicts today);
- dtc: Λ = σ²I, no R.
Last: the log of the mean over draws of the joint density, instead of the mean of the logs.
"""

import sys
import warnings

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

import integrand
from integrand.data.catalogue import SOURCES
from integrand.data.scaling import Standardiser
from integrand.data.sources import load
from integrand.data.splits import paper_split

DRAWS = 100  # as many as the paper's last window has


def rbf(A, B, lengthscale, scale):
    return scale**2 * np.exp(-0.5 * (((A[:, None] - B[None]) / lengthscale) ** 2).sum(axis=-1))


def log_joints(train, y, test, y_test, Z, lengthscale, scale, noise):
    """Log density of the test set under one draw, by formula; standardised units."""
    L = np.linalg.cholesky(rbf(Z, Z, lengthscale, scale) + 1e-8 * scale**2 * np.eye(len(Z)))
    Vf = solve_triangular(L, rbf(Z, train, lengthscale, scale), lower=True)
    Vt = solve_triangular(L, rbf(Z, test, lengthscale, scale), lower=True)
    plain = np.full(len(y), noise**2)
    fitc = plain + np.maximum(scale**2 - (Vf**2).sum(axis=0), 0.0)
    R = rbf(test, test, lengthscale, scale) - Vt.T @ Vt
    diagonal = np.diag(np.diag(R))
    found = {}
    for name, weights, rest in (
        ("vfe", plain, R),
        ("fitc", fitc, diagonal),
        ("fitc mean", fitc, R),
        ("dtc", plain, 0.0 * R),
    ):
        B = np.linalg.cholesky(np.eye(len(Z)) + (Vf / weights) @ Vf.T)
        W = solve_triangular(B, Vt, lower=True)
        mean = W.T @ solve_triangular(B, (Vf / weights) @ y, lower=True)
        root = np.linalg.cholesky(W.T @ W + rest + noise**2 * np.eye(len(test)))
        white = solve_triangular(root, y_test - mean, lower=True)
        found[name] = -0.5 * white @ white - np.log(np.diag(root)).sum() - 0.5 * len(mean) * np.log(2 * np.pi)
    return found


def main(dataset: str, splits: str) -> None:
    warnings.simplefilter("ignore", integrand.ConvergenceWarning)
    named, rows = load(dataset), SOURCES[dataset].paper_rows
    X, y = named.X[:rows], named.y[:rows]
    scaler = Standardiser.paper(X, y)
    xs, ys = scaler.transform_X(X), scaler.transform_y(y)
    for k in map(int, splits.split(",")):
        split = paper_split(len(y), k, 100)
        posterior = integrand.fit(
            X[split.train], y[split.train], method="sgpr-hmc", priors="paper", n_inducing=100, seed=k, scaler=scaler
        )
        theta = {name: v.reshape(-1, *v.shape[2:]) for name, v in posterior.theta.items()}
        chosen = np.linspace(0, len(theta["noise"]) - 1, DRAWS).astype(int)
        data = (xs[split.train], ys[split.train], xs[split.test], ys[split.test], scaler.transform_X(posterior.Z))
        joints = [log_joints(*data, *(theta[name][i] for name in ("lengthscale", "scale", "noise"))) for i in chosen]
        by_formula = {name: np.array([joint[name] for joint in joints]) for name in joints[0]}
        n, unit = len(split.test), np.log(scaler.y_sd)
        print(
            f"{dataset}, split {k}:", ", ".join(f"{a} {unit - v.mean() / n:.3f}" for a, v in by_formula.items()), end=""
        )
        vfe = by_formula["vfe"]
        print(f"; log of the mean density {unit - (logsumexp(vfe) - np.log(len(vfe))) / n:.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
