"""Fit under a protocol, and the numbers of a fit that a result holds."""

import warnings
from typing import Any

import numpy as np

from experiments.store import Task
from integrand.data.sources import ArrayRows
from integrand.errors import ConvergenceWarning
from integrand.kernels import RBF
from integrand.methods.fit import fit
from integrand.methods.table import METHODS
from integrand.metrics import evaluate
from integrand.posterior.posterior import Posterior
from integrand.posterior.predictive import MAX_JOINT_ROWS
from integrand.priors import Gamma, on_variance, standardised


def fitted(task: Task, rows: ArrayRows, **arguments: Any) -> Posterior:
    """Fit an arm under the protocol; a fit that Ctrl-C ended raises KeyboardInterrupt again."""
    arm = task.arm
    settings = dict(arm.settings) | {"n_inducing": max(arm.n_inducing, 1), "seed": task.split}
    if METHODS[arm.method].collapsed:
        settings["bound"] = arm.bound or "titsias"
    if task.protocol == "paper":
        settings["schedule"] = "paper"
        if arm.method == "joint-hmc":  # the paper's runs of JointHMC had other priors
            on_both = standardised(on_variance(Gamma(2.0, 1.0)))
            arguments |= {"kernel": RBF(scale=on_both), "noise": on_both}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the verdict is part of the result
        posterior = fit(rows, method=arm.method, priors=arm.priors, **settings, **arguments)
    if posterior.verdict is not None and "interrupted" in posterior.verdict.codes:
        raise KeyboardInterrupt
    return posterior


def scores(posterior: Posterior, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """All metrics on the test rows."""
    predictive = posterior.predict(X, include_noise=True)
    joint = predictive.joint_log_density(y) if len(y) <= MAX_JOINT_ROWS else None
    return {"scores": evaluate(predictive.mixture(), y, joint)}


def facts(posterior: Posterior) -> dict[str, Any]:
    """Seconds, counts, verdict, and a summary of each hyperparameter in standardised units."""
    numbers: dict[str, Any] = {
        "seconds": dict(posterior.seconds),
        "counts": dict(posterior.counts),
        "n_inducing": len(posterior.Z),
        "draws": int(posterior.chains.x.shape[0] * posterior.chains.x.shape[1]),
        "bound": float(posterior.history[-1].bound) if posterior.history else None,
        "hyperparameters": hyperparameters(posterior),
    }
    if posterior.verdict is not None:
        convergence = posterior.verdict.convergence
        numbers["verdict"] = {
            "ok": posterior.verdict.ok,
            "codes": list(posterior.verdict.codes),
            "r_hat": float(convergence.r_hat.max()),
            "ess_bulk": float(convergence.ess_bulk.min()),
            "ess_tail": float(convergence.ess_tail.min()),
            "divergences": int(posterior.verdict.divergences),
        }
    return numbers


def hyperparameters(posterior: Posterior) -> dict[str, dict[str, float]]:
    """Mean, sd, 94 % interval and effective sample sizes of each, in the units of standardised data."""
    theta = [posterior.theta[p.name] for p in posterior.model.parameters]  # in the order of `model.names`
    values = np.concatenate([v.reshape(*v.shape[:2], -1) for v in theta], axis=2)
    names = posterior.model.names
    if values.shape[0] * values.shape[1] == 1:
        return {name: {"value": float(v)} for name, v in zip(names, values[0, 0], strict=True)}
    import arviz

    draws = {name: values[:, :, i] for i, name in enumerate(names)}
    if arviz.__version__.startswith("0."):
        interval = ("hdi_3%", "hdi_97%")
        table: Any = arviz.summary(draws, round_to="none", hdi_prob=0.94)
    else:
        interval = ("hdi94_lb", "hdi94_ub")
        table = arviz.summary(draws, round_to="none", ci_kind="hdi", ci_prob=0.94)  # pyright: ignore[reportCallIssue]
    same = ("mean", "sd", "mcse_mean", "ess_bulk", "ess_tail")
    columns = dict(zip((*interval, *same), ("hdi_3", "hdi_97", *same), strict=True))
    rows = table.to_dict("index")
    return {name: {new: float(row[old]) for old, new in columns.items()} for name, row in rows.items()}
