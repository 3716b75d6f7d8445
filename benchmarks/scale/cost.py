"""The cost model of a gradient, fitted to the measurements of `run.py`, its error, what it says, and the figure.

    python benchmarks/scale/cost.py [--out docs/scale]

    seconds = a N M² / P + b N M / P + c M³ + d + e (P > 1)        one core a process, rows in memory

a: products; b: kernel and its derivative; c: factorisations, which every process repeats; d: calls; e: message and
all-reduce of M² + ... numbers between two processes of one machine. Weights are 1 / seconds: relative errors count.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

HERE = Path(__file__).resolve().parent
NAMES = ("N M² / P", "N M / P", "M³", "call", "P > 1")


def terms(n: float, m: float, p: float) -> list[float]:
    return [n * m**2 / p, n * m / p, m**3, 1.0, float(p > 1)]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fitted(rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients, and relative errors of the measurements they were fitted to."""
    rows = [r for r in rows if r["what"] in ("grid", "processes")]
    A = np.array([terms(r["rows"], r["inducing"], r["processes"]) for r in rows])
    t = np.array([min(r["seconds"]) for r in rows])
    scale = A.max(axis=0)
    found, _ = nnls(A / scale / t[:, None], np.ones(len(t)))
    found = found / scale
    return found, A @ found / t - 1.0


def slope(rows: list[dict]) -> tuple[list[int], list[float], float]:
    """Smallest time against N at M = 200, and the slope on log-log axes."""
    found: dict[int, float] = {}
    for r in rows:
        if r["what"] == "growth":
            found[r["rows"]] = min(found.get(r["rows"], np.inf), *r["seconds"])
    ns = sorted(found)
    ts = [found[n] for n in ns]
    return ns, ts, float(np.polyfit(np.log(ns), np.log(ts), 1)[0])


def figure(ns: list[int], ts: list[float], exponent: float, path: Path) -> None:
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(5.0, 3.5))
    ax.loglog(ns, ts, "o-", color="#2a6f97")
    ax.set_xlabel("rows N")
    ax.set_ylabel("seconds for value and gradient")
    ax.set_title(f"M = 200, D = 8, two cores: slope {exponent:.2f}")
    ax.grid(True, which="both", alpha=0.3)
    fig.tight_layout()
    fig.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs" / "scale")
    given = parser.parse_args()
    rows = read(given.out / "measurements.jsonl")
    ns, ts, exponent = slope(rows)
    figure(ns, ts, exponent, given.out / "gradient.png")
    found, errors = fitted(rows)
    lines = [f"slope of log time against log N at M = 200: {exponent:.3f}", ""]
    lines += [f"{name:<10} {c:.3e} s" for name, c in zip(NAMES, found, strict=True)]
    lines += [f"relative error: median {np.median(np.abs(errors)):.1%}, largest {np.max(np.abs(errors)):.1%}", ""]
    for n, m, machines in ((1e6, 200, 1), (1e7, 200, 16), (1e9, 500, 1000)):
        cores = 2 * machines
        t = float(np.dot(found, terms(n, m, cores)))
        lines.append(f"N = {n:.0e}, M = {m}, {machines} machines of two such cores: {t:.2f} s a gradient")
    text = "\n".join(lines)
    print(text)
    (given.out / "cost.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
