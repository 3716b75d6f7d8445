"""One process of a measurement: time of value and gradient of the bound over rows in memory or on disk.

Started by `run.py`, once or several times with `--rank`; rank 0 prints a JSON object.
"""

import argparse
import dataclasses
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
    from table import rows as made

    import integrand
    from integrand.data.disk import MappedRows, open_rows
    from integrand.data.scaling import Standardiser
    from integrand.distributed.layout import laid_out
    from integrand.distributed.together import Together
    from integrand.methods.recipe import tasks
    from integrand.model import Model
    from integrand.targets import CollapsedTarget

    n, size = given.rows, given.processes
    ranks = integrand.join(given.coordinator, size, given.rank, timeout=900) if size > 1 else None
    if given.table is None:
        first, last = n * given.rank // size, n * (given.rank + 1) // size
        table = made(0, first, last - first, given.columns)
        part = MappedRows(table[:, :-1], table[:, -1])
    else:
        rows = open_rows(given.table, "y")
        part = rows.part(given.rank, size)
    scaler = Standardiser(np.zeros(given.columns), np.full(given.columns, 1.155), 0.0, 1.0)
    data = laid_out(part, scaler, n, given.inducing, given.memory, ranks)
    model = Model(integrand.RBF(), given.columns)
    # A θ as a fit ends at: long lengthscales for inputs that matter little.
    phi = model.unconstrained({"lengthscale": 2.0, "scale": 1.0, "noise": 0.3})
    Z = made(1, 0, given.inducing, given.columns)[:, :-1] / 1.155
    if ranks is not None:
        together = Together(ranks, model.n_theta, given.inducing, given.columns)
        together.spread = data.spread
        if not ranks.leads:
            together.follow(tasks(model, data, integrand.Jitter()))
            ranks.exchange(_memory())
            ranks.part_ways()
            return
        data = dataclasses.replace(data, spread=dataclasses.replace(data.spread, together=together))
    target = CollapsedTarget(model, data)
    began = time.monotonic()
    e = target.evaluate(phi, Z)
    first_call = time.monotonic() - began
    seconds, values = [], []
    for _ in range(given.repeats):
        began = time.monotonic()
        target.evaluate(phi, Z)
        seconds.append(time.monotonic() - began)
    target.value(phi, Z)
    for _ in range(min(given.repeats, 2)):
        began = time.monotonic()
        target.value(phi, Z)
        values.append(time.monotonic() - began)
    memory = [_memory()]
    if ranks is not None:
        together.end()
        memory = ranks.exchange(_memory())
        ranks.part_ways()
    row = {"rows": n, "columns": given.columns, "inducing": given.inducing, "processes": size, "cores": given.cores}
    row |= {"on_disk": data.stream is not None, "first_call": first_call, "seconds": seconds, "values": values}
    print(json.dumps(row | {"bound": e.log_likelihood, "memory_mb": memory}), flush=True)
    os._exit(0)


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


if __name__ == "__main__":
    main()
