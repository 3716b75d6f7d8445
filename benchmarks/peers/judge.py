"""What the driver adds to a worker's row, by one measure for all: the bound at its θ and Z, ESS, R-hat, accuracy."""

from pathlib import Path
from typing import Any

import numpy as np
from plan import COMMON_JITTER

SCORES = ("rmse", "nlpd", "coverage_50", "coverage_80", "coverage_95")


def judged(task: str, problem: Path, arrays: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Numbers from the arrays that a worker wrote, none if it wrote none; ValueError for a run that is no result."""
    bound = result.get({"ml2": "bound", "gradient": "value"}.get(task, ""), 0.0)
    if bound is None or not np.isfinite(bound):
        raise ValueError(f"the bound is {bound}")
    if not arrays.exists():
        return {}
    with np.load(problem) as given, np.load(arrays) as found:
        given, found = dict(given), dict(found)
    out: dict[str, Any] = {}
    if task == "ml2" and "Z" in found:
        out["referee_bound"] = referee_bound(given, found)
        if not np.isfinite(out["referee_bound"]):
            raise ValueError(f"the referee's bound is {out['referee_bound']}")
    if "draws" in found:
        out |= convergence_numbers(found["draws"])
    if "means" in found:
        out |= accuracy_numbers(given, found["means"], found["variances"])
    return out


def referee_bound(given: dict[str, Any], found: dict[str, Any]) -> float:
    """L(θ, Z) of this library at the point that a peer reached, with the jitter that the bounds are compared at."""
    from integrand.bounds.collapsed import collapsed_bound
    from integrand.data.dataset import Dataset
    from integrand.gp import GP
    from integrand.kernels import RBF
    from integrand.linalg import Jitter
    from integrand.precision import float64_scope

    with float64_scope():
        import jax.numpy as jnp

        kernel = RBF(lengthscale=jnp.asarray(found["lengthscale"]), scale=jnp.asarray(found["scale"]).reshape(()))
        gp = GP(kernel, jnp.asarray(found["noise"]).reshape(()), jnp.array(0.0))
        data = Dataset.of(given["X"], given["y"])
        return float(collapsed_bound(gp, found["Z"], data, Jitter(0.0, COMMON_JITTER)))


def convergence_numbers(draws: np.ndarray) -> dict[str, Any]:
    """R-hat and effective sample sizes of draws (chain, draw, parameter), and of the logs their means with MCSE.

    Logs, since the scale has a half-Cauchy prior: its own mean may not exist.
    """
    from integrand.infer.diagnostics import convergence

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
    """Rmse, nlpd of the mixture and coverages, in the units of y."""
    from integrand.metrics import evaluate
    from integrand.posterior.mixture import GaussianMixture

    sd = float(given["y_sd"])
    mixture = GaussianMixture(means * sd + float(given["y_mean"]), variances * sd**2)
    scores = evaluate(mixture, given["y_test"])
    return {name: scores[name] for name in SCORES}
