"""A fit under a protocol, and what is kept of it."""

import warnings
from typing import Any

import numpy as np

from integrand.errors import ConvergenceWarning
from integrand.experiments.store import Task
from integrand.kernels import RBF
from integrand.methods.fitting import fit
from integrand.metrics import evaluate
from integrand.posterior.posterior import Posterior
from integrand.posterior.predictive import MOST_JOINT_ROWS
from integrand.priors import Gamma, on_variance


def fitted(task: Task, X: np.ndarray, y: np.ndarray, **arguments: Any) -> Posterior:
    """The arm's fit under the protocol. One that Ctrl-C ended is no result."""
    arm = task.arm
    settings = dict(arm.settings) | {"n_inducing": max(arm.n_inducing, 1), "seed": task.split}
    if task.protocol == "paper":
        settings["schedule"] = "paper"
        if arm.method == "joint-hmc":  # the paper's runs had other priors here
            on_both = on_variance(Gamma(2.0, 1.0))
            arguments |= {"kernel": RBF(scale=on_both), "noise": on_both}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the verdict is part of the result
        posterior = fit(X, y, method=arm.method, priors=arm.priors, **settings, **arguments)
    if posterior.verdict is not None and "interrupted" in posterior.verdict.codes:
        raise KeyboardInterrupt
    return posterior


def scores(posterior: Posterior, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """All metrics at the test rows."""
    predictive = posterior.predict(X, include_noise=True)
    joint = predictive.joint_log_density(y) if len(y) <= MOST_JOINT_ROWS else None
    return {"scores": evaluate(predictive.mixture(), y, joint)}


def facts(posterior: Posterior) -> dict[str, Any]:
    """Time, work, verdict, and a summary of each hyperparameter in standardised units."""
    found: dict[str, Any] = {
        "seconds": dict(posterior.seconds),
        "counts": dict(posterior.counts),
        "n_inducing": len(posterior.Z),
        "draws": int(posterior.chains.x.shape[0] * posterior.chains.x.shape[1]),
        "bound": float(posterior.history[-1].bound) if posterior.history else None,
        "hyperparameters": hyperparameters(posterior),
    }
    if posterior.verdict is not None:
        numbers = posterior.verdict.convergence
        found["verdict"] = {
            "ok": posterior.verdict.ok,
            "codes": list(posterior.verdict.codes),
            "r_hat": float(numbers.r_hat.max()),
            "ess_bulk": float(numbers.ess_bulk.min()),
            "ess_tail": float(numbers.ess_tail.min()),
            "divergences": int(posterior.verdict.divergences),
        }
    return found


def hyperparameters(posterior: Posterior) -> dict[str, dict[str, float]]:
    """Mean, sd, 94 % interval and effective sample sizes of each, in the units of standardised data."""
    theta = [posterior.theta[p.name] for p in posterior.model.parameters]  # in the order of the names
    values = np.concatenate([v.reshape(*v.shape[:2], -1) for v in theta], axis=2)
    names = posterior.model.names
    if values.shape[0] * values.shape[1] == 1:
        return {name: {"value": float(v)} for name, v in zip(names, values[0, 0], strict=True)}
    import arviz

    table: Any = arviz.summary({name: values[:, :, i] for i, name in enumerate(names)}, round_to="none")
    kept = {"mean": "mean", "sd": "sd", "hdi_3%": "hdi_3", "hdi_97%": "hdi_97", "mcse_mean": "mcse_mean"}
    kept |= {"ess_bulk": "ess_bulk", "ess_tail": "ess_tail"}
    rows = table.to_dict("index")
    return {name: {new: float(row[old]) for old, new in kept.items()} for name, row in rows.items()}
