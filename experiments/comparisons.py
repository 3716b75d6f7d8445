"""Print the comparisons that docs/evidence/paper.md cites and that no table has, from the published results.

python -m experiments.comparisons
"""

import math
from pathlib import Path

import numpy as np

from experiments.store import Store
from experiments.suite_results import Results
from experiments.suites import SUITES
from results.read import read

STORE = Store(Path("reproduce"), read("paper"))
UCI, PAPER = (Results.read(STORE, SUITES["uci"], protocol) for protocol in ("default", "paper"))
PRIORS = Results.read(STORE, SUITES["priors"], "default")


def paired(a: dict[int, float], b: dict[int, float]) -> str:
    """Mean of a - b over the splits of both, its standard error, and the ratio of the two."""
    difference = np.array([a[k] - b[k] for k in a if k in b])
    if len(difference) < 2:
        return "-"
    mean, error = difference.mean(), difference.std(ddof=1) / math.sqrt(len(difference))
    return f"{mean:+.4f} ± {error:.4f} ({mean / error:+.1f}, {len(difference)} splits)"


def pitman_morgan(a: dict[int, float], b: dict[int, float]) -> float:
    """t statistic (n - 2 degrees of freedom) of equal variances of paired values; negative if a varies less than b."""
    splits = sorted(a.keys() & b.keys())
    x, y = (np.array([v[k] for k in splits]) for v in (a, b))
    r = float(np.corrcoef(x + y, x - y)[0, 1])
    return r * math.sqrt((len(splits) - 2) / (1.0 - r * r))


def main() -> None:
    """Print the comparisons of each data set."""
    for dataset in UCI.datasets:

        def of(results: Results, arm: str, metric: str, dataset: str = dataset) -> dict[int, float]:
            return results.values(dataset, arm, metric)

        print(dataset)
        print("  RMSE, SGPR + HMC less SGPR:", paired(of(UCI, "SGPR + HMC", "rmse"), of(UCI, "SGPR", "rmse")))
        covered = [np.mean(list(of(UCI, arm, "coverage_95").values())) for arm in ("SGPR", "SGPR + HMC")]
        print("  coverage of 95 % intervals, SGPR and SGPR + HMC: {:.3f} {:.3f}".format(*covered))
        for arm in ("SGPR", "SGPR + HMC"):  # the paper's SGPR: 2000 steps of Adam from random Z
            text = paired(of(UCI, arm, "nlpd"), of(PAPER, "SGPR", "nlpd"))
            print(f"  mixture NLPD, {arm} less SGPR of the paper's protocol:", text)
        for reference in ("SGPR", "SGPR + HMC"):
            text = paired(of(UCI, "GPR + HMC", "nlpd"), of(UCI, reference, "nlpd"))
            print(f"  mixture NLPD, GPR + HMC less {reference}:", text)
        for metric in ("nlpd", "joint_nlpd"):
            text = paired(*(of(PRIORS, f"SGPR + HMC, {name}", metric) for name in ("pooled", "paper")))
            print(f"  {metric}, priors pooled less paper:", text)
        t = {m: pitman_morgan(*(of(UCI, a, m) for a in ("SGPR + HMC", "SGPR"))) for m in ("nlpd", "joint_nlpd", "rmse")}
        print("  do splits vary less under SGPR + HMC than SGPR? t:", {m: round(v, 1) for m, v in t.items()})


if __name__ == "__main__":
    main()
