"""Which files of the library a default fit runs, and how many calls it makes into each.

    python scripts/trace_fit.py [--json]

A small fit with the default method under a profiler that records calls. A module that is only
imported does not count.
"""

import argparse
import collections
import json
import sys
import threading
import warnings
from pathlib import Path

import numpy as np

import integrand

ROOT = Path(integrand.__file__).parent


def traced_fit() -> tuple[collections.Counter[str], set[tuple[str, str]]]:
    """Calls of functions by file, and the pairs of files of which the first calls the second."""
    calls: collections.Counter[str] = collections.Counter()
    pairs: set[tuple[str, str]] = set()

    def file_of(code) -> str | None:
        path = Path(code.co_filename)
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else None

    def profile(frame, event, argument):
        code = frame.f_code
        # Only functions have CO_NEWLOCALS and CO_OPTIMIZED; modules and class bodies run when they are imported.
        if event != "call" or not code.co_flags & 0x1 or (name := file_of(code)) is None:
            return
        calls[name] += 1
        caller = frame.f_back
        while caller is not None and file_of(caller.f_code) is None:
            caller = caller.f_back
        if caller is not None and (other := file_of(caller.f_code)) not in (None, name):
            pairs.add((str(other), name))

    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(40)
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", integrand.ConvergenceWarning)
            integrand.fit(X, y, n_inducing=8, max_draws=60, seed=0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls, pairs


def main() -> None:
    """Print the files and their calls."""
    parser = argparse.ArgumentParser(description="Which files of the library a default fit runs.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    calls, pairs = traced_fit()
    if as_json:
        print(json.dumps({"files": sorted(calls), "calls": calls, "pairs": sorted(pairs)}))
        return
    for name, count in calls.most_common():
        print(f"{count:9d}  {name}")
    print(f"{len(calls)} files, {len(pairs)} pairs of files of which one calls the other")


if __name__ == "__main__":
    main()
