"""Write a synthetic Parquet table of any length: D inputs, a smooth function of some of them, and noise.

    python -m benchmarks.scale.table OUT --rows 1000000 [--columns 8] [--parts 4] [--seed 0]

It writes one row group at a time, so memory does not grow with the number of rows.
"""

import argparse
from pathlib import Path

import numpy as np

GROUP = 100_000
NOISE = 0.3


def rows(seed: int, first: int, n: int, columns: int) -> np.ndarray:
    """Rows first ... first + n - 1 of the table with this seed (whole row groups), the target last."""
    parts = []
    for group in range(first // GROUP, -(-(first + n) // GROUP)):
        rng = np.random.default_rng([seed, group])
        X = rng.uniform(-2.0, 2.0, (GROUP, columns))
        f = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2 % columns] + 0.3 * np.cos(X[:, 3 % columns] * X[:, 0])
        parts.append(np.c_[X, f + NOISE * rng.standard_normal(GROUP)])
    table = np.concatenate(parts)
    return table[first % GROUP :][:n]


def make(out: Path, n: int, columns: int, parts: int, seed: int) -> None:
    """Write the parts that do not exist yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    names = [f"x{i}" for i in range(columns)] + ["y"]
    groups = -(-n // GROUP)
    parts = min(parts, groups)
    ends = [GROUP * (groups * k // parts) for k in range(parts + 1)]
    for k in range(parts):
        path, first, last = out / f"part-{k}-of-{parts}.parquet", ends[k], min(ends[k + 1], n)
        if path.exists():
            continue
        temporary = path.with_suffix(".tmp")
        with pq.ParquetWriter(temporary, pa.schema([(name, pa.float64()) for name in names])) as writer:
            for begin in range(first, last, GROUP):
                block = rows(seed, begin, min(GROUP, last - begin), columns)
                writer.write_table(pa.table(dict(zip(names, block.T, strict=True))))
        temporary.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    make(given.out, given.rows, given.columns, given.parts, given.seed)


if __name__ == "__main__":
    main()
