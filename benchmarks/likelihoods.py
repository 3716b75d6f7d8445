"""Classes beside scikit-learn's GaussianProcessClassifier, and the coverage of counts: `make bench-likelihoods`.

Each job is a line of JSON in --out; jobs that are there are not done again.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits, load_iris
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import integrand as ig
from integrand import SparseGPClassifier, fit

LEVELS = (0.5, 0.8, 0.95)
# Sets of counts, rows to fit and to test of each.
SETS, ROWS, TESTED = 60, 60, 5


def classes(name: str) -> dict:
    """Log loss, errors and divergences on half of the rows; digits: 300 rows to fit, 300 to test."""
    X, y = load_digits(return_X_y=True) if name == "digits" else load_iris(return_X_y=True)
    if name == "iris two":
        X, y = X[y < 2], y[y < 2]
    train, test = (300, 300) if name == "digits" else (0.5, 0.5)
    X, X_test, y, y_test = train_test_split(X, y, train_size=train, test_size=test, random_state=0, stratify=y)
    varies = X.std(axis=0) > 0
    X, X_test = X[:, varies], X_test[:, varies]
    began = time.process_time()
    kernel = ig.RBF(ard=False) if name == "digits" else None
    model = SparseGPClassifier(kernel, n_inducing=30, target_ess=100, random_state=0).fit(X, y)
    seconds = time.process_time() - began
    members = getattr(model, "estimators_", [model])
    length = [1.0] * X.shape[1] if name != "digits" else 5.0
    theirs = GaussianProcessClassifier(ConstantKernel(1.0) * RBF(length), random_state=0)
    theirs = make_pipeline(StandardScaler(), theirs).fit(X, y)
    return {
        "job": name,
        "log_loss": log_loss(y_test, model.predict_proba(X_test)),
        "error": float(np.mean(model.predict(X_test) != y_test)),
        "log_loss_sklearn": log_loss(y_test, theirs.predict_proba(X_test)),
        "error_sklearn": float(np.mean(theirs.predict(X_test) != y_test)),
        "divergences": [int(m.posterior_.chains.diverging.sum()) for m in members],
        "trajectories": [int(m.posterior_.chains.n_trajectories) for m in members],
        "ok": [bool(m.diagnostics_.ok) for m in members],
        "cpu_seconds": seconds,
    }


def counts(seed: int) -> dict:
    """Whether central intervals hold new counts; where an interval's end falls on a count, by chance in proportion."""
    rng = np.random.default_rng([32, seed])
    scale, lengthscale, level = rng.uniform(0.3, 1.0), rng.uniform(0.5, 2.0), rng.uniform(0.0, 2.5)
    X = rng.uniform(-2.0, 2.0, (ROWS + TESTED, 1))
    K = scale**2 * np.exp(-0.5 * (X - X.T) ** 2 / lengthscale**2)
    f = level + np.linalg.cholesky(K + 1e-9 * np.eye(len(K))) @ rng.standard_normal(len(K))
    y = rng.poisson(np.exp(f)).astype(float)
    posterior = fit(X[:ROWS], y[:ROWS], likelihood="poisson", n_inducing=15, target_ess=100.0, seed=seed)
    predicted = posterior.predict(X[ROWS:], include_noise=True)
    at, below = predicted.cdf(y[ROWS:]), predicted.cdf(y[ROWS:] - 1.0)
    u = below + rng.uniform(size=TESTED) * (at - below)  # uniform, if the predictions are right
    return {"job": f"counts {seed}", "u": u.tolist(), "ok": bool(posterior.verdict.ok)}


def summary(done: dict) -> str:
    """What the lines of JSON say."""
    lines = []
    for name in ("iris two", "iris", "digits"):
        if name in done:
            d = done[name]
            lines.append(
                f"{name:<9} log loss {d['log_loss']:.4f} (scikit-learn {d['log_loss_sklearn']:.4f}), errors "
                f"{d['error']:.1%} ({d['error_sklearn']:.1%}), {sum(d['divergences'])} of {sum(d['trajectories'])} "
                f"trajectories diverged, {sum(d['ok'])} of {len(d['ok'])} verdicts good, {d['cpu_seconds']:.0f} s"
            )
    u = np.array([d["u"] for name, d in done.items() if name.startswith("counts")])
    if len(u) > 1:
        for level in LEVELS:
            of_sets = (np.abs(u - 0.5) <= level / 2).mean(axis=1)
            error = of_sets.std(ddof=1) / np.sqrt(len(u))
            z = (of_sets.mean() - level) / error
            lines.append(f"counts    {level:.0%} intervals hold {of_sets.mean():.1%} ± {error:.1%} (z = {z:+.1f})")
        lines.append(f"          {len(u)} sets of {TESTED} new counts")
    return "\n".join(lines)


def main() -> None:
    """Do what is not done yet, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/likelihoods.jsonl"))
    parser.add_argument("--sets", type=int, default=SETS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {entry["job"]: entry for entry in map(json.loads, lines)}
    jobs = {name: (classes, name) for name in ("iris two", "iris", "digits")}
    jobs |= {f"counts {k}": (counts, k) for k in range(arguments.sets)}
    warnings.simplefilter("ignore")
    for name, (work, argument) in jobs.items():
        if name not in done:
            done[name] = work(argument)
            with arguments.out.open("a") as stream:
                stream.write(json.dumps(done[name]) + "\n")
    print(summary(done))


if __name__ == "__main__":
    main()
