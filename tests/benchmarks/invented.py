"""Rows such as the driver of the peer benchmarks writes, without running anything."""

import sys
from pathlib import Path

import numpy as np

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

from judge import convergence_numbers  # noqa: E402

SPEED = {"integrand": 1.0, "gpflow": 4.0, "gpytorch": 6.0}


def invented(job, rng):
    """A row such as the driver writes."""
    slow = next((v for k, v in SPEED.items() if job.contestant.startswith(k)), 3.0)
    result = {"seconds": 10.0 * slow, "versions": {"numpy": "2.0"}, "affinity": [0]}
    judged = {}
    if job.task == "gradient":
        result |= {"calls": [1e-3 * slow] * 3, "first": 1.0, "value": -12.5, "gradient_in": "θ, Z"}
    if job.task == "ml2":
        bound = 50.0 if slow < 5.0 else 20.0
        result |= {"bound": bound, "trajectory": [[1.0, 0.0], [5.0 * slow, bound]]}
        result |= {"stopped": "CONVERGENCE: RELATIVE REDUCTION OF F", "steps": 70}
        judged["referee_bound"] = bound
    if job.task == "sample":
        result |= {
            "sampling_seconds": 5.0 * slow,
            "tune": 50,
            "reached": True,
            "gradients": 10,
            "spent": {"final": 1.0},
        }
        judged |= convergence_numbers(np.exp(rng.standard_normal((4, 60, 3))))
    if job.task != "gradient":
        judged |= {"rmse": 1.0, "nlpd": 0.1 * slow, "coverage_50": 0.5, "coverage_80": 0.8, "coverage_95": 0.95}
    row = {"status": "done", "reason": "", "wall": 1.0, "peak_mb": 300.0, "result": result, "judged": judged}
    return row | {"job": job.record(), "when": "2026-01-02 03:04", "others": 0.0}
