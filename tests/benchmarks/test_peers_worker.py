"""The worker of this library does its three tasks; those of peers need their environments (`--profile smoke`)."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path[:0] = [str(PEERS), str(PEERS / "workers")]

import peer_integrand  # noqa: E402
import plan  # noqa: E402
from judge import judged  # noqa: E402
from protocol import Job  # noqa: E402

N, M, D = 60, 8, 2


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N + 10, D))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(N + 10)
    rows = {"X": X[:N], "y": y[:N], "X_test": X[N:], "y_test": y[N:], "Z": X[:M], "y_mean": 0.0, "y_sd": 1.0}
    point = {"lengthscale": np.full(D, 2.0), "scale": 1.0, "noise": 0.3}
    path = tmp_path_factory.mktemp("problem") / "problem.npz"
    np.savez(path, **rows, **point)
    return path


@pytest.fixture
def job(problem, tmp_path):
    def made(task, contestant, **options):
        record = plan.Job("any", task, "any", contestant, 0, 1, 1, 300.0, plan.COMMON_JITTER).record()
        path = tmp_path / "job.json"
        path.write_text(json.dumps(record | {"problem": str(problem), "options": options}))
        return Job(path, time.time())

    return made


def test_the_gradient_is_of_the_bound_at_the_given_point(job, problem):
    row, _ = peer_integrand.gradient(job("gradient", "integrand", seconds=0.0, least=3))
    with np.load(problem) as arrays:
        X, y, Z = arrays["X"], arrays["y"], arrays["Z"]

    def kernel(a, b):
        return np.exp(-0.5 * np.sum((a[:, None] - b[None]) ** 2, axis=-1) / 4.0)

    K = kernel(Z, X)
    Q = K.T @ np.linalg.solve(kernel(Z, Z) + plan.COMMON_JITTER * np.eye(M), K)
    S = Q + 0.09 * np.eye(N)
    fit = -0.5 * (N * np.log(2.0 * np.pi) + np.linalg.slogdet(S)[1] + y @ np.linalg.solve(S, y))
    assert row["value"] == pytest.approx(fit - 0.5 * (N - np.trace(Q)) / 0.09, rel=1e-9)
    assert len(row["calls"]) == 3


def test_an_optimum_is_where_the_referee_finds_the_same_bound(job, problem, tmp_path, monkeypatch):
    from integrand.targets import CollapsedTarget

    monkeypatch.setattr(CollapsedTarget, "evaluate", CollapsedTarget.evaluate)  # the worker watches it: put it back
    row, arrays = peer_integrand.ml2(job("ml2", "integrand", steps=30))
    np.savez(tmp_path / "found.npz", **arrays)
    numbers = judged("ml2", problem, tmp_path / "found.npz", row)
    assert numbers["referee_bound"] == pytest.approx(row["bound"], abs=1e-6)
    bounds = [bound for _, bound in row["trajectory"]]
    assert bounds == sorted(bounds)


def test_draws_come_with_what_the_tables_ask_of_them(job, problem, tmp_path):
    options = {"method": "sgpr-hmc-fixed-z", "priors": "paper", "chains": 2, "cap": 60.0, "predictive_draws": 20}
    row, arrays = peer_integrand.sample(job("sample", "integrand-fixed-z", **options))
    assert arrays["draws"].shape[0] == 2
    assert arrays["draws"].shape[2] == D + 2
    assert arrays["means"].shape == arrays["variances"].shape == (20, 10)
    assert row["reached"]
    assert 0.0 < row["sampling_seconds"] < row["seconds"]
    np.savez(tmp_path / "found.npz", **arrays)
    assert judged("sample", problem, tmp_path / "found.npz", row)["rmse"] < 0.5
