"""Measure gradients of the bound against rows, inducing points and processes, and a complete fit with many rows.

    python -m benchmarks.scale.run growth|processes|grid|passes|disk|fit [--work DIR] [--out FILE] [--rows N]

Each measurement is a line of JSON at the end of FILE (results/scale.jsonl). `cost.py` makes the page from it.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def gradient(rows: int, inducing: int, processes: int, cores: list[str], repeats: int = 3, table=None, memory=None):
    """Seconds of a gradient; `cores` has one string per process."""
    common = [sys.executable, "-m", "benchmarks.scale.worker", "--rows", str(rows), "--inducing", str(inducing)]
    common += ["--repeats", str(repeats), "--processes", str(processes)]
    common += ["--coordinator", f"127.0.0.1:{free_port()}"] if processes > 1 else []
    common += ["--table", str(table)] if table else []
    common += ["--memory", str(memory)] if memory else []
    children = []
    for rank in range(processes):
        command = [*common, "--rank", str(rank), "--cores", cores[rank]]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE if rank == 0 else None, text=True))
    out, _ = children[0].communicate()
    codes = [p.wait() for p in children]
    if any(codes):
        sys.exit(f"a process ended with {codes}")
    return json.loads(out.strip().splitlines()[-1])


def growth(save) -> None:
    """Seconds of a gradient against N at M = 200 on one core; small fits use further cores for chains."""
    first = str(min(os.sched_getaffinity(0)))
    for repeat in range(2):
        for n in (10_000, 30_000, 100_000, 300_000, 1_000_000):
            save("growth", repeat, gradient(n, 200, 1, [first], repeats=20 if n < 50_000 else 5))


def processes(save) -> None:
    """Two processes on a core each against one on one core."""
    first, second = map(str, sorted(os.sched_getaffinity(0))[:2])
    for repeat in range(3):
        save("processes", repeat, gradient(200_000, 300, 1, [first]))
        save("processes", repeat, gradient(200_000, 300, 2, [first, second]))


def grid(save) -> None:
    """A grid for the cost model, one core per process."""
    first, second = map(str, sorted(os.sched_getaffinity(0))[:2])
    for n, sizes in ((1_000, (100, 400, 800)), (10_000, (100, 200, 400)), (200_000, (100, 200, 400))):
        for m in sizes:
            repeats = 20 if n * m**2 < 1e9 else 3
            save("grid", 0, gradient(n, m, 1, [first], repeats))
            save("grid", 0, gradient(n, m, 2, [first, second], repeats))


def passes(save) -> None:
    """Passes over all rows: a fit that searches on a subsample against one that uses all rows from the start."""
    import numpy as np

    import integrand
    from benchmarks.scale.table import rows
    from integrand.infer.convergence import convergence

    table = rows(0, 0, 50_000, 4)
    X, y = table[:, :-1], table[:, -1]
    means, errors = [], []
    for grow in (True, False):
        start = time.monotonic()
        # With Z given, so that both fits have the same posterior.
        settings = {"method": "sgpr-hmc-fixed-z", "priors": "paper", "Z": X[:60], "grow": grow}
        # On all rows by NUTS, whose gradients are counted; a subsample has its own sampler.
        settings |= {"max_minutes": 15, "progress": True, "sampler": "default" if grow else "nuts"}
        posterior = integrand.fit(X, y, **settings)
        x = posterior.chains.x
        means.append(x.mean(axis=(0, 1)))
        errors.append(x.std(axis=(0, 1)) / np.sqrt(convergence(x).ess_bulk))
        facts = {"rows": len(table), "inducing": 60, "grown": grow, "total_seconds": time.monotonic() - start}
        facts |= {"passes": posterior.counts, "verdict": str(posterior.verdict)}
        facts |= {"mean": means[-1].tolist(), "standard_error": errors[-1].tolist()}
        save("passes", 0, facts)
    z = np.abs(means[1] - means[0]) / np.hypot(*errors)
    print(f"means of log hyperparameters differ by at most {z.max():.1f} standard errors")


def disk(save, work: Path, n: int) -> None:
    """Rows on disk, read at every pass by two processes."""
    table = work / f"table-{n}"
    subprocess.run([sys.executable, "-m", "benchmarks.scale.table", str(table), "--rows", str(n)], check=True)
    first, second = map(str, sorted(os.sched_getaffinity(0))[:2])
    save("disk", 0, gradient(n, 200, 2, [first, second], repeats=1, table=table, memory=2**20))


def fit(save, work: Path, n: int) -> None:
    """A complete sgpr-hmc fit from Parquet with two processes, by the command line."""
    table = work / f"table-{n}"
    subprocess.run([sys.executable, "-m", "benchmarks.scale.table", str(table), "--rows", str(n)], check=True)
    command = [sys.executable, "-m", "integrand.cli", "fit", str(table), "--target", "y", "--inducing", "200"]
    command += ["--priors", "paper"]
    command += ["--out", str(work / f"model-{n}.integrand"), "--run-dir", str(work / f"run-{n}"), "--json"]
    command += ["--distributed", "--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2"]
    start = time.monotonic()
    cores, ranks = sorted(os.sched_getaffinity(0)), []
    for r in (0, 1):
        os.sched_setaffinity(0, {cores[r]})  # one core each; a process inherits it
        out = subprocess.PIPE if r == 0 else None
        ranks.append(subprocess.Popen([*command, "--rank", str(r)], stdout=out, text=True))
    os.sched_setaffinity(0, cores)
    peaks = [0.0, 0.0]
    while ranks[0].poll() is None:
        peaks = [max(peak, peak_memory(p.pid)) for peak, p in zip(peaks, ranks, strict=True)]
        time.sleep(1.0)
    out, _ = ranks[0].communicate()
    codes = [p.wait() for p in ranks]
    if any(codes):
        sys.exit(f"a process ended with {codes}; continue with `integrand resume {work / f'run-{n}'}`")
    facts = json.loads(out.strip().splitlines()[-1])
    facts.pop("model")
    save("fit", 0, {"rows": n, "seconds": time.monotonic() - start, "memory_mb": peaks, "facts": facts})


def peak_memory(pid: int) -> float:
    """Largest resident memory so far of the children of a process, in MB."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = [line for c in children for line in Path(f"/proc/{c}/status").read_text().splitlines()]
        return sum(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024.0
    except OSError:
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("growth", "processes", "grid", "passes", "disk", "fit"))
    parser.add_argument("--work", type=Path, default=Path("scale-work"), help="for tables, models and run directories")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "results" / "scale.jsonl", help="measurements")
    parser.add_argument("--rows", type=int, default=None, help="of `disk` (10 million) or `fit` (1 million)")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)

    def save(what: str, repeat: int, row: dict) -> None:
        load = os.getloadavg()[0]
        row = {"what": what, "repeat": repeat, "date": time.strftime("%Y-%m-%d"), "load": round(load, 2)} | row
        print(json.dumps(row), flush=True)
        with open(given.out, "a") as stream:
            stream.write(json.dumps(row) + "\n")

    if given.what in ("disk", "fit"):
        default = 10_000_000 if given.what == "disk" else 1_000_000
        {"disk": disk, "fit": fit}[given.what](save, given.work.resolve(), given.rows or default)
    else:
        {"growth": growth, "processes": processes, "grid": grid, "passes": passes}[given.what](save)


if __name__ == "__main__":
    main()
