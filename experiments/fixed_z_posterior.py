"""Print the hyperposterior with Z fixed at the paper's random rows beside the summary of the paper's appendix.

INTEGRAND_DATA=DIR python -m experiments.fixed_z_posterior yacht
"""

import sys
import warnings

import integrand
from experiments.catalogue import SOURCES
from experiments.datasets import load, paper_split
from experiments.measure import hyperparameters
from experiments.paper_numbers import nuts_summary
from integrand.data.scaling import Standardiser

SPLIT = 4  # of the appendix


def main(dataset: str) -> None:
    """Fit, and print our summary beside the one of the appendix."""
    warnings.simplefilter("ignore", integrand.ConvergenceWarning)
    named, rows = load(dataset), SOURCES[dataset].paper_rows
    X, y = named.X[:rows], named.y[:rows]
    split = paper_split(len(y), SPLIT, 100)
    posterior = integrand.fit(
        integrand.ArrayRows(X[split.train], y[split.train], named.feature_names, Standardiser.paper(X, y)),
        method="sgpr-hmc-fixed-z",
        bound="titsias",
        priors="paper",
        Z=X[split.train][split.inducing],
        seed=SPLIT,
    )
    print(posterior.verdict)
    for (name, ours), paper in zip(hyperparameters(posterior).items(), nuts_summary(dataset).values(), strict=True):
        print(f"{name:42} {ours['mean']:7.3f} ({ours['sd']:.3f})   paper {paper['mean']:7.3f} ({paper['sd']:.3f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
