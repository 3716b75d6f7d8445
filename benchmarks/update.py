"""New rows block by block, beside fits of all rows: `make bench-update`.

    python -m benchmarks.update [--jobs blocks,elevators,stream] [--out bench-update.jsonl] [--figure PATH]

`blocks` and `elevators` add 10 blocks of 200 rows to a fit of 1 000 and compare with fits of all 3 000 rows. `stream`
brings the closing prices of a share in the order of their days, and has the streaming sparse GP of Bui, Nguyen &
Turner (2017) beside it, which optimises θ and Z anew for each block. Jobs that are in the file are not done again.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from matplotlib import cbook
from scipy.optimize import minimize

import integrand as ig
from integrand.data.scaling import Standardiser
from integrand.precision import float64_scope

BLOCKS, ROWS, FIRST, TESTED = 10, 200, 1_000, 500
# Of the stream: days in a block, inducing points.
DAYS, M = 131, 60
JITTER = 1e-6


def fit(X, y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ig.fit(X, y, **options)


def simulated(seed=0):
    """A smooth function of four columns with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (FIRST + BLOCKS * ROWS + TESTED, 4))
    f = np.sin(3.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * np.cos(2.0 * X[:, 3])
    return X, f + 0.3 * rng.standard_normal(len(f))


def elevators(seed=0):
    """Rows of the paper's large set, in random order."""
    from experiments.datasets import load

    named = load("elevators")
    chosen = np.random.default_rng(seed).permutation(len(named.y))[: FIRST + BLOCKS * ROWS + TESTED]
    return named.X[chosen], named.y[chosen]


def blocks(rows, n_inducing):
    """Predictions after 10 updates against two fits of all rows, and against one at the same Z and scale."""
    X, y = rows
    n = FIRST + BLOCKS * ROWS
    new, observed = X[n:], y[n:]
    options = {"n_inducing": n_inducing, "target_ess": 400}
    began = time.perf_counter()
    first = fit(X[:FIRST], y[:FIRST], **options)
    first_seconds = time.perf_counter() - began
    posterior, seconds, refits, k_hats, effective = first, [], 0, [], []
    for k in range(BLOCKS):
        start, end = FIRST + k * ROWS, FIRST + (k + 1) * ROWS
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = ig.update(
                posterior, X[start:end], y[start:end], old_rows=(X[:start], y[:start]), target_ess=400
            )
        seconds.append(time.perf_counter() - began)
        refits += posterior.updates is None
        print(k, posterior.updates or posterior.notes[-1], f"{seconds[-1]:.1f} s", flush=True)
        if posterior.updates is not None:
            k_hats.append(posterior.updates.k_hat)
            effective.append(posterior.updates.effective)
    again, fitted = [], []
    for seed in (1, 2):
        began = time.perf_counter()
        fitted.append(fit(X[:n], y[:n], seed=seed, **options))
        again.append(time.perf_counter() - began)
    same = fit(
        ig.ArrayRows(X[:n], y[:n], scaler=posterior.scaler),
        None,
        method="sgpr-hmc-fixed-z",
        Z=posterior.Z,
        target_ess=400,
        seed=3,
    )

    def apart(a, b):
        """Largest and root mean square difference of predicted means, in predictive sds of f; ratio of the sds."""
        f, g = a.predict(new, include_noise=False), b.predict(new, include_noise=False)
        gap = (f.mean - g.mean) / g.sd
        return [float(np.abs(gap).max()), float(np.sqrt(np.mean(gap**2))), float(np.exp(np.mean(np.log(f.sd / g.sd))))]

    def theta_apart(a, b):
        """Largest difference of means of φ in combined Monte Carlo standard errors."""
        moments = []
        for p in (a, b):
            x = p.chains.x.reshape(-1, p.chains.x.shape[2])
            moments.append((x.mean(axis=0), x.std(axis=0) / np.sqrt(np.maximum(p.verdict.convergence.ess_bulk, 4.0))))
        (m1, e1), (m2, e2) = moments
        return float(np.max(np.abs(m1 - m2) / np.hypot(e1, e2)))

    def nlpd(p):
        return float(-p.predict(new, include_noise=True).log_density(observed).mean())

    return {
        "refits": refits,
        "k_hat": k_hats,
        "effective": effective,
        "first_seconds": first_seconds,
        "update_seconds": seconds,
        "fit_seconds": again,
        "updated_against_same_Z": apart(posterior, same),
        "updated_against_fit": apart(posterior, fitted[0]),
        "fit_against_fit": apart(fitted[1], fitted[0]),
        "theta_updated_against_same_Z": theta_apart(posterior, same),
        "nlpd": {"updated": nlpd(posterior), "same Z": nlpd(same), "fit": nlpd(fitted[0]), "not updated": nlpd(first)},
    }


# ---- rows in the order of time


def share():
    """Days since the first and the log of the closing price, of a share from 2004 to 2008 that Matplotlib brings."""
    table = cbook.get_sample_data("goog.npz")["price_data"]
    day = (table["date"].astype("datetime64[D]") - table["date"][0].astype("datetime64[D]")).astype(float)
    return day[:, None], np.log(table["adj_close"])


def stream():
    """After each block: errors on every fourth day so far, which no fit has seen, and seconds."""
    X, y = share()
    out = np.arange(len(y)) % 4 == 2
    ends = [*range(DAYS, 8 * DAYS - 1, DAYS), len(y)]
    scaler = Standardiser.fit(X, y)
    spread = np.linspace(X.min(), X.max(), M)[:, None]
    kernel, found = ig.Matern32(), []
    posterior, q, refits, missed = None, None, 0, 0
    moving = None
    for k, end in enumerate(ends):
        start = ends[k - 1] if k else 0
        block, sofar, held = (
            np.arange(start, end)[~out[start:end]],
            np.flatnonzero(~out[:end]),
            np.flatnonzero(out[:end]),
        )
        new, old = (X[block], y[block]), (X[sofar[: -len(block)]], y[sofar[: -len(block)]])
        row = {"rows": len(sofar)}

        def scored(name, predictive, began, row=row, held=held):
            density = predictive.log_density(y[held]) if hasattr(predictive, "log_density") else predictive[2]
            mean = predictive.mean if hasattr(predictive, "mean") else predictive[0]
            row[name] = {
                "rmse": float(np.sqrt(np.mean((mean - y[held]) ** 2))),
                "nlpd": float(-np.mean(density)),
                "seconds": began,
            }

        began = time.perf_counter()
        whole = fit(X[sofar], y[sofar], kernel=kernel, n_inducing=M, target_ess=200)
        scored("fit of all rows", whole.predict(X[held], include_noise=True), time.perf_counter() - began)
        began = time.perf_counter()
        if posterior is None:
            rows = ig.ArrayRows(*new, scaler=scaler)
            posterior = fit(rows, None, kernel=kernel, method="sgpr-hmc-fixed-z", Z=spread, target_ess=200)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                posterior = ig.update(posterior, *new, old_rows=old, target_ess=200)
            refits += posterior.updates is None
        scored("update", posterior.predict(X[held], include_noise=True), time.perf_counter() - began)
        row["update"]["refits"], updates = refits, posterior.updates
        row["update"]["k_hat"] = None if updates is None else updates.k_hat
        began = time.perf_counter()
        if moving is None:
            moving = fit(*new, kernel=kernel, n_inducing=M, target_ess=200)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                moving = ig.update(moving, *new, old_rows=old, target_ess=200)
            missed += moving.updates is None
        scored("update, Z moves in refits", moving.predict(X[held], include_noise=True), time.perf_counter() - began)
        row["update, Z moves in refits"]["refits"] = missed
        began = time.perf_counter()
        q = streaming_step(q, scaler.transform_X(new[0]), scaler.transform_y(new[1]))
        seconds = time.perf_counter() - began
        mean, variance = streaming_predict(q, scaler.transform_X(X[held]))
        mean, sd = scaler.inverse_y(mean), np.sqrt(variance) * scaler.y_sd
        log_density = -0.5 * ((y[held] - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2.0 * np.pi)
        scored("Bui et al., optimised", (mean, sd, log_density), seconds)
        found.append(row)
        print(json.dumps(row), flush=True)
    return {"blocks": found}


# The streaming sparse GP of Bui, Nguyen & Turner (2017), appendix A: θ and Z of one block are found by maximising its
# bound, with the posterior q(a) = N(m, S) of the points a that went before, under their kernel, in place of old rows.


def _matern(theta, a, b):
    r = jnp.sqrt(3.0) * jnp.abs(a - b.T) / jnp.exp(theta[0])
    return jnp.exp(2.0 * theta[1]) * (1.0 + r) * jnp.exp(-r)


def _gram(theta, a):
    return _matern(theta, a, a) + JITTER * jnp.exp(2.0 * theta[1]) * jnp.eye(len(a))


def _rows(theta, Z, X, y, earlier):
    """Rows, and the old points as rows with the covariance D_a of what they say: K, y, noise covariance."""
    s = jnp.exp(2.0 * theta[2])
    K = _matern(theta, X, Z)
    if earlier is None:
        return K, y, s * jnp.eye(len(y))
    a, said, D, *_ = earlier
    noise = jax.scipy.linalg.block_diag(s * jnp.eye(len(y)), D)
    return jnp.concatenate([K, _matern(theta, a, Z)]), jnp.concatenate([y, said]), noise


def _negative_bound(x, X, y, earlier, m):
    theta, Z = x[:3], x[3:].reshape(m, -1)
    K, target, noise = _rows(theta, Z, X, y, earlier)
    L = jnp.linalg.cholesky(_gram(theta, Z))
    A = solve_triangular(L, K.T, lower=True)
    C = jnp.linalg.cholesky(A.T @ A + noise)
    white = solve_triangular(C, target, lower=True)
    bound = -0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(C))) - 0.5 * len(target) * jnp.log(2.0 * jnp.pi)
    bound -= 0.5 * jnp.sum(jnp.exp(2.0 * theta[1]) - jnp.sum(A[:, : len(y)] ** 2, axis=0)) / jnp.exp(2.0 * theta[2])
    if earlier is not None:
        a, _, D, constant = earlier
        Q = _gram(theta, a) - A[:, len(y) :].T @ A[:, len(y) :]
        bound += constant - 0.5 * jnp.trace(jnp.linalg.solve(D, Q))
    return -bound


def streaming_step(q, X, y):
    """θ, Z, and q(u) = N(m, S) with this block; from θ and half of Z of the one before and rows of the block."""
    rng = np.random.default_rng(0)
    with float64_scope():
        if q is None:
            theta, Z, earlier = np.log([0.3, 1.0, 0.1]), rng.choice(X, min(M, len(X)), replace=False), None
        else:
            theta, a, mean, S = q["theta"], q["Z"], q["m"], q["S"]
            # 1/D = 1/S - 1/K of the old kernel: what the old points say beyond their prior.
            K = np.asarray(_gram(theta, a))
            # D to be positive definite: S is below K but for rounding.
            precision = np.linalg.inv(S) - np.linalg.inv(K)
            values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
            values = np.maximum(values, 1e-4)
            D = (vectors / values) @ vectors.T
            said = D @ np.linalg.solve(S, mean)
            logs = [np.linalg.slogdet(matrix)[1] for matrix in (S, K, D)]
            inner = np.linalg.solve(S, mean)
            constant = 0.5 * (-logs[0] + logs[1] + logs[2] + inner @ D @ inner - mean @ inner)
            constant += 0.5 * len(a) * np.log(2.0 * np.pi)
            earlier = tuple(map(jnp.asarray, (a, said, D, constant)))
            share_new = max(2, int(M * len(X) / (len(X) + q["rows"])))
            kept = rng.choice(len(a), min(M - share_new, len(a)), replace=False)
            Z = np.concatenate([a[kept], rng.choice(X, min(share_new, len(X)), replace=False)])
        Z = Z + 1e-3 * rng.standard_normal(Z.shape)
        objective = jax.jit(
            jax.value_and_grad(lambda x: _negative_bound(x, jnp.asarray(X), jnp.asarray(y), earlier, len(Z)))
        )

        def value(x):
            f, g = objective(jnp.asarray(x))
            return (float(f), np.asarray(g)) if np.isfinite(f) and np.all(np.isfinite(g)) else (1e10, np.zeros_like(x))

        best = minimize(
            value, np.concatenate([theta, Z.ravel()]), jac=True, method="L-BFGS-B", options={"maxiter": 500}
        )
        theta, Z = best.x[:3], best.x[3:].reshape(Z.shape)
        K, target, noise = _rows(jnp.asarray(theta), jnp.asarray(Z), jnp.asarray(X), jnp.asarray(y), earlier)
        Kmm = _gram(theta, Z)
        P = K.T @ jnp.linalg.solve(noise, jnp.concatenate([K, target[:, None]], axis=1))
        B = jnp.linalg.cholesky(Kmm + P[:, :-1])
        m, S = Kmm @ cho_solve((B, True), P[:, -1]), Kmm @ cho_solve((B, True), Kmm)
        rows = len(y) + (0 if q is None else q["rows"])
        return {"theta": theta, "Z": Z, "m": np.asarray(m), "S": np.asarray(0.5 * (S + S.T)), "rows": rows}


def streaming_predict(q, X):
    """Mean and variance of y at new rows."""
    with float64_scope():
        theta, Z = jnp.asarray(q["theta"]), jnp.asarray(q["Z"])
        W = jnp.linalg.solve(_gram(theta, Z), _matern(theta, Z, jnp.asarray(X)))
        K = _matern(theta, Z, jnp.asarray(X))
        variance = jnp.exp(2.0 * theta[1]) - jnp.sum(W * K, axis=0) + jnp.sum(W * (q["S"] @ W), axis=0)
        return np.asarray(W.T @ q["m"]), np.asarray(jnp.maximum(variance, 0.0) + jnp.exp(2.0 * theta[2]))


def draw(result, path):
    """NLPD on held-out days, and seconds of all blocks so far, against rows."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.2), constrained_layout=True)
    rows = [block["rows"] for block in result["blocks"]]
    colours = {"fit of all rows": "#000000", "update": "#0072b2", "Bui et al., optimised": "#d55e00"}
    for name, colour in colours.items():
        style = {"color": colour, "marker": "o", "markersize": 4}
        label = "update, Z over all years" if name == "update" else name
        left.plot(rows, [block[name]["nlpd"] for block in result["blocks"]], label=label, **style)
        right.plot(rows, np.cumsum([block[name]["seconds"] for block in result["blocks"]]), **style)
    left.set(xlabel="rows so far", ylabel="NLPD of held-out days so far")
    right.set(xlabel="rows so far", ylabel="seconds of all blocks so far", yscale="log")
    left.legend(frameon=False, fontsize=8)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


JOBS = {"blocks": lambda: blocks(simulated(), 60), "elevators": lambda: blocks(elevators(), 100), "stream": stream}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="blocks,elevators,stream")
    parser.add_argument("--out", type=Path, default=Path("bench-update.jsonl"))
    parser.add_argument("--figure", type=Path, help="where to draw the stream, a .png")
    given = parser.parse_args()
    lines = map(json.loads, given.out.read_text().splitlines()) if given.out.exists() else ()
    done = {line["job"]: line for line in lines}
    for job in given.jobs.split(","):
        if job not in done:
            done[job] = {"job": job} | JOBS[job]()
            with given.out.open("a") as file:
                file.write(json.dumps(done[job]) + "\n")
        print(json.dumps(done[job], indent=1))
    if given.figure and "stream" in done:
        draw(done["stream"], given.figure)


if __name__ == "__main__":
    main()
