"""kill -9 at a random moment of a fit, then resume: it finishes, and what was on disk is still there."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import integrand
from integrand.storage.run_directory import RunDirectory

FIT = """
import sys, numpy as np, integrand
from integrand.methods import sampling
sampling.SAVE_SECONDS = 0.1  # so that a fit of seconds has draws on disk when it is killed
rng = np.random.default_rng(0)
X = rng.standard_normal((60, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(60)
integrand.fit(X, y, n_inducing=8, target_ess=800, run_dir=sys.argv[1], seed=3)
"""
RESUME = """
import sys, json, warnings, numpy as np, integrand
warnings.simplefilter("ignore", integrand.ConvergenceWarning)
p = integrand.resume(sys.argv[1])
np.save(sys.argv[2], p.chains.x)
print(json.dumps({"ok": bool(p.verdict.ok), "codes": p.verdict.codes}))
"""


def saved_draws(path) -> np.ndarray | None:
    """The final draws on disk, in the order of their blocks."""
    try:
        with RunDirectory.open(path) as run:
            if not run.has("data"):
                return None  # killed before there was anything to go on from
            blocks = [run.load(name)[0]["x"] for name in run.names() if name.startswith("draws_")]
    except integrand.RunDirectoryError:
        return None  # killed before the directory held a run
    return np.concatenate(blocks, axis=1) if blocks else np.empty((4, 0, 4))


def killed_once(path, after: str, seconds: float) -> None:
    """Run a fit and kill it so many seconds after a file of this name has appeared in its directory ("": at once)."""
    process = subprocess.Popen([sys.executable, "-c", FIT, str(path)])
    while not (path / after).exists() and after and process.poll() is None:
        time.sleep(0.01)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def check(tmp_path, moments) -> list[tuple[str, int, int]]:
    """Kill a fit at each moment and resume it; returns the file waited for, draws on disk at the kill, at the end."""
    found = []
    for i, (after, seconds) in enumerate(moments):
        path, out = tmp_path / f"run{i}", tmp_path / f"draws{i}.npy"
        killed_once(path, after, seconds)
        before = saved_draws(path)
        if before is None:
            subprocess.run([sys.executable, "-c", FIT, str(path)], check=True)  # the directory can be used afresh
            continue
        done = subprocess.run([sys.executable, "-c", RESUME, str(path), str(out)], capture_output=True, text=True)
        assert done.returncode == 0, f"killed {seconds:.2f} s after {after!r}: {done.stderr}"
        assert json.loads(done.stdout.splitlines()[-1])["ok"], done.stdout
        draws = np.load(out)
        np.testing.assert_array_equal(draws[:, : before.shape[1]], before)
        found.append((after, before.shape[1], draws.shape[1]))
    print("waited for, draws on disk at the kill, draws at the end:", found)
    return found


def assert_some_in_the_middle(found, least):
    """The final draws were cut off, and not all of them were lost."""
    assert sum(0 < before < end for _, before, end in found) >= least, found


@pytest.mark.slow
def test_resumes_after_a_kill(tmp_path):
    assert_some_in_the_middle(check(tmp_path, [("draws_000.npz", 0.05)]), 1)


@pytest.mark.slow
def test_resumes_after_twenty_kills(tmp_path):
    """Ten at any moment, beginning with the first imports, and ten while the final draws are being written."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", FIT, str(tmp_path / "whole")], check=True)
    whole = time.monotonic() - began
    rng = np.random.default_rng(1)
    moments = [("", seconds) for seconds in whole * rng.uniform(0.05, 1.0, 10)]
    moments += [("draws_000.npz", seconds) for seconds in rng.uniform(0.0, 0.5, 10)]
    assert_some_in_the_middle(check(tmp_path, moments), 5)
