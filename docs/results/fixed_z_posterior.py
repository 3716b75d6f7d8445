"""Hyperposterior with Z fixed at the paper's random rows, beside the appendix's summary: which run was printed there?

INTEGRAND_DATA=DIR python docs/results/fixed_z_posterior.py yacht
"""

import sys
import warnings

import integrand
from integrand.data.catalogue import SOURCES
from integrand.data.scaling import Standardiser
from integrand.data.sources import load
from integrand.data.splits import paper_split
from integrand.experiments.measure import hyperparameters
from integrand.experiments.paper_numbers import nuts_summary

SPLIT = 4  # of the appendix


def main(dataset: str) -> None:
    warnings.simplefilter("ignore", integrand.ConvergenceWarning)
    named, rows = load(dataset), SOURCES[dataset].paper_rows
    X, y = named.X[:rows], named.y[:rows]
    split = paper_split(len(y), SPLIT, 100)
    posterior = integrand.fit(
        X[split.train],
        y[split.train],
        method="sgpr-hmc-fixed-z",
        priors="paper",
        columns=named.feature_names,
        scaler=Standardiser.paper(X, y),
        Z=X[split.train][split.inducing],
        seed=SPLIT,
    )
    print(posterior.verdict)
    for (name, ours), paper in zip(hyperparameters(posterior).items(), nuts_summary(dataset).values(), strict=True):
        print(f"{name:42} {ours['mean']:7.3f} ({ours['sd']:.3f})   paper {paper['mean']:7.3f} ({paper['sd']:.3f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
