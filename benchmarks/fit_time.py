"""Time whole fits in fresh processes: seconds by phase, gradients, convergence and accuracy.

Runs the default `sgpr-hmc` with M = 100 on the paper's data sets, split 0 and scaling, one process after the other.

    python -m benchmarks.fit_time [--data-dir DIR] [--datasets boston,yacht] [--method sgpr-hmc] [--sampler hmc]
                                  [--max-minutes 5] [--seed 0]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

DATASETS = "boston,concrete,energy,winered,yacht"
COLUMNS = "dataset seconds import compile warm rounds final other gradients draws ess_bulk ess_tail r_hat div rmse nlpd"


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("INTEGRAND_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data-dir", default=default, help="directory with the data sets (INTEGRAND_DATA)")
    parser.add_argument("--datasets", default=DATASETS)
    parser.add_argument("--method", default="sgpr-hmc")
    parser.add_argument("--sampler", default="default")
    parser.add_argument("--priors", default="pooled", help="a preset; the default is the library's")
    parser.add_argument("--max-minutes", type=float, default=None, help="of each fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--json", default="", help="also write the rows to this file")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def one_fit(arguments, start: float) -> dict:
    """Fit one data set in this process and return its row."""
    import integrand
    from experiments.catalogue import SOURCES
    from experiments.datasets import load, paper_split
    from integrand.data.scaling import Standardiser
    from integrand.metrics import nlpd, rmse
    from integrand.targets import compile_seconds

    if arguments.sampler == "nuts":
        import nutpie  # noqa: F401  (counted as import time; a fit imports it during its warm start)
    imported = time.time() - start
    named = load(arguments.one, arguments.data_dir)
    rows = SOURCES[arguments.one].paper_rows
    X, y = named.X[:rows], named.y[:rows]
    split = paper_split(len(y), arguments.split)
    posterior = integrand.fit(
        integrand.ArrayRows(X[split.train], y[split.train], named.feature_names, Standardiser.paper(X, y)),
        method=arguments.method,
        priors=arguments.priors,
        seed=arguments.seed,
        sampler=arguments.sampler,
        max_minutes=arguments.max_minutes,
    )
    seconds = time.time() - start
    mixture = posterior.predict(X[split.test], include_noise=True).mixture()
    spent = dict(posterior.seconds)
    compiled = compile_seconds()
    row = {
        "dataset": arguments.one,
        "method": arguments.method,
        "sampler": arguments.sampler,
        "seconds": seconds,
        "import": imported,
        "compile": compiled,
        # Some programs compile during the warm start, so the difference may be zero.
        "warm": max(0.0, sum(spent.get(k, 0.0) for k in ("warm start", "metric", "optimise")) - compiled),
        "rounds": spent.get("rounds", 0.0),
        "final": spent.get("final", 0.0),
        "gradients": posterior.counts["gradients"],
        "draws": posterior.chains.x.shape[0] * posterior.chains.x.shape[1],
        "rmse": rmse(mixture.mean, y[split.test]),
        "nlpd": nlpd(mixture, y[split.test]),
    }
    row["other"] = seconds - sum(row[k] for k in ("import", "compile", "warm", "rounds", "final"))
    if posterior.verdict is not None:
        convergence = posterior.verdict.convergence
        row |= {
            "ess_bulk": float(convergence.ess_bulk.min()),
            "ess_tail": float(convergence.ess_tail.min()),
            "r_hat": float(convergence.r_hat.max()),
            "div": posterior.verdict.divergences,
        }
    return row


def main() -> None:
    os.environ["INTEGRAND_CACHE"] = "off"  # also in the children: compiling counts
    start = time.time()
    arguments = parsed()
    if arguments.one:
        print(json.dumps(one_fit(arguments, start)))
        return
    columns = COLUMNS.split()
    print(" ".join(f"{c:>9}" for c in columns))
    rows = []
    for name in arguments.datasets.split(","):
        command = [sys.executable, "-m", "benchmarks.fit_time", *sys.argv[1:], "--one", name]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            sys.exit(result.stderr.strip())
        rows.append(json.loads(result.stdout.strip().splitlines()[-1]))
        print(" ".join(_cell(c, rows[-1].get(c)) for c in columns), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


def _cell(column: str, value) -> str:
    if value is None or isinstance(value, str):
        return f"{value or '-':>9}"
    digits = (
        0 if isinstance(value, int) or column.startswith("ess") else 3 if column in ("r_hat", "rmse", "nlpd") else 1
    )
    return f"{value:9.{digits}f}"


if __name__ == "__main__":
    main()
