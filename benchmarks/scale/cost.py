"""Fit a cost model of a gradient to the measurements of `run.py`, and make the page of both.

    python -m benchmarks.scale.cost [--rows results/scale.jsonl] [--out docs/evidence]

It writes scale.md and scale/gradient.png. The model:

    seconds = a N M² / P + b N M / P + c M³ + d + (P > 1) (e + f M²)        one core per process, rows in memory

a: products; b: kernel and its derivative; c: factorisations, which every process repeats; d: calls; e and f: messages
and all-reduce between two processes of one machine. Weights are 1 / seconds, so that relative errors count. Rows that
are read at every pass cost the extra seconds of `disk`, per row and process.

Between machines e and f are assumptions, not measurements: 0.1 ms for each of 2 log2 P steps, and 2 M² doubles per
gradient over 10 Gbit/s.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("N M² / P", "N M / P", "M³", "call", "P > 1", "(P > 1) M²")
STEP_SECONDS, BYTES_PER_SECOND = 1e-4, 1.25e9  # assumed between machines
# Rows, inducing points, machines, cores of each.
ASKED = ((1e6, 200, 1, 2), (1e7, 200, 16, 2), (1e9, 200, 1000, 2), (1e9, 500, 1000, 2), (1e9, 500, 1000, 32))


def terms(n: float, m: float, p: float) -> list[float]:
    return [n * m**2 / p, n * m / p, m**3, 1.0, float(p > 1), (p > 1) * m**2]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fitted(rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """The coefficients, and the relative errors of the measurements."""
    rows = [r for r in rows if r["what"] in ("grid", "processes")]
    A = np.array([terms(r["rows"], r["inducing"], r["processes"]) for r in rows])
    t = np.array([min(r["seconds"]) for r in rows])
    scale = A.max(axis=0)
    scaled, _ = nnls(A / scale / t[:, None], np.ones(len(t)))
    coefficients = scaled / scale
    return coefficients, A @ coefficients / t - 1.0


def read_seconds(rows: list[dict], coefficients: np.ndarray) -> float:
    """Seconds that reading adds to a gradient, per row of a process."""
    each = [
        (min(r["seconds"]) - float(np.dot(coefficients, terms(r["rows"], r["inducing"], r["processes"]))))
        * r["processes"]
        / r["rows"]
        for r in rows
        if r["what"] == "disk"
    ]
    return max(0.0, min(each)) if each else float("nan")


def network(m: float, p: float) -> float:
    """Seconds of a gradient's messages between machines, under the assumptions above."""
    return STEP_SECONDS * 2 * np.log2(p) + 2 * 8 * m**2 / BYTES_PER_SECOND


def slope(rows: list[dict]) -> tuple[list[int], list[float], float]:
    """Smallest time against N at M = 200, and the slope on log-log axes."""
    fastest: dict[int, float] = {}
    for r in rows:
        if r["what"] == "growth":
            fastest[r["rows"]] = min(fastest.get(r["rows"], np.inf), *r["seconds"])
    ns = sorted(fastest)
    ts = [fastest[n] for n in ns]
    return ns, ts, float(np.polyfit(np.log(ns), np.log(ts), 1)[0])


def figure(ns: list[int], ts: list[float], exponent: float, path: Path) -> None:
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(5.0, 3.5))
    ax.loglog(ns, ts, "o-", color="#2a6f97")
    ax.set_xlabel("rows N")
    ax.set_ylabel("seconds for value and gradient")
    ax.set_title(f"M = 200, D = 8, one core: slope {exponent:.2f}")
    ax.grid(True, which="both", alpha=0.3)
    fig.tight_layout()
    fig.savefig(path, dpi=150)


def speedups(rows: list[dict]) -> str:
    """Two processes on one core each against one process on one core: minima of interleaved repeats."""
    one, two = (
        min(min(r["seconds"]) for r in rows if r["what"] == "processes" and r["processes"] == p) for p in (1, 2)
    )
    times = f"{one:.2f} s, {two:.2f} s: {one / two:.2f} x"
    return f"| `processes` | N = 200 000, M = 300: one process on a core, two on a core each | {times} |"


def others(rows: list[dict]) -> list[str]:
    """Rows of the table for single measurements."""
    lines = []
    for r in rows:
        if r["what"] == "disk":
            lines.append(
                f"| `disk` | N = {r['rows']:.0e}, M = {r['inducing']}, rows read at every pass, two processes | "
                f"gradient {min(r['seconds']):.1f} s, value {min(r['values']):.1f} s, "
                f"{max(r['memory_mb']):.0f} MB a process |"
            )
        if r["what"] == "passes":
            how = "a sample searches" if r["grown"] else "all rows from the start"
            counts = r["passes"]
            lines.append(
                f"| `passes` | N = {r['rows']}, M = {r['inducing']}, fixed Z, {how} | {counts['gradients']} gradients, "
                f"{counts.get('values', 0)} values, {r['total_seconds']:.0f} s. {r['verdict'].splitlines()[0]} |"
            )
        if r["what"] == "fit":
            facts, counts, minutes = r["facts"], r["facts"]["counts"], r["seconds"] / 60
            lines.append(
                f"| `fit` | N = {r['rows']:.0e}, D = 8, M = 200, `sgpr-hmc`, two processes | {minutes:.0f} minutes, "
                f"{max(r['memory_mb']):.0f} MB a process, {counts['gradients']} gradients and "
                f"{counts['values']} values of all rows, {counts['sample_gradients']} gradients of a sample. "
                f"{' '.join(facts['verdict'].split())} |"
            )
    return lines


def agreement(rows: list[dict]) -> list[str]:
    """The difference of the means of the two fits of `passes`."""
    both = [r for r in rows if r["what"] == "passes"][-2:]
    if len(both) < 2:
        return []
    means, errors = (np.array([r[key] for r in both]) for key in ("mean", "standard_error"))
    z = np.abs(means[1] - means[0]) / np.hypot(*errors)
    return [
        f"| `passes` | posterior means of the {len(z)} log hyperparameters in the two fits | differ by at most "
        f"{z.max():.1f} standard errors |"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROOT / "results" / "scale.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence")
    given = parser.parse_args()
    rows = read(given.rows)
    (given.out / "scale").mkdir(parents=True, exist_ok=True)
    ns, ts, exponent = slope(rows)
    figure(ns, ts, exponent, given.out / "scale" / "gradient.png")
    coefficients, errors = fitted(rows)
    reading = read_seconds(rows, coefficients)
    made = f"Made by `python -m benchmarks.scale.cost` from `results/scale.jsonl`, {rows[-1]['date']}."
    lines = ["# Scale, measured", "", made, ""]
    lines += ["| `WHAT=` | what | seen |", "|---|---|---|", speedups(rows)]
    lines += [f"| `growth` | gradient against N at M = 200, one core | slope {exponent:.3f} on log-log axes |"]
    lines += [
        *others(rows),
        *agreement(rows),
        "",
        "![seconds of a gradient against N](scale/gradient.png)",
        "",
        "## Cost model",
        "",
    ]
    lines += ["| term | seconds |", "|---|--:|"]
    lines += [f"| {name} | {c:.2e} |" for name, c in zip(NAMES, coefficients, strict=True)]
    lines += [f"| a row read from Parquet, for each process | {reading:.2e} |", ""]
    lines += [f"Relative error: median {np.median(np.abs(errors)):.1%}, largest {np.max(np.abs(errors)):.1%}.", ""]
    lines += ["Seconds of a gradient that it predicts (between machines with the assumptions of `cost.py`):", ""]
    lines += ["| rows | M | machines x cores | rows in memory | of it network | of it M³ | read at every pass |"]
    lines += ["|--:|--:|--:|--:|--:|--:|--:|"]
    for n, m, machines, cores in ASKED:
        p = machines * cores
        own = float(np.dot(coefficients[:4], terms(n, m, p)[:4]))
        between = network(m, p) if machines > 1 else float(np.dot(coefficients[4:], terms(n, m, p)[4:]))
        cells = [f"{n:.0e}", f"{m}", f"{machines} x {cores}", f"{own + between:.2f}", f"{between:.3f}"]
        cells += [f"{coefficients[2] * m**3:.3f}", f"{own + between + reading * n / p:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines)
    print(text)
    (given.out / "scale.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
