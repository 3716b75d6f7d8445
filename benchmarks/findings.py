"""How often a fit says what is wrong with its model, and how often it finds fault with a sound one.

Twelve broken situations and twelve sound ones, each with many seeds: small fits whose remarks on the model are counted.
A broken fit counts if the right code is among them, a sound one if there is any. Findings on the draws do not count:
these fits are short. One JSON line per fit; a run that is begun again goes on where it ended.

    python -m benchmarks.findings --out findings.jsonl [--seeds 20] [--only skewed,wrong-kernel]

With --certificate random sparse fits stand beside exact ones: whether `sparse-posterior` is said where θ has moved.

    python -m benchmarks.findings --out findings.jsonl --certificate 100
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from integrand import ExtrapolationWarning, fit
from integrand.infer.verdict import MODEL_CODES
from integrand.kernels import RBF, Linear, Periodic
from integrand.posterior.model_findings import SLACK_SD

# Short fits: the remarks on the model need a few draws of θ, not many.
SETTINGS = {"target_ess": 50.0, "max_draws": 100, "chains": 2, "max_rounds": 3}
Data = tuple[np.ndarray, np.ndarray]


class Situation(NamedTuple):
    """A kind of data with a model that does, or does not, suit it."""

    make: Callable[[np.random.Generator], Data]
    codes: tuple[str, ...] = ()  # of which one is the right one; none for a sound situation
    options: dict[str, Any] = {}  # noqa: RUF012  (of `fit`)
    X_new: Callable[[np.random.Generator], np.ndarray] | None = None  # predicted at


def _inputs(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.uniform(-2.0, 2.0, (n, d))


def _smooth(X: np.ndarray) -> np.ndarray:
    """A smooth function of the first columns."""
    f = np.sin(1.5 * X[:, 0])
    return f + 0.5 * X[:, 1] ** 2 / 2.0 if X.shape[1] > 1 else f


def _regression(n: int, d: int, noise: float = 0.2) -> Callable[[np.random.Generator], Data]:
    def make(rng: np.random.Generator) -> Data:
        X = _inputs(rng, n, d)
        return X, _smooth(X) + noise * rng.standard_normal(n)

    return make


def _with_noise(draw: Callable[[np.random.Generator, np.ndarray], np.ndarray], n: int = 200, d: int = 2):
    def make(rng: np.random.Generator) -> Data:
        X = _inputs(rng, n, d)
        return X, _smooth(X) + draw(rng, X)

    return make


def _wave(rng: np.random.Generator) -> Data:
    X = _inputs(rng, 200, 1)
    return X, np.sin(3.0 * X[:, 0]) + 0.2 * rng.standard_normal(200)


def _fast_wave(rng: np.random.Generator) -> Data:
    X = rng.uniform(0.0, 10.0, (300, 1))
    return X, np.sin(6.0 * X[:, 0]) + 0.1 * rng.standard_normal(300)


def _label_noise(rng: np.random.Generator) -> Data:
    X, y = _regression(200, 2)(rng)
    wrong = rng.choice(200, 16, replace=False)
    y[wrong] = y[rng.permutation(wrong)] + rng.choice([-4.0, 4.0], 16)
    return X, y


def _column_like(spread: float) -> Callable[[np.random.Generator], Data]:
    def make(rng: np.random.Generator) -> Data:
        X, y = _regression(150, 2)(rng)
        return np.column_stack([X, X[:, 0] + spread * rng.standard_normal(150)]), y

    return make


def _autoregressive(rng: np.random.Generator) -> Data:
    X = _inputs(rng, 200, 2)
    e = np.zeros(200)
    for i in range(1, 200):
        e[i] = 0.8 * e[i - 1] + 0.3 * rng.standard_normal()
    return X, _smooth(X) + e


def _series(rng: np.random.Generator) -> Data:
    t = np.arange(200.0)[:, None] / 20.0
    return t, np.sin(t[:, 0]) + 0.2 * rng.standard_normal(200)


def _cycle(rng: np.random.Generator) -> Data:
    t = np.sort(rng.uniform(0.0, 10.0, 200))[:, None]
    return t, np.sin(2.0 * np.pi * t[:, 0]) + 0.2 * rng.standard_normal(200)


def _prior_draw(rng: np.random.Generator) -> Data:
    """A function from the prior of the kernel that is fitted."""
    X = _inputs(rng, 150, 2)
    K = np.exp(-0.5 * np.sum((X[:, None] - X[None]) ** 2, axis=2) / 0.8**2) + 1e-9 * np.eye(150)
    return X, np.linalg.cholesky(K) @ rng.standard_normal(150) + 0.2 * rng.standard_normal(150)


def _line(rng: np.random.Generator) -> Data:
    X = _inputs(rng, 150, 3)
    return X, X @ np.array([1.0, -0.5, 0.0]) + 0.3 * rng.standard_normal(150)


def _correlated(rng: np.random.Generator) -> Data:
    X, y = _regression(150, 2)(rng)
    return np.column_stack([X, 0.9 * X[:, 0] + 0.5 * rng.standard_normal(150)]), y


def _discrete(rng: np.random.Generator) -> Data:
    X = np.column_stack([rng.integers(0, 4, 200), rng.uniform(-2.0, 2.0, 200)]).astype(float)
    return X, X[:, 0] + np.sin(1.5 * X[:, 1]) + 0.2 * rng.standard_normal(200)


def _stuck(rng: np.random.Generator) -> Data:
    return _regression(200, 1)(rng)


FAR_AWAY = np.linspace(60.0, 61.0, 12)[:, None]

SITUATIONS = {
    # broken
    "wrong-kernel": Situation(_wave, ("missed-structure",), {"kernel": Linear()}),
    "small-m": Situation(_fast_wave, ("sparse-posterior", "few-inducing", "missed-structure"), {"n_inducing": 8}),
    "heavy-tails": Situation(
        _with_noise(lambda rng, X: 0.2 * rng.standard_t(2.5, len(X))), ("heavy-tails", "outliers")
    ),
    "heteroscedastic": Situation(
        _with_noise(lambda rng, X: np.exp(0.8 * X[:, 0] - 1.5) * rng.standard_normal(len(X))), ("heteroscedastic",)
    ),
    "skewed": Situation(_with_noise(lambda rng, X: 0.3 * rng.exponential(size=len(X))), ("skewed",)),
    "duplicated-column": Situation(_column_like(0.0), ("duplicate-columns",)),
    "extrapolation": Situation(
        _regression(150, 2), ("extrapolation",), X_new=lambda rng: _inputs(rng, 100, 2) * np.array([4.0, 1.0])
    ),
    "autocorrelated": Situation(_autoregressive, ("autocorrelated",)),
    "label-noise": Situation(_label_noise, ("outliers", "heavy-tails")),
    "tiny-n": Situation(_regression(10, 2), ("few-rows",), {"n_inducing": 10}),
    "near-collinear": Situation(_column_like(0.05), ("collinear-columns",)),
    "stuck-z": Situation(_stuck, ("inducing-stuck",), {"Z": FAR_AWAY, "method": "sgpr-hmc-fixed-z"}),
    # sound
    "one-column": Situation(_regression(100, 1)),
    "two-columns": Situation(_regression(200, 2)),
    "five-columns": Situation(_regression(200, 5)),
    "more-rows": Situation(_regression(400, 2), options={"n_inducing": 60}),
    "few-rows-one-column": Situation(_regression(40, 1), options={"n_inducing": 20}),
    "little-noise": Situation(_regression(150, 2, noise=0.02), options={"n_inducing": 60}),
    "much-noise": Situation(_regression(200, 2, noise=1.0)),
    "time-series": Situation(_series),
    "cycle": Situation(_cycle, options={"kernel": Periodic(period=1.0)}),
    "line": Situation(_line, options={"kernel": Linear() + RBF()}),
    "correlated-columns": Situation(_correlated),
    "whole-numbers": Situation(_discrete, X_new=lambda rng: _discrete(rng)[0]),
}


def one(name: str, seed: int) -> dict[str, Any]:
    """Fit one situation with one seed: its remarks on the model, and what they cost."""
    situation = SITUATIONS[name]
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    X, y = situation.make(rng)
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = fit(X, y, seed=seed, **({"n_inducing": 40} | situation.options | SETTINGS))
        if situation.X_new is not None:
            posterior.predict(situation.X_new(rng), include_noise=True)
    assert posterior.verdict is not None
    codes = [code for code in posterior.verdict.codes if code in MODEL_CODES]
    codes += ["extrapolation"] * any(issubclass(w.category, ExtrapolationWarning) for w in caught)
    sparseness = posterior.sparseness
    return {
        "situation": name,
        "seed": seed,
        "codes": codes,
        "cpu_seconds": round(time.process_time() - began, 3),
        "checks_seconds": round(posterior.seconds.get("checks", 0.0), 3),
        "sparseness": None if sparseness is None else [str(v) for v in sparseness],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Hits and false alarms by situation, and the totals."""
    lines, hits, broken, alarms, sound = [], 0, 0, 0, 0
    for name, situation in SITUATIONS.items():
        own = [row for row in rows if row["situation"] == name]
        if not own:
            continue
        right = sum(bool(set(row["codes"]) & set(situation.codes)) for row in own)
        some = sum(bool(row["codes"]) for row in own)
        others = sorted({code for row in own for code in row["codes"]} - set(situation.codes))
        if situation.codes:
            hits, broken = hits + right, broken + len(own)
            lines.append(f"{name:<22} {right:>3} of {len(own):<3} {' or '.join(situation.codes)}; also {others}")
        else:
            alarms, sound = alarms + some, sound + len(own)
            lines.append(f"{name:<22} {some:>3} of {len(own):<3} with any finding: {others}")
    lines.append(f"the right code in {hits} of {broken} broken fits; a finding in {alarms} of {sound} sound ones")
    return "\n".join(lines)


# ---- the cost of inducing points, against the exact posterior


def certificate(seed: int) -> dict[str, Any]:
    """One random sparse fit and the exact one: spreads of gain and slack, and how far means of φ are moved."""
    rng = np.random.default_rng([seed, 7])
    n, d, m = (int(rng.choice(sizes)) for sizes in ((60, 120), (1, 2), (5, 8, 12, 20, 40)))  # few, as each is compiled
    X = _inputs(rng, n, d)
    y = np.sin(rng.uniform(1.0, 4.0) * X[:, 0]) + 0.5 * X[:, -1] + rng.uniform(0.05, 0.6) * rng.standard_normal(n)
    settings = SETTINGS | {"target_ess": 200.0, "max_draws": 400}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = fit(X, y, seed=seed, n_inducing=m, **settings)
        exact = fit(X, y, seed=seed, method="gpr-hmc", **settings)
    s = sparse.sparseness
    assert s is not None
    assert sparse.verdict is not None
    draws, truth = (p.chains.x.reshape(-1, p.model.n_theta) for p in (sparse, exact))
    return {
        "seed": seed,
        "n": n,
        "d": d,
        "m": m,
        "gain_sd": s.gain_sd,
        "slack_sd": s.slack_sd,
        "found": "sparse-posterior" in sparse.verdict.codes,
        "moved": float(np.max(np.abs(draws.mean(axis=0) - truth.mean(axis=0)) / truth.std(axis=0))),
    }


def certificate_table(rows: list[dict[str, Any]]) -> str:
    """Correlation of the spreads, and how often the finding fires by how far the posterior is moved."""
    gain, slack = (np.array([row[name] for row in rows]) for name in ("gain_sd", "slack_sd"))
    lines = [
        f"{len(rows)} fits: the sd of the gain and the sd of the slack have correlation "
        f"{np.corrcoef(gain, slack)[0, 1]:.2f}, their logarithms "
        f"{np.corrcoef(np.log(gain + 1e-3), np.log(slack + 1e-3))[0, 1]:.2f}"
    ]
    said, true = gain > SLACK_SD, slack > SLACK_SD
    hits, misses, alarms = int(np.sum(said & true)), int(np.sum(~said & true)), int(np.sum(said & ~true))
    lines.append(f"sd of the gain above {SLACK_SD}: {hits} hits, {misses} misses, {alarms} false, by that of the slack")
    moved, found = np.array([row["moved"] for row in rows]), np.array([row["found"] for row in rows])
    far, near = moved > 1.0, moved <= 0.25
    for label, some in (("above 1 sd", far), ("in between", ~far & ~near), ("below 0.25 sd", near)):
        lines.append(f"a mean of φ moved {label}: sparse-posterior in {int(found[some].sum())} of {int(some.sum())}")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("findings.jsonl"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default=",".join(SITUATIONS))
    parser.add_argument("--certificate", type=int, default=0, help="this many random fits, each beside the exact one")
    arguments = parser.parse_args()
    kept = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    rows = [row for row in kept if ("situation" in row) == (arguments.certificate == 0)]
    done = {(row.get("situation"), row["seed"]) for row in rows}
    jobs = [(name, seed) for seed in range(arguments.seeds) for name in arguments.only.split(",")]
    if arguments.certificate:
        jobs = [(None, seed) for seed in range(arguments.certificate)]
    with arguments.out.open("a") as file:
        for name, seed in jobs:
            if (name, seed) not in done:
                rows.append(certificate(seed) if name is None else one(name, seed))
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    print(certificate_table(rows) if arguments.certificate else table(rows))


if __name__ == "__main__":
    main()
