"""Record the draws of some 60 short fits, or compare those of another tree with them, bit for bit.

    python scripts/golden.py record FILE     # with the tree of before installed
    python scripts/golden.py check FILE      # with the tree of now; exit code 1 on any difference

Run both on one machine: processors round differently, and one accept decision that flips changes a whole chain.
Only public names are used. Two cases are killed (SIGKILL) and resumed; one puts its threads inside the matrix
products, where sums may be split differently, and is compared to 1e-8.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import integrand as ig

SHORT = dict(
    n_inducing=6, chains=2, tune=40, round_draws=10, max_rounds=2, max_draws=60, target_ess=20.0, steps=200,
    predictive_draws=20, seed=1, live_points=40,
)  # fmt: skip
# Cases that end in an error, with its type: the same request must be refused by the same exception.
EXPECTED_ERRORS: dict[str, str] = {}
TOLERANCES = {"threads inside": 1e-8}
SEED = 0
rng = np.random.default_rng(SEED)
X = rng.standard_normal((60, 2))
y = 10 + 3 * (np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(60))
TEST = rng.standard_normal((7, 2))
X_MANY = rng.standard_normal((900, 2))
Y_MANY = np.sin(2 * X_MANY[:, 0]) + 0.3 * rng.standard_normal(900)
X_WIDE = rng.standard_normal((38_000, 2))
Y_WIDE = np.sin(2 * X_WIDE[:, 0]) + 0.3 * rng.standard_normal(38_000)
DATA = {
    "few": (X, y),
    "many": (X_MANY, Y_MANY),
    "wide": (X_WIDE, Y_WIDE),
    "poisson": (X, np.floor(np.exp(0.3 * (y - 8)))),
    "bernoulli": (X, (y > 10).astype(float)),
    "student-t": (X, y),
}


def cases() -> dict[str, dict]:
    """Every method, sampler, schedule and likelihood, rows from disk, many rows, a composite kernel."""
    found = {method: dict(method=method) for method in ig.METHODS}
    for method in ("sgpr-hmc", "sgpr-hmc-fixed-z", "gpr-hmc", "joint-hmc"):
        found |= {f"{method}/{s}": dict(method=method, sampler=s) for s in ig.METHODS[method].samplers}
    for method in ("ml2", "svgp", "joint-hmc"):
        found[f"{method}/paper"] = dict(method=method, schedule="paper", priors="paper")
    found["ml2/adam"] = dict(method="ml2", optimiser="adam")
    found["vi-collapsed/diagonal"] = dict(method="vi-collapsed", vi_covariance="diagonal")
    for method in ("sgpr-hmc", "sgpr-hmc-fixed-z", "ml2", "map"):
        found[f"{method}/many"] = dict(method=method, grow=True, sample_rows=200, data="many")
    found["sgpr-hmc/streamed"] = dict(data="disk", memory=1)
    found["kernel"] = dict(kernel=ig.RBF() + ig.Periodic(period=ig.standardised(1.0)) * ig.RBF(active=(0,)))
    for method in ("joint-hmc", "svgp", "gpr-latent", "pseudo-marginal"):
        for likelihood in ("student-t", "poisson", "bernoulli"):
            found[f"{method}/{likelihood}"] = dict(method=method, likelihood=likelihood, data=likelihood)
    found["threads inside"] = dict(method="ml2", data="wide", n_inducing=300, warm_steps=3, grow=False)
    found["killed in a round"] = dict(kill="move Z")
    found["killed before the final draws"] = dict(kill="final draws")
    return found


class KillAt:
    """A progress listener that ends its own process, as kill -9 would, when a phase begins."""

    def __init__(self, phase: str):
        self.wanted = phase

    def phase(self, name: str) -> None:
        if name.startswith(self.wanted):
            os.kill(os.getpid(), signal.SIGKILL)

    def update(self, *_, **__) -> None: ...

    def close(self) -> None: ...


def killed_and_resumed(phase: str):
    """A fit of a process that was killed when `phase` began, gone on with in this one."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = str(Path(folder) / "run")
        child = subprocess.run([sys.executable, __file__, "child", run_dir, phase], capture_output=True, text=True)
        if child.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the child was not killed: {child.returncode} {child.stderr[-500:]}")
        return ig.resume(run_dir)


def run(case: dict) -> dict[str, np.ndarray]:
    """The arrays that a case leaves behind, or the type of its error."""
    case = dict(case)
    data, kernel, kill = case.pop("data", "few"), case.pop("kernel", None), case.pop("kill", None)
    rows = (ig.MappedRows(X_MANY, Y_MANY),) if data == "disk" else DATA[data]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = killed_and_resumed(kill) if kill else ig.fit(*rows, kernel=kernel, **(SHORT | case))
    except ig.InputError as error:
        return {"error": np.array(type(error).__name__), "text": np.array(str(error))}
    q = posterior.predict(TEST, include_noise=True)
    quantiles = q.quantile(np.array([0.05, 0.5, 0.95]))
    chains = posterior.chains
    found = dict(x=chains.x, lp=chains.log_density, mean=q.mean, var=q.variance, quant=quantiles, Z=posterior.Z)
    return {name: np.asarray(value) for name, value in found.items()}


def main() -> int:
    mode, path = sys.argv[1:3]
    if mode == "child":
        warnings.simplefilter("ignore")
        ig.fit(X, y, **SHORT, run_dir=path, progress=KillAt(sys.argv[3]))
        return 0
    only, arrays, began = sys.argv[3:], {}, time.perf_counter()
    for name, case in cases().items():
        if only and name not in only:
            continue
        start = time.perf_counter()
        outcome = run(case)
        arrays |= {f"{name}|{key}": value for key, value in outcome.items()}
        print(f"{name:32s} {time.perf_counter() - start:6.1f} s {outcome.get('text', '')}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    if mode == "record":
        np.savez_compressed(path, **arrays)
        return 0
    recorded, differences, compared = np.load(path), 0, 0
    for key in recorded.files:
        name, _, field = key.partition("|")
        if field == "text" or (only and name not in only):
            continue
        before, now, compared = recorded[key], arrays.get(key), compared + 1
        tolerance = TOLERANCES.get(name)
        if now is None or before.shape != now.shape:
            same, size = False, "another shape"
        elif tolerance is None or before.dtype.kind != "f":
            same = np.array_equal(before, now, equal_nan=before.dtype.kind == "f")
            size = f"{np.nanmax(np.abs(before - now)):.1e}" if before.dtype.kind == "f" and not same else ""
        else:
            same, size = np.allclose(before, now, rtol=tolerance, atol=tolerance), f"{np.abs(before - now).max():.1e}"
        if not same:
            differences += 1
            print(f"DIFFERS {key} {size}")
    unknown = {k for k in arrays if k not in recorded.files and not k.endswith("|text")}
    for key in sorted(unknown):
        print(f"NOT RECORDED {key}")
    print(f"compared {compared} arrays, {differences + len(unknown)} differences")
    return int(differences + len(unknown) > 0)


if __name__ == "__main__":
    sys.exit(main())
