"""Z to convergence at the speed of an optimiser, and `n_inducing="auto"`: what they reach, and what they cost.

python -m benchmarks.inducing convergence --gpflow PYTHON   a default fit, 5 000 steps of ML-II, and GPflow's ML-II
python -m benchmarks.inducing auto --splits 10              `auto` beside M = 100 and the exact GP, on the paper's sets

Every job runs in a process of its own, on one core, and adds a line to `--out`; a job that has a line there is not run
again. So a run may be ended and begun again. Seconds are of the processor. `--summary` prints what is there.
PYTHON is that of an environment with GPflow; without it that part is left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "results"
# Name, rows, columns, noise and spectrum of the functions that are drawn; with Elevators the sets of `convergence`.
DRAWN = {"rbf4": (6_000, 4, 0.1, "rbf"), "matern8": (10_000, 8, 0.3, "matern32"), "rbf12": (14_000, 12, 0.5, "rbf")}
LARGE = ("elevators", *DRAWN)
SMALL = ("yacht", "boston", "energy", "concrete", "winered", "line")
TEST_ROWS, FEATURES = 1_000, 3_000


def drawn(name: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows of a function drawn from a GP by random features, and how many of them train."""
    N, D, noise, spectrum = DRAWN[name]
    rng = np.random.default_rng(1 + list(DRAWN).index(name))
    X = rng.standard_normal((N + TEST_ROWS, D))
    lengthscales = np.exp(rng.uniform(np.log(0.5), np.log(4.0), D)) * np.sqrt(D) / 1.5
    w = rng.standard_normal((FEATURES, D))
    if spectrum == "matern32":  # a Student t with 3 degrees of freedom
        w /= np.sqrt(rng.chisquare(3, FEATURES) / 3.0)[:, None]
    f = np.sqrt(2.0 / FEATURES) * np.cos(X / lengthscales @ w.T + rng.uniform(0.0, 2.0 * np.pi, FEATURES)).sum(axis=1)
    return X, f + noise * rng.standard_normal(len(f)), N


def rows_of(name: str, split: int, data_dir: str):
    """Training rows as a source, and rows to predict."""
    import integrand
    from experiments.catalogue import SOURCES
    from experiments.datasets import load, paper_split
    from integrand.data.scaling import Standardiser

    if name in DRAWN or name in ("elevators", "line"):
        if name == "elevators":
            named = load("elevators", data_dir)
            order = np.random.default_rng(split).permutation(len(named.y))
            X, y, n = named.X[order], named.y[order], int(0.9 * len(order))
        elif name == "line":
            rng = np.random.default_rng(split)
            X = rng.uniform(-3.0, 3.0, (600, 1))
            y, n = np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(600), 300
        else:
            X, y, n = drawn(name)
        return integrand.ArrayRows(X[:n], y[:n]), X[n:], y[n:]
    named = load(name, data_dir)
    n = SOURCES[name].paper_rows
    X, y = named.X[:n], named.y[:n]
    of = paper_split(len(y), split)
    rows = integrand.ArrayRows(X[of.train], y[of.train], named.feature_names, Standardiser.paper(X, y))
    return rows, X[of.test], y[of.test]


class SecondsByPhase:
    """Seconds of the processor in each phase of a fit."""

    def __init__(self):
        from integrand.methods.problem import FitContext

        self.seconds: dict[str, float] = {}
        self.name, self.began, enter = "", time.process_time(), FitContext.phase

        def phase(context: FitContext, name: str) -> None:
            self.enter(name)
            enter(context, name)

        setattr(FitContext, "phase", phase)  # noqa: B010

    def enter(self, name: str) -> None:
        """Another phase begins."""
        now = time.process_time()
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + now - self.began
        self.name, self.began = name, now


def one_fit(job: dict, data_dir: str) -> dict:
    """A fit: seconds, passes, the bound averaged over its draws, its verdict and its predictions."""
    import integrand
    from integrand.metrics import nlpd, rmse

    rows, X_test, y_test = rows_of(job["set"], job["split"], data_dir)
    phases, began = SecondsByPhase(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        p = integrand.fit(rows, seed=job["split"], **job["settings"])
    seconds = time.process_time() - began
    phases.enter("")
    mixture = p.predict(X_test, include_noise=True).mixture()
    bounds = [h.bound for h in p.history if h.phase == "round"]
    return {
        "seconds": seconds,
        "phases": {k: round(v, 2) for k, v in phases.seconds.items()},
        "gradients": p.counts["gradients"],
        "values": p.counts["values"],
        "bound": bounds[-1] if bounds else None,
        "history": [(h.phase, h.step, h.bound, h.error) for h in p.history],
        "n_theta": p.model.n_theta,
        "M": len(p.Z) if job["settings"].get("method") != "gpr-hmc" else None,
        "ok": p.verdict is None or p.verdict.ok,
        "codes": [] if p.verdict is None else list(p.verdict.codes),
        "notes": list(p.notes),
        "draws": int(p.chains.x.shape[0] * p.chains.x.shape[1]),
        "nlpd": nlpd(mixture, y_test),
        "rmse": rmse(mixture.mean, y_test),
    }


def started(name: str, data_dir: str):
    """The target of a data set, and the θ and Z from which fits start."""
    from integrand.kernels import RBF
    from integrand.methods.fit import FitSpec
    from integrand.methods.problem import Settings
    from integrand.methods.warm_start import starting_inducing
    from integrand.model import Model
    from integrand.targets import CollapsedTarget

    rows = rows_of(name, 0, data_dir)[0]
    problem = FitSpec.of("sgpr-hmc", Model(RBF(), rows.columns), rows, Settings()).problem()
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    phi = problem.model.start()
    return problem, target, phi, starting_inducing(problem, target, phi)[0]


def long_ascent(job: dict, data_dir: str) -> dict:
    """ML-II by L-BFGS: the library's, or SciPy's from the same start."""
    from scipy.optimize import minimize

    from integrand.compilation import one_blas_thread
    from integrand.infer.optimise import maximise_lbfgs
    from integrand.targets.evaluation import likelihood

    _, target, phi, Z = started(job["set"], data_dir)
    n, best = len(phi), []

    def f(x):
        e = target.evaluate(x[:n], x[n:].reshape(Z.shape))
        value, d_phi = likelihood(e)
        best.append(max(value, best[-1]) if best else value)
        return value, np.concatenate([d_phi, e.dZ.ravel()])

    x, steps = np.concatenate([phi, Z.ravel()]), job["steps"]
    with one_blas_thread():
        f(x)
        best.clear()
        began = time.process_time()
        if job["by"] == "scipy":
            options = {"maxiter": steps, "maxfun": 20 * steps, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
            minimize(lambda x: tuple(-a for a in f(x)), x, jac=True, method="L-BFGS-B", options=options)
        else:
            maximise_lbfgs(f, x, max_steps=steps, tolerance=0.0)
    at = {str(k): best[k - 1] for k in (100, 200, 400, 600, 800, 1000, 2000, 3000, 4000, 5000) if k <= len(best)}
    return {"seconds": time.process_time() - began, "gradients": len(best), "bound": best[-1], "at": at}


def gpflow(job: dict, data_dir: str, python: str) -> dict:
    """GPflow's SGPR from the same start, in its own environment."""
    import jax.numpy as jnp

    from integrand.precision import float64_scope

    problem, _, phi, Z = started(job["set"], data_dir)
    X, y = map(np.asarray, problem.data.arrays())
    with float64_scope():
        theta = {name: np.asarray(value) for name, value in problem.model.theta(jnp.asarray(phi)).items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "given.npz"
        arrays: dict[str, Any] = {"X": X, "y": y, "Z": Z, "steps": job["steps"]} | theta
        np.savez(path, **arrays)
        script = Path(__file__).with_name("gpflow_ml2.py")
        done = subprocess.run([python, str(script), str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def jobs_of(arguments) -> list[dict]:
    """What is to be run, in an order that interleaves what is compared."""
    jobs = []
    if arguments.what == "convergence":
        for name in arguments.sets or LARGE:
            if arguments.gpflow:
                jobs.append({"kind": "gpflow", "set": name, "steps": 1_000})
            jobs.append({"kind": "fit", "set": name, "split": 0, "settings": {}})
        for name in arguments.sets or LARGE:
            jobs += [{"kind": "ascent", "set": name, "by": by, "steps": arguments.steps} for by in ("ours", "scipy")]
        return jobs
    exact, auto = {"method": "gpr-hmc"}, {"n_inducing": "auto", "max_inducing": arguments.max_inducing}
    for split in range(arguments.splits):
        for name in arguments.sets or SMALL:
            jobs += [{"kind": "fit", "set": name, "split": split, "settings": s} for s in (auto, {}, exact)]
    return jobs


def run_one(job: dict, arguments) -> dict:
    """The row of a job."""
    if job["kind"] == "fit":
        return one_fit(job, arguments.data_dir)
    if job["kind"] == "ascent":
        return long_ascent(job, arguments.data_dir)
    return gpflow(job, arguments.data_dir, arguments.gpflow)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("INTEGRAND_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("what", choices=["convergence", "auto"])
    parser.add_argument("--data-dir", default=default, help="directory with the data sets (INTEGRAND_DATA)")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=None)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5_000, help="of the long ascents")
    parser.add_argument("--max-inducing", type=int, default=400)
    parser.add_argument("--gpflow", default="", help="Python of an environment with GPflow")
    parser.add_argument("--out", type=Path, default=None, help="by default results/inducing-WHAT.jsonl")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    arguments.out = arguments.out or RESULTS / f"inducing-{arguments.what}.jsonl"
    if arguments.one:
        print(json.dumps(run_one(json.loads(arguments.one), arguments)))
        return
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    done = [row["job"] for row in rows]
    for job in [] if arguments.summary else jobs_of(arguments):
        if job in done:
            continue
        command = [sys.executable, "-m", "benchmarks.inducing", *sys.argv[1:], "--one", json.dumps(job)]
        environment = os.environ | {"INTEGRAND_CACHE": "off", "TF_CPP_MIN_LOG_LEVEL": "3"}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if result.returncode:
            sys.exit(result.stderr.strip()[-3000:])
        rows.append({"job": job} | json.loads(result.stdout.strip().splitlines()[-1]))
        with arguments.out.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(json.dumps({k: v for k, v in rows[-1].items() if k not in ("history", "notes")}), flush=True)
    (convergence_table if arguments.what == "convergence" else auto_table)(rows)


def convergence_table(rows: list[dict]) -> None:
    """The bars of `convergence`."""
    print("set        best 5000    bar (best-P/2-5)  averaged bound   seconds  GPflow's   ratio  verdict")
    for name in LARGE:
        of = {(row["job"]["kind"], row["job"].get("by", "")): row for row in rows if row["job"]["set"] == name}
        fit = of.get(("fit", ""))
        if fit is None:
            continue
        ascents = [row["bound"] for (kind, _), row in of.items() if kind in ("ascent", "gpflow")]
        long = any(kind == "ascent" for kind, _ in of)
        best = max(ascents) if long else float("nan")
        theirs = of.get(("gpflow", ""), {}).get("seconds", float("nan"))
        bar = best - 0.5 * fit["n_theta"] - 5.0
        verdict = "converged" if fit["ok"] else "not converged: " + ", ".join(fit["codes"])
        print(
            f"{name:10} {best:9.1f}   {bar:14.1f} {fit['bound']:15.1f} {fit['seconds']:11.1f} {theirs:9.1f} "
            f"{fit['seconds'] / theirs:7.2f}  {verdict}"
        )


def auto_table(rows: list[dict]) -> None:
    """`auto` beside M = 100 and the exact GP: means over splits, and paired differences with standard errors."""
    print("set     splits   M (auto)      NLPD: auto    M=100    exact    auto - exact   seconds: auto  M=100  exact")
    for name in SMALL:
        arms = {"auto": {}, "100": {}, "exact": {}}
        for row in rows:
            settings = row["job"].get("settings")
            if row["job"]["set"] == name and settings is not None:
                arm = "auto" if "n_inducing" in settings else "exact" if "method" in settings else "100"
                arms[arm][row["job"]["split"]] = row
        splits = sorted(set.intersection(*(set(arm) for arm in arms.values())))
        if not splits:
            continue
        nlpd = {arm: np.array([of[k]["nlpd"] for k in splits]) for arm, of in arms.items()}
        seconds = {arm: np.mean([of[k]["seconds"] for k in splits]) for arm, of in arms.items()}
        sizes = [arms["auto"][k]["M"] for k in splits]
        difference = nlpd["auto"] - nlpd["exact"]
        error = difference.std(ddof=1) / np.sqrt(len(splits)) if len(splits) > 1 else float("nan")
        print(
            f"{name:10} {len(splits):4}   {min(sizes):4} to {max(sizes):4}   "
            + " ".join(f"{nlpd[arm].mean():8.3f}" for arm in arms)
            + f"   {difference.mean():+.3f} ± {error:.3f}    "
            + " ".join(f"{seconds[arm]:7.1f}" for arm in arms)
        )


if __name__ == "__main__":
    main()
