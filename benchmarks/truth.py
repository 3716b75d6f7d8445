"""Is what is called converged right? Fits beside truth by quadrature, and samplers beside densities that are known.

    python -m benchmarks.truth [population | bimodal | sparse | targets | collinear] [--fits 300] [--out DIR]

`population`: random sets of one column with 12, 20 or 40 rows, the three presets of priors, signal to noise from 0.3 to
10; an exact GP. `bimodal`: the sets, among a thousand, whose noise has two modes; several seeds each. `sparse`: such
sets with fewer inducing points than rows; truth is that of L(θ, Z) at the Z that the fit ended with. `targets`: long
tails, a funnel, a banana, two distant modes. `collinear`: seeds on rows with two columns that are nearly the same.

Truth is the density on a grid of three hyperparameters. Each fit is a line of DIR/SUITE.jsonl: what is there is not run
again, so the benchmark can be interrupted. At the end it prints its table as Markdown.
"""

import argparse
import functools
import itertools
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import integrand
from integrand import RBF, Gamma
from integrand.infer.base import Counter, Target
from integrand.infer.convergence import ess_bulk, ess_tail
from integrand.model import Model
from integrand.precision import float64_scope

NAMES = ("lengthscale", "scale", "noise")
PRESETS, SIZES = ("paper", "pooled", "scaled"), (12, 20, 40)
QUANTILES = (0.01, 0.5, 0.99)
# The box of log hyperparameters that the first grid covers, and how far below the top the second one reaches (nats).
BOX, DEPTH = ((-6.0, 12.0), (-9.0, 8.0), (-12.0, 5.0)), 18.0
# Points to a side of the first and the second grid.
COARSE, FINE = 48, 140


# ---- truth


class Grid(NamedTuple):
    """Cells of a grid over φ, with their masses."""

    axes: tuple[np.ndarray, np.ndarray, np.ndarray]
    mass: np.ndarray  # sums to one
    log_evidence: float

    def marginal(self, i: int) -> np.ndarray:
        """Masses along one axis."""
        return self.mass.sum(axis=tuple(k for k in range(3) if k != i))

    def mean_sd(self, i: int) -> tuple[float, float]:
        """Of one hyperparameter's logarithm."""
        a, p = self.axes[i], self.marginal(i)
        mean = float(a @ p)
        return mean, math.sqrt(float((a - mean) ** 2 @ p))

    def sd_of_squares(self, i: int) -> float:
        """Of the squared distance from the mean."""
        a, p = self.axes[i], self.marginal(i)
        mean, sd = self.mean_sd(i)
        return math.sqrt(max(float((a - mean) ** 4 @ p) - sd**4, 0.0))

    def quantile(self, i: int, p: float) -> float:
        """By linear interpolation of the distribution function, whose steps are at the edges of cells."""
        a = self.axes[i]
        edges = np.append(a - 0.5 * (a[1] - a[0]), a[-1] + 0.5 * (a[1] - a[0]))
        cumulated = np.concatenate([[0.0], np.cumsum(self.marginal(i))])
        rising = np.concatenate([[True], np.diff(cumulated) > 0])
        return float(np.interp(p, cumulated[rising], edges[rising]))

    def valley(self, i: int) -> tuple[float, float, float]:
        """Where a marginal of two modes is lowest between them, its height beside the lower top, and the mass left."""
        a, p = self.axes[i], self.marginal(i)
        tops = [k for k in range(1, len(p) - 1) if p[k] > p[k - 1] and p[k] >= p[k + 1]]
        best = (math.nan, 1.0, 0.0)
        for left, right in itertools.pairwise(tops):
            k = left + int(np.argmin(p[left : right + 1]))
            height, mass = float(p[k] / min(p[left], p[right])), float(p[:k].sum())
            if height < best[1] and min(mass, 1.0 - mass) > 0.01:
                best = (float(a[k]), height, mass)
        return best


def quadrature(log_likelihood: Callable, model: Model, points: tuple[int, int] = (COARSE, FINE)) -> Grid:
    """The density on a grid that covers its mass. `log_likelihood(l, scale, noise)` has (scale, noise) as its shape."""
    box: list[tuple[float, float]] = list(BOX)
    grid: Grid | None = None
    for n in points:
        axes = tuple(np.linspace(low, high, n) for low, high in box)
        prior = [_log_prior_along(model, i, axes[i]) for i in range(3)]
        scale, noise = np.exp(axes[1])[:, None], np.exp(axes[2])[None, :]
        density = np.array([log_likelihood(math.exp(length), scale, noise) for length in axes[0]])
        density += prior[0][:, None, None] + prior[1][:, None] + prior[2]
        top = density.max()
        mass = np.exp(density - top)
        cell = math.prod(a[1] - a[0] for a in axes)
        grid = Grid(axes, mass / mass.sum(), top + math.log(mass.sum() * cell))
        high_enough = density > top - DEPTH
        for i in range(3):
            seen = np.flatnonzero(high_enough.any(axis=tuple(k for k in range(3) if k != i)))
            box[i] = (axes[i][max(seen[0] - 1, 0)], axes[i][min(seen[-1] + 1, n - 1)])
    assert grid is not None
    return grid


def _log_prior_along(model: Model, i: int, axis: np.ndarray) -> np.ndarray:
    """Log prior of one entry of φ: priors of the three are independent."""
    import jax

    with float64_scope():
        parameter = model.parameters[i]
        return np.asarray(jax.vmap(lambda x: parameter.prior.log_density(x.reshape(1)))(np.asarray(axis)))


def exact_likelihood(X: np.ndarray, y: np.ndarray) -> Callable:
    """log p(y | θ) of an RBF kernel, from one eigendecomposition for each lengthscale."""
    squares = (X - X.T) ** 2

    def log_likelihood(length: float, scale: np.ndarray, noise: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(np.exp(-0.5 * squares / length**2))
        projected = (vectors.T @ y) ** 2
        total = np.full(np.broadcast_shapes(scale.shape, noise.shape), -0.5 * len(y) * math.log(2.0 * math.pi))
        for value, p in zip(np.maximum(values, 0.0), projected, strict=True):
            variance = scale**2 * value + noise**2
            total -= 0.5 * (p / variance + np.log(variance))
        return total

    return log_likelihood


def sparse_likelihood(X: np.ndarray, y: np.ndarray, Z: np.ndarray) -> Callable:
    """L(θ, Z) of Titsias: the same with Q = Kxz Kzz⁻¹ Kzx, less tr(K - Q) / (2 noise²)."""
    n = len(y)

    def log_likelihood(length: float, scale: np.ndarray, noise: np.ndarray) -> np.ndarray:
        Kzz = np.exp(-0.5 * (Z - Z.T) ** 2 / length**2) + 1e-8 * np.eye(len(Z))
        Kzx = np.exp(-0.5 * (Z - X.T) ** 2 / length**2)
        A = np.linalg.solve(np.linalg.cholesky(Kzz), Kzx)
        values, vectors = np.linalg.eigh(A.T @ A)
        projected = (vectors.T @ y) ** 2
        total = np.full(np.broadcast_shapes(scale.shape, noise.shape), -0.5 * n * math.log(2.0 * math.pi))
        total -= 0.5 * scale**2 * max(0.0, n - float(np.sum(A * A))) / noise**2
        for value, p in zip(np.maximum(values, 0.0), projected, strict=True):
            variance = scale**2 * value + noise**2
            total -= 0.5 * (p / variance + np.log(variance))
        return total

    return log_likelihood


# ---- results


class Rows:
    """Rows of a suite on disk, one JSON object a line."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def done(self, **key: Any) -> bool:
        """Whether there is a row with these entries."""
        return any(all(row[k] == v for k, v in key.items()) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


# ---- random sets


def random_set(number: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Standardised rows of a draw from a GP, and a preset: all depend on the number alone."""
    rng = np.random.default_rng([29, number])
    n, preset = SIZES[number % 3], PRESETS[number // 3 % 3]
    X = rng.uniform(-1.0, 1.0, (n, 1))
    length, ratio = math.exp(rng.uniform(math.log(0.1), math.log(1.5))), math.exp(rng.uniform(*np.log([0.3, 10.0])))
    K = np.exp(-0.5 * (X - X.T) ** 2 / length**2)
    y = rng.multivariate_normal(np.zeros(n), K + np.eye(n) / ratio**2)
    return (X - X.mean()) / X.std(), (y - y.mean()) / y.std(), preset


def fitted(X: np.ndarray, y: np.ndarray, preset: str, seed: int, **settings: Any) -> integrand.Posterior:
    """A default fit, of an exact GP if not said otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return integrand.fit(X, y, RBF(), priors=preset, seed=seed, **({"method": "gpr-hmc"} | settings))


def scores(x: np.ndarray, grid: Grid) -> dict[str, Any]:
    """How far draws are from the truth, in Monte Carlo standard errors: by the ESS of the draws and the sd in truth.

    The sd of the draws would be too small just where they have missed a tail.
    """
    row: dict[str, Any] = {}
    for i, name in enumerate(NAMES):
        a, (mean, sd) = x[:, :, i : i + 1], grid.mean_sd(i)
        squares = (a - mean) ** 2
        z = {"mean": _z(a, mean, sd), "sd": _z(squares, sd**2, grid.sd_of_squares(i))}
        z |= {f"p{p:g}": _z((a < grid.quantile(i, p)) + 0.0, p, math.sqrt(p * (1.0 - p))) for p in QUANTILES}
        row[name] = z
    return row


def _z(a: np.ndarray, truth: float, sd: float) -> float:
    """(mean - truth) / MCSE."""
    return (float(a.mean()) - truth) / (sd / math.sqrt(max(_ess_of_mean(a), 1.0)))


def _ess_of_mean(a: np.ndarray) -> float:
    """Effective draws behind a mean: as of ranks, but of the numbers themselves."""
    from integrand.infer.convergence import _ess, _halves

    return float(_ess(_halves(a))[0]) if np.ptp(a) else float(a.size)


def described(posterior: integrand.Posterior, seconds: float) -> dict[str, Any]:
    """What a row says of every fit."""
    verdict = posterior.verdict
    assert verdict is not None
    return {
        "ok": verdict.ok,
        "codes": list(verdict.codes),
        "draws": posterior.chains.n_draws,
        "values": posterior.counts.get("values", 0),
        "gradients": posterior.counts["gradients"],
        "seconds": round(seconds, 3),
        "evidence": posterior.evidence,
        "k_hat": _k_hat(posterior.notes),
    }


def _k_hat(notes: tuple[str, ...]) -> float | None:
    """k̂, of which a note speaks."""
    said = [re.search(r"k̂ of \d+ proposals is ([-.\d]+);", note) for note in notes]
    return next((float(match[1]) for match in said if match), None)


def population(rows: Rows, fits: int) -> None:
    """One fit of each of the first random sets."""
    for number in range(fits):
        if rows.done(number=number):
            continue
        X, y, preset = random_set(number)
        grid = quadrature(exact_likelihood(X, y), Model(RBF(), 1, priors=preset))
        began = time.process_time()
        posterior = fitted(X, y, preset, number)
        row = {"number": number, "preset": preset, "n": len(y)} | described(posterior, time.process_time() - began)
        rows.add(row | {"truth": grid.log_evidence} | scores(posterior.chains.x, grid))


def bimodal_sets(rows: Rows, count: int, candidates: int = 1_000) -> list[tuple[int, Grid, float, float]]:
    """The sets whose noise has the deepest valley between two modes: number, truth, where it is, mass below."""
    known = Rows(rows.path.with_name("candidates.jsonl"))
    for number in range(len(known.rows), candidates):
        X, y, preset = random_set(number)
        model = Model(RBF(), 1, priors=preset)
        grid = quadrature(exact_likelihood(X, y), model, (COARSE,))
        at, height, mass = grid.valley(2)
        known.add({"number": number, "at": at, "height": height, "mass": mass})
    two = [row for row in known.rows if 0.05 <= row["mass"] <= 0.95]
    chosen = []
    for row in sorted(two, key=lambda row: row["height"])[:count]:
        number, at = row["number"], row["at"]
        X, y, preset = random_set(number)
        grid = quadrature(exact_likelihood(X, y), Model(RBF(), 1, priors=preset))
        chosen.append((number, grid, at, _mass_below(grid, at)))
    return chosen


def _mass_below(grid: Grid, at: float, i: int = 2) -> float:
    a = grid.axes[i]
    edges = np.append(a - 0.5 * (a[1] - a[0]), a[-1] + 0.5 * (a[1] - a[0]))
    return float(np.interp(at, edges, np.concatenate([[0.0], np.cumsum(grid.marginal(i))])))


def bimodal(rows: Rows, fits: int, seeds: int = 20) -> None:
    """Several seeds of each of the most bimodal sets."""
    chosen = bimodal_sets(rows, max(1, fits // seeds))
    for seed in range(seeds):
        for number, grid, at, mass in chosen:
            if rows.done(number=number, seed=seed):
                continue
            X, y, preset = random_set(number)
            began = time.process_time()
            posterior = fitted(X, y, preset, seed)
            row = {"number": number, "seed": seed, "mass": mass}
            row |= {"drawn": float((posterior.chains.x[:, :, 2] < at).mean()), "truth": grid.log_evidence}
            rows.add(row | described(posterior, time.process_time() - began) | scores(posterior.chains.x, grid))


def sparse(rows: Rows, fits: int, seeds: int = 4) -> None:
    """The same with half as many inducing points as rows; the truth is at the Z that the fit ended with."""
    chosen = bimodal_sets(rows, max(1, fits // seeds))
    for seed in range(seeds):
        for number, _, _, _ in chosen:
            if rows.done(number=number, seed=seed):
                continue
            X, y, preset = random_set(number)
            began = time.process_time()
            posterior = fitted(X, y, preset, seed, method="sgpr-hmc", n_inducing=len(y) // 2)
            seconds = time.process_time() - began
            grid = quadrature(sparse_likelihood(X, y, posterior.Z), Model(RBF(), 1, priors=preset))
            at, _, _ = grid.valley(2)
            mass = _mass_below(grid, at) if math.isfinite(at) else 0.0
            drawn = float((posterior.chains.x[:, :, 2] < at).mean()) if math.isfinite(at) else 0.0
            row = {"number": number, "seed": seed, "mass": mass, "drawn": drawn, "truth": grid.log_evidence}
            rows.add(row | described(posterior, seconds) | scores(posterior.chains.x, grid))


# ---- densities that are known


class Known(Target):
    """A log density in closed form, and what is asked of its draws: shares of them, by name, and the truth."""

    fast_values = True

    def __init__(self, log_density: Callable, dimension: int, shares: dict[str, tuple[Callable, float]]):
        import jax

        self.shares, self.n_theta, self.dimension = shares, dimension, dimension
        self.parallel, self.counter = 1, Counter()
        self._one = jax.jit(jax.value_and_grad(log_density))
        self._many = jax.jit(lambda xs: jax.lax.map(log_density, xs))

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Log density and gradient."""
        with float64_scope():
            value, gradient = self._one(np.asarray(x, float))
        self.counter.add(True)
        return float(value), np.asarray(gradient)

    def values(self, xs: np.ndarray) -> np.ndarray:
        """Of several x: always as many in a call, so that one program serves."""
        padded = np.resize(xs, (64 * -(-len(xs) // 64), xs.shape[1]))
        with float64_scope():
            parts = [np.asarray(self._many(padded[i : i + 64])) for i in range(0, len(padded), 64)]
        return np.concatenate(parts)[: len(xs)]


def _below(q: float, x: np.ndarray) -> np.ndarray:
    return x[..., 0] < q


def known_targets() -> dict[str, Known]:
    """Long tails, a funnel, a banana, and two distant modes of unequal width."""
    import jax.numpy as jnp
    from jax.nn import log_sigmoid
    from jax.scipy.special import logsumexp

    def quantiles(ppf: Callable) -> dict[str, tuple[Callable, float]]:
        return {f"p{p:g}": (functools.partial(_below, float(ppf(p))), p) for p in QUANTILES}

    def logit_beta(x):
        return jnp.sum(log_sigmoid(x) + 0.3 * log_sigmoid(-x)) + 3.0 * math.log(0.3)

    def log_half_cauchy(x):
        return jnp.sum(math.log(2.0 / math.pi) + x - jnp.logaddexp(0.0, 2.0 * x))

    def funnel(x):
        v = x[0]
        return -0.5 * (v / 3.0) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-v) - 0.5 * 4 * v

    def banana(x):
        return -0.5 * x[0] ** 2 / 4.0 - 0.5 * (x[1] - x[0] ** 2) ** 2 - 0.5 * x[2] ** 2

    def logit(p: float) -> float:
        u = stats.beta.ppf(p, 1.0, 0.3)
        return math.log(u) - math.log1p(-u)

    targets = {
        "logit-Beta(1, 0.3)³": Known(logit_beta, 3, quantiles(logit)),
        "log-half-Cauchy³": Known(log_half_cauchy, 3, quantiles(lambda p: math.log(stats.halfcauchy.ppf(p)))),
        "funnel in 5 dimensions": Known(funnel, 5, quantiles(lambda p: 3.0 * stats.norm.ppf(p))),
        "banana": Known(banana, 3, quantiles(lambda p: 2.0 * stats.norm.ppf(p))),
    }
    for n in (2, 8, 15):
        centre = jnp.full(n, 3.0 / math.sqrt(n) * 2.0)

        def two(x, n=n, centre=centre):
            wide = math.log(0.6) - 0.5 * jnp.sum((x + centre) ** 2)
            narrow = math.log(0.4) - 0.5 * jnp.sum((x - centre) ** 2) / 0.36 - n * math.log(0.6)
            return logsumexp(jnp.stack([wide, narrow])) - 0.5 * n * math.log(2.0 * math.pi)

        mass = {"mass of the narrow mode": (lambda x: x.sum(-1) > 0.0, 0.4)}
        targets[f"two modes in {n} dimensions"] = Known(two, n, mass)
    return targets


def sampled(target: Known, seed: int) -> tuple[Any, Any, tuple[float, float] | None]:
    """Chains, verdict and evidence of the default path: a search, pilots, warm-up and the stopping rule."""
    from integrand.data.dataset import Dataset
    from integrand.data.scaling import Standardiser
    from integrand.infer.coordinates import coordinates_at_mode
    from integrand.kernels import RBF as Kernel
    from integrand.methods.problem import FitContext, Problem, Settings
    from integrand.methods.sampling import draw_until_converged, sampler_for
    from integrand.progress import Silent
    from integrand.storage.run_store import RunStore

    # A model with as many hyperparameters, of which only their number is used.
    n = target.dimension
    kernel = Kernel(lengthscale=Gamma(2.0, 1.0), scale=Gamma(2.0, 1.0) if n > 2 else 1.0)
    columns = n - 2 if n > 2 else 1
    model = Model(kernel, columns, noise=Gamma(2.0, 1.0), mean=0.0)
    assert model.n_theta == n, (model.n_theta, n)
    X = np.zeros((3, columns))
    problem = Problem(model, Dataset.of(X, X[:, 0]), Standardiser.identity(columns), Settings(seed=seed))
    context = FitContext(problem, RunStore(None), Silent())
    coordinates = coordinates_at_mode(target.value_and_gradient, (model.start(),), saddles=True)
    chains = draw_until_converged(context, target, sampler_for(problem.settings, target), coordinates)
    return chains, context.verdict(chains, target.counter), context.evidence


def targets(rows: Rows, fits: int) -> None:
    """Several seeds of each."""
    known = known_targets()
    for seed in range(max(1, fits // len(known))):
        for name, target in known.items():
            if rows.done(name=name, seed=seed):
                continue
            began = time.process_time()
            chains, verdict, evidence = sampled(target, seed)
            row: dict[str, Any] = {"name": name, "seed": seed, "ok": verdict.ok, "codes": list(verdict.codes)}
            row |= {"draws": chains.n_draws, "seconds": round(time.process_time() - began, 3), "evidence": evidence}
            shares = {key: inside(chains.x)[..., None] + 0.0 for key, (inside, _) in target.shares.items()}
            row["shares"] = {key: [float(a.mean()), target.shares[key][1]] for key, a in shares.items()}
            z = {
                key: _z(a, p, math.sqrt(p * (1.0 - p)))
                for (key, a), (_, p) in zip(shares.items(), target.shares.values(), strict=True)
            }
            rows.add(row | {"z": z})


def targets_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Shares of draws beside the truth."""
    yield "| density | fits | converged | share | truth | mean of those that converged | largest \\|z\\| of those |"
    yield "|---|--:|--:|---|--:|--:|--:|"
    for name in dict.fromkeys(row["name"] for row in rows):
        of_name = [row for row in rows if row["name"] == name]
        ok = [row for row in of_name if row["ok"]]
        for key, (_, truth) in of_name[0]["shares"].items():
            mean = f"{np.mean([row['shares'][key][0] for row in ok]):.4f}" if ok else "-"
            z = f"{max(abs(row['z'][key]) for row in ok):.1f}" if ok else "-"
            yield f"| {name} | {len(of_name)} | {len(ok)} | {key} | {truth:g} | {mean} | {z} |"


def collinear(rows: Rows, fits: int) -> None:
    """Seeds on 300 rows whose two columns are nearly the same."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal(300)
    X = np.stack([a, a + 0.05 * rng.standard_normal(300)], axis=1)
    y = np.sin(1.5 * a) + 0.2 * rng.standard_normal(300)
    for seed in range(fits):
        if rows.done(seed=seed):
            continue
        began = time.process_time()
        posterior = fitted(X, y, "pooled", seed, method="sgpr-hmc-fixed-z", n_inducing=15)
        x = posterior.chains.x
        quantiles = np.quantile(x, 0.95, axis=(0, 1))
        ess = ess_tail(x)
        inside = [np.quantile(x[:, :, i].ravel(), (0.93, 0.97)) for i in range(x.shape[2])]
        density = [0.04 / (b - a) for a, b in inside]
        errors = [math.sqrt(0.95 * 0.05 / e) / d for e, d in zip(ess, density, strict=True)]
        row = {"seed": seed, "quantiles": quantiles.tolist(), "errors": errors, "ess": float(ess_bulk(x).min())}
        rows.add(row | described(posterior, time.process_time() - began))


def collinear_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How many seeds agree with the median of all."""
    quantiles, errors = np.array([row["quantiles"] for row in rows]), np.array([row["errors"] for row in rows])
    z = np.abs(quantiles - np.median(quantiles, axis=0)) / (math.sqrt(2.0) * errors)
    agree = int(np.sum(np.all(z < 4.0, axis=1)))
    draws = [row["draws"] for row in rows]
    yield f"{len(rows)} seeds, {sum(row['ok'] for row in rows)} converged, {_cost(rows)}."
    yield f"{agree} have all 95 % quantiles within 4 combined errors; {min(draws)} to {max(draws)} draws a chain."


# ---- tables


def population_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Root mean squares of z among the fits that say that they converged."""
    ok = [row for row in rows if row["ok"]]
    yield f"{len(rows)} fits, {len(ok) / max(1, len(rows)):.1%} converged, {_cost(rows)}."
    yield ""
    columns = ("mean", "sd", *(f"p{p:g}" for p in QUANTILES))
    yield "| hyperparameter | " + " | ".join(columns) + " | share of \\|z\\| > 4 |"
    yield "|---|" + "--:|" * (len(columns) + 1)
    for name in NAMES:
        z = np.array([[row[name][c] for c in columns] for row in ok])
        cells = [f"{math.sqrt(np.mean(column**2)):.2f}" for column in z.T]
        yield f"| {name} | " + " | ".join(cells) + f" | {np.mean(np.abs(z) > 4.0):.2%} |"
    yield from _evidence_lines(ok)


def _evidence_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    known = [row for row in rows if row.get("evidence")]
    if known:
        z = np.array([(row["evidence"][0] - row["truth"]) / row["evidence"][1] for row in known])
        error = np.median([row["evidence"][1] for row in known])
        yield ""
        yield (
            f"Log evidence: root mean square of z {math.sqrt(np.mean(z**2)):.2f} in {len(known)} fits; median error "
            f"{error:.3f} nats."
        )


def _cost(rows: list[dict[str, Any]]) -> str:
    seconds, draws = (np.mean([row[name] for row in rows]) for name in ("seconds", "draws"))
    return f"{seconds:.2f} CPU seconds and {draws:.0f} draws a chain each"


def bimodal_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How often the mass of a mode is wrong, by what the verdict says."""
    yield f"{len(rows)} fits of {len({row['number'] for row in rows})} sets, {_cost(rows)}."
    yield ""
    yield "| verdict | fits | mass wrong by more than 0.10 | root mean square error of the mass |"
    yield "|---|--:|--:|--:|"
    for label, ok in (("converged", True), ("not to be trusted", False)):
        errors = np.array([row["drawn"] - row["mass"] for row in rows if row["ok"] == ok])
        if len(errors):
            rms = math.sqrt(np.mean(errors**2))
            yield f"| {label} | {len(errors)} | {int(np.sum(np.abs(errors) > 0.10))} | {rms:.3f} |"
    yield from _evidence_lines([row for row in rows if row["ok"]])


SUITES: dict[str, tuple[Callable[..., None], Callable[..., Iterator[str]], int]] = {
    "population": (population, population_table, 300),
    "bimodal": (bimodal, bimodal_table, 400),
    "sparse": (sparse, bimodal_table, 40),
    "targets": (targets, targets_table, 70),
    "collinear": (collinear, collinear_table, 50),
}


def main() -> None:
    """Run suites and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=list(SUITES), help="which: all by default")
    parser.add_argument("--fits", type=int, default=0, help="of each suite; by default as many as the table says")
    parser.add_argument("--out", default="bench-truth", help="directory of the rows")
    arguments = parser.parse_args()
    for name in arguments.suites:
        run, table, fits = SUITES[name]
        rows = Rows(Path(arguments.out) / f"{name}.jsonl")
        run(rows, arguments.fits or fits)
        print(f"## {name}\n")
        print("\n".join(table(rows.rows)), "\n", flush=True)


if __name__ == "__main__":
    main()
