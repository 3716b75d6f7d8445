"""The protocol between the driver and a worker. It needs only NumPy, which every environment has.

    python peer_NAME.py JOB.json RESULT.json SPAWNED

JOB.json names the task, its options and an .npz with the arrays of the problem; SPAWNED is when the driver started the
process, so that imports count. The worker writes RESULT.json, and RESULT.npz for draws, predictions, θ and Z.
An error ends the process, and the driver makes a row of it.
"""

import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np


class Job:
    """One task: the `arrays` of the problem, the `options` of the job, and a clock that started with the process."""

    def __init__(self, path, spawned):
        record = json.loads(Path(path).read_text())
        self.task, self.options = record["task"], record["options"]
        self.cores, self.seed = record["cores"], record["seed"]
        self.priors, self.jitter = record["priors"], record["jitter"]
        with np.load(record["problem"]) as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}
        self.spawned = spawned

    def __getattr__(self, name):
        try:
            return self.__dict__["arrays"][name]
        except KeyError:
            raise AttributeError(name) from None

    def seconds(self):
        """Seconds since the driver started this process."""
        return time.time() - self.spawned

    def start(self):
        """Where optimisers start: lengthscales (D,), scale and noise, the same for every peer."""
        return self.start_lengthscale, float(self.start_scale), float(self.start_noise)

    def point(self):
        """Where gradients are timed: lengthscales (D,), scale and noise, the same for every peer."""
        return self.lengthscale, float(self.scale), float(self.noise)

    def over(self):
        """Whether the soft budget is used up, so that a sampler should end with its draws so far."""
        return self.seconds() > self.options.get("cap", float("inf"))

    def predictive(self):
        """The number of draws that predict, the same for every package; 0 without predictions."""
        return self.options["predictive_draws"] if self.options.get("predict", True) else 0

    def deadline(self, since, k, n):
        """The time at which chain k of n, which run one after the other, has used its share of the soft budget."""
        return since + (self.spawned + self.options["cap"] - since) * (k + 1) / n


class Trajectory:
    """The path of an optimiser as (seconds since the process started, bound), and its best bound."""

    def __init__(self, job):
        self.job, self.points, self.best = job, [], float("-inf")

    def add(self, bound):
        self.points.append((round(self.job.seconds(), 4), float(bound)))
        self.best = max(self.best, float(bound))

    def improve(self, bound):
        """Add a bound if it is better than all before; returns whether it is."""
        better = float(bound) > self.best
        if better:
            self.add(bound)
        return better


def timed_calls(call, options):
    """Seconds of the first call, which compiles, and of each warm call, up to a number of seconds or calls."""
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    call()
    budget, least, most = options.get("seconds", 2.0), options.get("least", 5), options.get("most", 300)
    times, start = [], time.perf_counter()
    while len(times) < least or (len(times) < most and time.perf_counter() - start < budget):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return {"first": first, "calls": [round(t, 7) for t in times]}


def point_arrays(lengthscale, scale, noise, Z=None):
    """θ (and Z) of an optimum, under the names that the referee looks for."""
    point = {"lengthscale": np.asarray(lengthscale), "scale": np.asarray(scale), "noise": np.asarray(noise)}
    return point if Z is None else point | {"Z": np.asarray(Z)}


def stacked(lengthscale, scale, noise):
    """Draws (chain, draw, D + 2) from lengthscales (chain, draw, D), scales and noises (chain, draw)."""
    return np.concatenate([lengthscale, np.asarray(scale)[..., None], np.asarray(noise)[..., None]], axis=-1)


def picked(total, most):
    """Indices of at most `most` of `total` draws, evenly spaced over all chains."""
    return np.linspace(0, total - 1, min(most, total)).astype(int)


def thinned(draws, most):
    """At most `most` draws (S, P) of all chains, those that predict."""
    flat = draws.reshape(-1, draws.shape[-1])
    return flat[picked(len(flat), most)]


def serve(tasks, packages):
    """Do the job of the command line and write its result."""
    job_path, result_path, spawned = sys.argv[1:4]
    job = Job(job_path, float(spawned))
    result, arrays = tasks[job.task](job)
    result["versions"] = {"Python": platform.python_version()} | {name: metadata.version(name) for name in packages}
    result["affinity"] = sorted(os.sched_getaffinity(0))
    result["peak_mb"] = peak_mb()
    if arrays:
        np.savez_compressed(Path(result_path).with_suffix(".npz"), **arrays)
    Path(result_path).write_text(json.dumps(result))


def peak_mb():
    """The peak memory of this process in MB; 0 where the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024.0 for line in lines if line.startswith("VmHWM")), 0.0)


def in_processes(part, job):
    """Run part((job's path, spawned), seeds) in a fresh process per core; all chains, and the first entries of the row.

    For samplers of one chain at a time. A part returns its chains and their seconds.
    """
    import multiprocessing

    seeds = [job.seed * 100 + k for k in range(job.options["chains"])]
    tasks = [((sys.argv[1], job.spawned), seeds[k :: job.cores]) for k in range(job.cores)]
    with multiprocessing.get_context("spawn").Pool(job.cores) as pool:
        results = pool.starmap(part, tasks, chunksize=1)
    chains = [chain for some, _ in results for chain in some]
    if len(chains) < len(seeds):
        raise TimeoutError(f"tuning did not end within the budget of {job.options['cap']} s")
    sampling = max(spent for _, spent in results)
    return chains, {"seconds": job.seconds(), "sampling_seconds": sampling, "tune": job.options["tune"]}


def mixture(predictions):
    """The arrays of predictions, from (means, variances) at the test rows for each of several θ."""
    return {"means": np.array([m for m, _ in predictions]), "variances": np.array([v for _, v in predictions])}
