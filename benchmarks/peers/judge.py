"""Judge all packages by one measure: the bound at their θ and Z, ESS, R-hat, accuracy, and agreement of posteriors."""

import math
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.plan import COMMON_JITTER
from benchmarks.peers.rows import Row

SCORES = ("rmse", "nlpd", "coverage_50", "coverage_80", "coverage_95")


def judge(task: str, problem: Path, arrays: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Numbers from the arrays of a worker; empty if it wrote none. ValueError if the run is no result."""
    bound = result.get({"ml2": "bound", "gradient": "value"}.get(task, ""), 0.0)
    if bound is None or not np.isfinite(bound):
        raise ValueError(f"the bound is {bound}")
    if not arrays.exists():
        return {}
    with np.load(problem) as problem_arrays, np.load(arrays) as result_arrays:
        given, reached = dict(problem_arrays), dict(result_arrays)
    out: dict[str, Any] = {}
    if task == "ml2" and "Z" in reached:
        out["referee_bound"] = referee_bound(given, reached)
        if not np.isfinite(out["referee_bound"]):
            raise ValueError(f"the referee's bound is {out['referee_bound']}")
    if "draws" in reached:
        out |= convergence_numbers(reached["draws"])
    if "means" in reached:
        out |= accuracy_numbers(given, reached["means"], reached["variances"])
    return out


def referee_bound(given: dict[str, Any], reached: dict[str, Any]) -> float:
    """This library's L(θ, Z) at the point that a package reached, with the common jitter."""
    from integrand.bounds.collapsed import collapsed_bound
    from integrand.data.dataset import Dataset
    from integrand.gp import GP
    from integrand.kernels import RBF
    from integrand.linalg import Jitter
    from integrand.precision import float64_scope

    with float64_scope():
        import jax.numpy as jnp

        kernel = RBF(lengthscale=jnp.asarray(reached["lengthscale"]), scale=jnp.asarray(reached["scale"]).reshape(()))
        gp = GP(kernel, jnp.asarray(reached["noise"]).reshape(()), jnp.array(0.0))
        data = Dataset.of(given["X"], given["y"])
        return float(collapsed_bound(gp, reached["Z"], data, Jitter(0.0, COMMON_JITTER)))


def convergence_numbers(draws: np.ndarray) -> dict[str, Any]:
    """R-hat and effective sample sizes of draws (chain, draw, parameter), and means of their logs with MCSE.

    Logs, because the scale has a half-Cauchy prior and its mean may not exist.
    """
    from integrand.infer.convergence import convergence

    if not np.all(np.isfinite(draws)):
        raise ValueError("some draws are not finite")
    for k in range(1, len(draws)):
        if any(np.array_equal(draws[k], other) for other in draws[:k]):
            raise ValueError("two chains are the same: they shared a seed")
    logs = np.log(draws)
    numbers = convergence(logs)
    mean, sd = logs.mean(axis=(0, 1)), logs.std(axis=(0, 1), ddof=1)
    return {
        "chains": draws.shape[0],
        "draws": draws.shape[1],
        "ess_bulk": float(numbers.ess_bulk.min()),
        "ess_tail": float(numbers.ess_tail.min()),
        "r_hat": float(numbers.r_hat.max()),
        "log_mean": mean.tolist(),
        "log_sd": sd.tolist(),
        "mcse": mcse_of_means(logs).tolist(),
    }


def mcse_of_means(x: np.ndarray) -> np.ndarray:
    """Monte Carlo standard error of the mean of each parameter, by ArviZ."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        return np.array([float(arviz.mcse(np.ascontiguousarray(x[:, :, p]))) for p in range(x.shape[2])])


def accuracy_numbers(given: dict[str, Any], means: np.ndarray, variances: np.ndarray) -> dict[str, float]:
    """RMSE, NLPD of the mixture and coverages, in the units of y."""
    from integrand.metrics import evaluate
    from integrand.posterior.mixture import GaussianMixture

    sd = float(given["y_sd"])
    mixture = GaussianMixture(means * sd + float(given["y_mean"]), variances * sd**2)
    scores = evaluate(mixture, given["y_test"])
    return {name: scores[name] for name in SCORES}


REFERENCE = "pymc"
MIXED = 1.05  # above this R-hat, ESS and Monte Carlo errors mean nothing
LEAST_P = 0.01  # p of χ²; below it two posteriors disagree


class Agreement(NamedTuple):
    """z of each hyperparameter, and χ² = Σ z² with its p for independent ones."""

    z: list[float]
    chi2: float
    p: float

    @property
    def largest(self) -> float:
        return max(map(abs, self.z))

    @property
    def rms(self) -> float:
        return math.sqrt(self.chi2 / len(self.z))

    def __str__(self) -> str:
        return f"{self.largest:.2f} of {len(self.z)}, χ² {self.chi2:.1f} (p {self.p:.2g})"


def mixed(rows: list[Row]) -> list[Row]:
    """The rows without runs whose chains disagree."""
    return [r for r in rows if not r.get("judged") or r["judged"]["r_hat"] <= MIXED]


def _pooled(rows: list[Row]) -> list[tuple[float, float]]:
    """Mean and Monte Carlo error of each coordinate over independent runs of one posterior."""
    numbers = [r["judged"] for r in rows]
    means = [mean(values) for values in zip(*(n["log_mean"] for n in numbers), strict=True)]
    squares = [sum(s**2 for s in errors) for errors in zip(*(n["mcse"] for n in numbers), strict=True)]
    return [(m, math.sqrt(s) / len(rows)) for m, s in zip(means, squares, strict=True)]


def agreement(rows: list[Row], reference: list[Row]) -> Agreement | None:
    """Agreement of the runs with those of the reference; None if either has no run that mixed."""
    from scipy.stats import chi2

    mine, theirs = mixed(rows), mixed(reference)
    if not mine or not theirs:
        return None
    z = [(m - n) / math.hypot(s, t) for (m, s), (n, t) in zip(_pooled(mine), _pooled(theirs), strict=True)]
    total = sum(v * v for v in z)
    return Agreement(z, total, float(chi2.sf(total, len(z))))
