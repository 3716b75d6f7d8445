"""Time value and gradient of the bound in one process of a measurement, over rows in memory or on disk.

Started by `run.py`, once or several times with `--rank`; rank 0 prints a JSON object.
"""

import argparse
import json
import os
import resource
import time
from pathlib import Path


def parsed():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--inducing", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", default="")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--coordinator", default=None)
    parser.add_argument("--table", type=Path, default=None, help="Parquet parts; rows are made in memory without it")
    parser.add_argument("--memory", type=int, default=2**40)
    return parser.parse_args()


def main() -> None:
    given = parsed()
    if given.cores:
        os.sched_setaffinity(0, {int(c) for c in given.cores.split(",")})
    import numpy as np

    import integrand
    from benchmarks.scale.table import rows as make_rows
    from integrand.data.parquet import open_rows
    from integrand.data.processes import SharedWork, SingleProcess
    from integrand.data.scaling import Standardiser
    from integrand.data.sources import MappedRows
    from integrand.model import Model
    from integrand.targets import CollapsedTarget

    n, size = given.rows, given.processes
    processes = integrand.join(given.coordinator, size, given.rank, timeout=900) if size > 1 else SingleProcess()
    if given.table is None:
        first, last = n * given.rank // size, n * (given.rank + 1) // size
        table = make_rows(0, first, last - first, given.columns)
        X, y = table[:, :-1], table[:, -1]
        source = MappedRows(X, y, memory=given.memory, processes=processes, shared=False)
    else:
        source = open_rows(given.table, "y", memory=given.memory, processes=processes)
    scaler = Standardiser(np.zeros(given.columns), np.full(given.columns, 1.155), 0.0, 1.0)
    data = source.dataset(scaler, given.inducing)
    model = Model(integrand.RBF(), given.columns)
    # A typical θ at the end of a fit: long lengthscales for inputs that matter little.
    phi = model.unconstrained({"lengthscale": 2.0, "scale": 1.0, "noise": 0.3})
    Z = make_rows(1, 0, given.inducing, given.columns)[:, :-1] / 1.155
    target = CollapsedTarget(model, data)
    programs = {"evaluate": target.evaluate, "inducing_posterior": target.inducing_posterior}
    shared = SharedWork(programs, model.n_theta, given.inducing, given.columns)
    times = processes.lead(lambda: _measured(target, phi, Z, given.repeats), shared)
    memory = processes.all_gather(_memory())
    processes.leave()
    if not processes.is_leader:
        return
    row = {"rows": n, "columns": given.columns, "inducing": given.inducing, "processes": size, "cores": given.cores}
    row |= {"on_disk": data.stream is not None} | times
    print(json.dumps(row | {"memory_mb": memory}), flush=True)
    os._exit(0)


def _measured(target, phi, Z, repeats: int) -> dict:
    """Seconds of gradients and of values alone, and the bound."""
    start = time.monotonic()
    e = target.evaluate(phi, Z)
    first_call = time.monotonic() - start
    seconds, values = [], []
    for _ in range(repeats):
        start = time.monotonic()
        target.evaluate(phi, Z)
        seconds.append(time.monotonic() - start)
    target.value(phi, Z)
    for _ in range(min(repeats, 2)):
        start = time.monotonic()
        target.value(phi, Z)
        values.append(time.monotonic() - start)
    return {"first_call": first_call, "seconds": seconds, "values": values, "bound": e.log_likelihood}


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


if __name__ == "__main__":
    main()
