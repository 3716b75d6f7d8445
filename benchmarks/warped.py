"""Transforms of the target beside the plain model, on paired splits: `make bench-warped`.

Sets: `concrete` (the paper's, from --data-dir), and `skewed`, whose square root is a Gaussian process with noise, so
that of the transforms Box-Cox alone has the answer. Each split is 90 % of the rows to fit and 10 % to test; the numbers
are differences to the plain model, means over test rows. Each fit is a line of JSON in --out; what is there is not done
again.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np

from integrand import fit
from integrand.metrics import evaluate

TRANSFORMS = ("plain", "log", "box-cox", "sinh-arcsinh")
SKEWED_ROWS = 200


def skewed(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of y = (4 + f + ε)², which is positive and skewed."""
    rng = np.random.default_rng([32, k])
    X = rng.uniform(-3.0, 3.0, (SKEWED_ROWS, 2))
    f = 1.5 * np.sin(1.5 * X[:, 0]) + np.cos(X[:, 1])
    return X, (np.maximum(4.0 + f + 0.6 * rng.standard_normal(SKEWED_ROWS), 0.1)) ** 2


def rows(name: str, k: int, directory: str | None) -> tuple[np.ndarray, np.ndarray]:
    """All rows of a set; `skewed` is another one for each split."""
    if name == "skewed":
        return skewed(k)
    from experiments.datasets import load

    data = load(name, directory)
    return data.X, data.y


def one(name: str, k: int, transform: str, directory: str | None) -> dict:
    """Scores of one fit on the test rows of a split."""
    X, y = rows(name, k, directory)
    order = np.random.default_rng([7, k]).permutation(len(y))
    test, train = np.split(order, [len(y) // 10])
    began = time.process_time()
    given = None if transform == "plain" else transform
    settings = {"n_inducing": 30 if name == "skewed" else 50, "target_ess": 100.0, "max_rounds": 2, "max_draws": 1_000}
    posterior = fit(X[train], y[train], target_transform=given, seed=k, **settings)
    verdict = posterior.verdict
    assert verdict is not None
    scores = evaluate(posterior.predict(X[test], include_noise=True).mixture(), y[test])
    return {
        "job": f"{name} {k} {transform}",
        "set": name,
        "split": k,
        "transform": transform,
        "scores": scores,
        "codes": list(verdict.codes),
        "ok": verdict.ok,
        "cpu_seconds": time.process_time() - began,
    }


def summary(done: dict) -> str:
    """Means over splits, and paired differences to the plain model with their standard errors."""
    lines = [
        f"{'set':<10} {'transform':<13} {'splits':>6} {'nlpd':>8} {'- plain':>18} {'crps - plain':>20} {'95 %':>6}"
    ]
    for name in dict.fromkeys(d["set"] for d in done.values()):
        of = {
            t: {d["split"]: d["scores"] for d in done.values() if (d["set"], d["transform"]) == (name, t)}
            for t in TRANSFORMS
        }
        for t in TRANSFORMS:
            both = sorted(of[t].keys() & of["plain"].keys())
            if not both:
                continue
            cells = []
            for score in ("nlpd", "crps"):
                d = np.array([of[t][k][score] - of["plain"][k][score] for k in both])
                error = d.std(ddof=1) / np.sqrt(len(d)) if len(d) > 1 else np.nan
                cells.append("-" if t == "plain" else f"{d.mean():+.4f} ± {error:.4f}")
            nlpd, inside = (np.mean([of[t][k][score] for k in both]) for score in ("nlpd", "coverage_95"))
            lines.append(f"{name:<10} {t:<13} {len(both):6d} {nlpd:8.4f} {cells[0]:>18} {cells[1]:>20} {inside:6.1%}")
    suggested = [
        d for d in done.values() if d["transform"] == "plain" and {"skewed", "heteroscedastic"} & set(d["codes"])
    ]
    plain = sum(d["transform"] == "plain" for d in done.values())
    lines.append(f"{len(suggested)} of {plain} verdicts on the plain model suggest a transform.")
    bad = [d["job"] for d in done.values() if not d["ok"]]
    return "\n".join([*lines, f"Not converged: {', '.join(bad)}." if bad else "All converged."])


def main() -> None:
    """Do what is not done yet, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/warped.jsonl"))
    parser.add_argument("--data-dir", default=os.environ.get("INTEGRAND_DATA"))
    parser.add_argument("--sets", default="skewed,concrete")
    parser.add_argument("--transforms", default=",".join(TRANSFORMS))
    parser.add_argument("--splits", type=int, default=10)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {entry["job"]: entry for entry in map(json.loads, lines)}
    warnings.simplefilter("ignore")
    for name in arguments.sets.split(","):
        for k in range(arguments.splits):
            for transform in arguments.transforms.split(","):
                if f"{name} {k} {transform}" not in done:
                    result = one(name, k, transform, arguments.data_dir)
                    done[result["job"]] = result
                    with arguments.out.open("a") as stream:
                        stream.write(json.dumps(result) + "\n")
    print(summary(done))


if __name__ == "__main__":
    main()
