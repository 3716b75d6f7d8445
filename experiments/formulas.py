"""Compare the joint NLPD of the same draws under several predictive formulas.

It answers whether the formula explains a difference to the paper's number.

INTEGRAND_DATA=DIR python -m experiments.formulas concrete 0,1,2

Fits `sgpr-hmc` under the paper's priors and prints, for each split, the mean over draws of the joint NLPD of the test
set. With Λ the noise of the training rows and R the prior covariance of the test rows given u:
- vfe: Λ = σ²I, all of R (this library, and the paper's text);
- fitc: Λ = σ²I + diag(Kff - Qff), the diagonal of R alone;
- fitc mean: the same Λ, all of R (the predictions of the library of the paper's runs, in its current version);
- dtc: Λ = σ²I, no R.
Last: the log of the mean over draws of the joint density, instead of the mean of the logs.
"""

import sys
import warnings

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

import integrand
from experiments.catalogue import SOURCES
from experiments.datasets import load, paper_split
from integrand.data.scaling import Standardiser

DRAWS = 100  # the number in the last window of the paper's runs


def rbf(A, B, lengthscale, scale):
    """The covariance of the rows of A and B."""
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
    joint = {}
    for name, noise_variance, rest in (
        ("vfe", plain, R),
        ("fitc", fitc, diagonal),
        ("fitc mean", fitc, R),
        ("dtc", plain, 0.0 * R),
    ):
        B = np.linalg.cholesky(np.eye(len(Z)) + (Vf / noise_variance) @ Vf.T)
        W = solve_triangular(B, Vt, lower=True)
        mean = W.T @ solve_triangular(B, (Vf / noise_variance) @ y, lower=True)
        root = np.linalg.cholesky(W.T @ W + rest + noise**2 * np.eye(len(test)))
        white = solve_triangular(root, y_test - mean, lower=True)
        joint[name] = -0.5 * white @ white - np.log(np.diag(root)).sum() - 0.5 * len(mean) * np.log(2 * np.pi)
    return joint


def main(dataset: str, splits: str) -> None:
    """Fit each split and print the joint NLPD by formula."""
    warnings.simplefilter("ignore", integrand.ConvergenceWarning)
    named, rows = load(dataset), SOURCES[dataset].paper_rows
    X, y = named.X[:rows], named.y[:rows]
    scaler = Standardiser.paper(X, y)
    xs, ys = scaler.transform_X(X), scaler.transform_y(y)
    for k in map(int, splits.split(",")):
        split = paper_split(len(y), k, 100)
        train = integrand.ArrayRows(X[split.train], y[split.train], scaler=scaler)
        posterior = integrand.fit(train, method="sgpr-hmc", priors="paper", bound="titsias", n_inducing=100, seed=k)
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
