"""What a report says in numbers, as plain rows: lists of dictionaries, in the units of the data."""

from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np

from integrand.metrics import evaluate
from integrand.model import Parameter
from integrand.posterior.posterior import Posterior
from integrand.precision import float64_scope
from integrand.priors import Prior
from integrand.units import unit_factors, unit_text, values, y_text

Row = dict[str, Any]

# Predicting and scoring take time in proportion to the rows; a page does not get better by more of them.
MOST_ROWS = 1_000
# Leave-one-out holds a number for each draw and row.
MOST_LEFT_OUT = 10_000

_MEANINGS = {
    "rmse": "root mean squared error of the predictive mean",
    "nlpd": "negative log predictive density a row, of the mixture over draws",
    "expected_nlpd": "the same, averaged over draws one by one",
    "crps": "continuous ranked probability score",
    "coverage_50": "share of rows inside their 50 % interval",
    "coverage_80": "share of rows inside their 80 % interval",
    "coverage_95": "share of rows inside their 95 % interval",
}

# Phases that do not tell their meaning by their name.
_PHASES = {
    "warm start": "warm start: maximise the bound over θ and Z",
    "metric": "metric: curvature of the posterior at its mode",
    "rounds": "rounds: draw θ, move Z, repeat",
    "final": "final draws",
    "conditional": "factors for predicting",
    "optimise": "optimise θ and Z",
}


@dataclass(frozen=True)
class Entry:
    """One hyperparameter, a number: its draws and its optimised value, in the units of the data, and its prior."""

    name: str
    prior: Prior  # for standardised data
    unit: str
    draws: np.ndarray  # (chain, draw)
    optimum: float
    factor: float  # from standardised to these units
    offset: float

    def quantile(self, p: Any) -> Any:
        """Quantiles of all draws."""
        return np.quantile(self.draws, p)

    def prior_density(self, values: np.ndarray) -> np.ndarray:
        """Density of the prior at values in these units; 0 outside of its support."""
        with float64_scope():
            return self.prior.density((values - self.offset) / self.factor) / self.factor

    @property
    def prior_median(self) -> float:
        """Median of the prior in these units."""
        return self.prior.median * self.factor + self.offset


def entries(posterior: Posterior) -> list[Entry]:
    """Every hyperparameter, in the order of `posterior.model.names`."""
    names, optima, result = posterior.model.names, posterior.theta_optimum, []
    original = posterior.inferred_in_original_units(posterior.theta)
    for p in posterior.model.parameters:
        factor = np.broadcast_to(posterior.unit_factor(p), (p.size,))
        offset = posterior.unit_offset(p)
        draws = original[p.name].reshape(*posterior.chains.x.shape[:2], p.size)
        optimum = optima[p.name].reshape(p.size) * factor + offset
        for i in range(p.size):
            name, unit = names[p.start + i], _unit(posterior, p, i)
            result.append(
                Entry(name, p.prior.entry(i), unit, draws[..., i], float(optimum[i]), float(factor[i]), float(offset))
            )
    return result


def is_sampled(posterior: Posterior) -> bool:
    """Whether there are chains to look at, and not just one optimised point."""
    return posterior.verdict is not None and posterior.chains.n_draws >= 4


def optimum_label(posterior: Posterior) -> str:
    """What the optimised point is: the ML-II point, or for `map` methods the MAP point."""
    return "MAP" if posterior.method in ("map", "gpr-map") else "ML-II"


def relevances(posterior: Posterior) -> list[Row]:
    """Inverse lengthscales in standardised units, the largest first; empty for kernels without one for each column.

    Rows have ``column`` (its number), ``label``, ``optimum`` and ``draws`` (all draws of 1 / lengthscale).
    """
    lengthscales = [p for p in posterior.model.parameters if p.shape and p.name.split(".")[-1] == "lengthscale"]
    rows, optima = [], posterior.theta_optimum
    for p in lengthscales:
        part = p.name.rpartition(".")[0]
        draws = 1.0 / posterior.theta[p.name].reshape(-1, p.size)
        optimum = 1.0 / optima[p.name].reshape(p.size)
        for i, column in enumerate(p.columns):
            label = posterior.model.columns[column] + (f" ({part})" if len(lengthscales) > 1 else "")
            rows.append({"column": column, "label": label, "optimum": float(optimum[i]), "draws": draws[:, i]})
    return sorted(rows, key=lambda row: -float(np.median(row["draws"])))


def relevant_columns(posterior: Posterior, n: int) -> list[int]:
    """Numbers of the `n` most relevant columns; in the order of the data where the kernel does not tell."""
    ranked = [row["column"] for row in relevances(posterior)]
    others = sorted(range(posterior.model.n_columns), key=lambda i: i in posterior.model.levels)  # categories last
    return list(dict.fromkeys([*ranked, *others]))[:n]


def hyperparameters(posterior: Posterior) -> list[Row]:
    """Summary of every hyperparameter.

    Rows have ``name``, ``unit``, ``prior`` (in the units of the data), ``standardised_prior`` and ``optimum``; sampled
    posteriors also ``mean``, ``sd``, ``q5``, ``q50``, ``q95``, ``r_hat``, ``ess_bulk`` and ``ess_tail``.
    """
    rows: list[Row] = []
    convergence = posterior.verdict.convergence if posterior.verdict is not None and is_sampled(posterior) else None
    for i, e in enumerate(entries(posterior)):
        prior = str(e.prior.rescaled(e.factor, e.offset))
        row: Row = {"name": e.name, "unit": e.unit, "prior": prior, "standardised_prior": str(e.prior)}
        row["optimum"] = e.optimum
        if convergence is not None:
            q5, q50, q95 = (float(q) for q in e.quantile([0.05, 0.5, 0.95]))
            row |= {"mean": float(e.draws.mean()), "sd": float(e.draws.std(ddof=1)), "q5": q5, "q50": q50, "q95": q95}
            row |= {"r_hat": float(convergence.r_hat[i]), "ess_bulk": float(convergence.ess_bulk[i])}
            row |= {"ess_tail": float(convergence.ess_tail[i])}
        rows.append(row)
    return rows


def fixed_values(posterior: Posterior) -> list[Row]:
    """What was not inferred: ``name``, ``unit``, ``value`` in the units of the data, and ``standardised``."""
    return [
        {"name": v.name, "unit": v.unit, "value": float(v.original), "standardised": float(v.standardised)}
        for v in values(posterior.model)
        if v.fixed
    ]


def sampler(posterior: Posterior) -> list[Row]:
    """How each chain went: draws, divergences, E-BFMI, mean acceptance, mean steps a draw, last step size."""
    if posterior.verdict is None or not is_sampled(posterior):
        return []
    c = posterior.chains
    return [
        {
            "chain": k + 1,
            "draws": c.n_draws,
            "divergences": int(c.diverging[k].sum()),
            "e_bfmi": float(posterior.verdict.e_bfmi[k]),
            "acceptance": float(c.acceptance[k].mean()),
            "steps": float(c.n_steps[k].mean()),
            "step_size": float(c.step_size[k, -1]),
        }
        for k in range(len(c.x))
    ]


def metrics(posterior: Posterior, X: Any, y: Any, noise_variance: Any = None) -> list[Row]:
    """Scores of the predictions at rows X (T, D), y (T,): ``metric``, ``value``, ``meaning``."""
    predictive = posterior.predict(X, include_noise=True, noise_variance=noise_variance)
    scores = evaluate(predictive.mixture(), np.asarray(y, float))
    return [{"metric": name, "value": value, "meaning": _MEANINGS.get(name, "")} for name, value in scores.items()]


def timings(posterior: Posterior) -> list[Row]:
    """Where the time went: ``phase``, ``seconds``, ``share``."""
    total = sum(posterior.seconds.values()) or 1.0
    return [
        {"phase": _PHASES.get(name, name), "seconds": float(seconds), "share": float(seconds) / total}
        for name, seconds in posterior.seconds.items()
    ]


def settings(posterior: Posterior, given: Any = None) -> list[Row]:
    """What was asked for (`given`: `Settings` or a mapping) and what came of it: ``setting``, ``value``."""
    asked: Row = {**vars(given)} if is_dataclass(given) else dict(given or {})
    made: Row = {
        "method": posterior.method,
        "priors": posterior.model.priors,
        "jitter": ", ".join(f"{k} {v:g}" for k, v in posterior.jitter._asdict().items()),
        "draws kept for predicting": posterior.conditional.n_draws,
        **posterior.counts,
    }
    return [{"setting": str(name), "value": value} for name, value in {**asked, **made}.items()]


def some_rows(X: Any, y: Any, most: int = MOST_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` rows of the data, evenly spaced."""
    X, y = np.asarray(X, float), np.asarray(y, float)
    picked = np.unique(np.linspace(0, len(X) - 1, min(most, len(X))).astype(int))
    return X[picked], y[picked]


def _unit(posterior: Posterior, p: Parameter, i: int) -> str:
    """The unit of entry i in words; empty for a number without one."""
    factors = unit_factors(p.unit, p.columns, posterior.scaler)
    if not p.shape and not np.all(factors == factors[0]):
        return "standardised"
    own = p.columns[0] if len(p.columns) == 1 else p.columns[i] if p.shape else None
    column = "x" if own is None else posterior.model.columns[own]
    return unit_text(p.unit, column, y_text(posterior.model))
