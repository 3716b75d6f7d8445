"""Re-weight sparse draws to the exact posterior, and hold means and sds against those of `gpr-hmc`.

Each fit is one line of the file that --out names; those that are there are not made again.

    python -m benchmarks.reweighting [--sets yacht,boston] [--inducing 100,200] [--out bench-reweighting.jsonl]
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

import integrand
from experiments.catalogue import SOURCES
from experiments.datasets import load, paper_split
from integrand.data.scaling import Standardiser

# Fits of one set and split share the seed of their split.
SPLIT, DRAWS = 0, 1_000
# Draws of each chain with the exact GP at most.
EXACT_DRAWS = 10_000


def rows_of(name):
    """The training rows of the paper's first split, with the paper's scaling."""
    named, used = load(name), SOURCES[name].paper_rows
    X, y = named.X[:used], named.y[:used]
    train = paper_split(len(y), SPLIT, 100).train
    return X[train], y[train], Standardiser.paper(X, y)


def fit(rows, **options):
    X, y, scaler = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        source = integrand.ArrayRows(X, y, scaler=scaler)
        return integrand.fit(source, predictive_draws=DRAWS, seed=SPLIT, target_ess=1_000, **options)


def moments(posterior):
    """Mean and sd of each φ with their standard errors."""
    x, numbers = posterior.chains.x, posterior.verdict.convergence
    flat = x.reshape(-1, x.shape[2])
    sd, ess = flat.std(axis=0), np.maximum(numbers.ess_bulk, 4.0)
    kurtosis = np.mean((flat - flat.mean(axis=0)) ** 4, axis=0) / sd**4  # long tails make the sd uncertain
    return {
        "mean": flat.mean(axis=0).tolist(),
        "sd": sd.tolist(),
        "mean_se": (sd / np.sqrt(ess)).tolist(),
        "sd_se": (0.5 * sd * np.sqrt((kurtosis - 1.0) / ess)).tolist(),
        "seconds": sum(posterior.seconds.values()),
        "verdict": list(posterior.verdict.codes),
    }


def exact(rows):
    """Moments by `gpr-hmc`."""
    return {"exact": moments(fit(rows, method="gpr-hmc", max_draws=EXACT_DRAWS))}


def sparse(rows, n_inducing):
    """Moments before and after, k̂ in the verdict, or the refusal."""
    posterior = fit(rows, method="sgpr-hmc", bound="tight", n_inducing=n_inducing)
    result = {"sparse": moments(posterior)}
    try:
        weighted = posterior.reweighted(rows[0], rows[1])
    except integrand.UnreliableWeightsError as error:
        return result | {"refused": str(error)}
    said = next(f.sentence for f in weighted.verdict.findings if f.code == "re-weighted")
    return result | {"reweighted": moments(weighted), "said": said, "note": weighted.notes[-1]}


def distances(a, b):
    """Largest difference of means and of sds in combined standard errors."""
    return [
        float(np.max(np.abs(np.subtract(a[k], b[k])) / np.hypot(a[f"{k}_se"], b[f"{k}_se"]))) for k in ("mean", "sd")
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="yacht,boston")
    parser.add_argument("--inducing", default="100,200")
    parser.add_argument("--out", type=Path, default=Path("bench-reweighting.jsonl"))
    given = parser.parse_args()
    lines = map(json.loads, given.out.read_text().splitlines()) if given.out.exists() else ()
    done = {(line["set"], line["m"]): line for line in lines}
    for name in given.sets.split(","):
        for m in [*map(int, given.inducing.split(",")), 0]:  # 0: the exact GP
            if (name, m) not in done:
                result = (
                    sparse(rows_of(name), m)
                    if m
                    else {"exact": moments(fit(rows_of(name), method="gpr-hmc", max_draws=EXACT_DRAWS))}
                )
                done[name, m] = {"set": name, "m": m} | result
                with given.out.open("a") as file:
                    file.write(json.dumps(done[name, m]) + "\n")
        truth = done[name, 0]["exact"]
        for m in map(int, given.inducing.split(",")):
            line = done[name, m]
            before = distances(line["sparse"], truth)
            print(f"{name}, M = {m}: sparse draws differ by {before[0]:.1f} (means) and {before[1]:.1f} (sds) errors")
            if "refused" in line:
                print(f"  refused: {line['refused']}")
            else:
                after = distances(line["reweighted"], truth)
                print(f"  re-weighted: {after[0]:.1f} and {after[1]:.1f}. {line['said']} {line['note']}")


if __name__ == "__main__":
    main()
