"""The demonstration: an embedded data set, ML-II beside integration, a verdict, and a report."""

from pathlib import Path
from typing import Any

import numpy as np

from integrand.cli.compare import answer, random_split
from integrand.data.sources import ArrayRows
from integrand.errors import InputError
from integrand.methods.fit import fit
from integrand.metrics import evaluate


def run_demo(out: Path, quick: bool) -> None:
    """Fit scikit-learn's diabetes data both ways, compare out of sample, and write model and report to `out`."""
    from sklearn.datasets import load_diabetes

    from integrand.report import write_report
    from integrand.storage.model_file import save_model

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made: {error.strerror or error}") from error
    source: Any = load_diabetes(scaled=False)
    X, y, columns = np.asarray(source.data), np.asarray(source.target), list(source.feature_names)
    split = random_split(len(y), 0.25, seed=0)
    train, test = (X[split.train], y[split.train]), (X[split.test], y[split.test])
    m, target_ess = (30, 100) if quick else (60, 400)
    print(
        f"Diabetes progression: {len(train[1])} rows to fit, {len(test[1])} to test, {len(columns)} columns, M = {m}.\n"
    )

    scores, densities, posteriors = {}, {}, {}
    for method, label in (("ml2", "optimise (ml2)"), ("sgpr-hmc", "integrate (sgpr-hmc)")):
        posterior = fit(ArrayRows(*train, columns), method=method, n_inducing=m, target_ess=target_ess, progress=True)
        predictive = posterior.predict(test[0], include_noise=True)
        scores[label] = evaluate(predictive.mixture(), test[1])
        densities[method] = predictive.log_density(test[1])
        posteriors[method] = posterior
    print(f"\n{'':<22} {'rmse':>8} {'nlpd':>8} {'crps':>8} {'95 % intervals hold':>20}")
    for label, s in scores.items():
        print(f"{label:<22} {s['rmse']:8.2f} {s['nlpd']:8.3f} {s['crps']:8.2f} {s['coverage_95']:>19.0%}")
    difference = densities["ml2"] - densities["sgpr-hmc"]  # of -log density: below zero, integrating is better
    error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
    print("\n" + answer("ml2", "sgpr-hmc", float(difference.mean()), error))
    print(f"\n{posteriors['sgpr-hmc'].verdict}\n")
    save_model(
        posteriors["sgpr-hmc"],
        out / "diabetes.integrand",
        feature_ranges=np.stack([train[0].min(axis=0), train[0].max(axis=0)], axis=1),
        target_name="progression",
    )
    write_report(
        out / "report.html",
        posteriors["sgpr-hmc"],
        data=test,
        held_out=True,
        title="Diabetes progression",
        target="progression",
        n_rows=len(train[1]),
    )
    print(f"Model:  {out / 'diabetes.integrand'}\nReport: {out / 'report.html'} (open it in a browser)")
    print("For a table of your own: integrand compare data.csv --target y")
