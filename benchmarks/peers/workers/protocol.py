"""What the driver and a worker say to each other, with nothing but NumPy: every environment has that.

    python peer_NAME.py JOB.json RESULT.json SPAWNED

JOB.json names the task, its options and an .npz with the arrays of the problem; SPAWNED is when the driver started the
process, so that imports count. The worker writes RESULT.json, and RESULT.npz for draws, predictions, θ and Z.
Whatever goes wrong is left to end the process: the driver makes a row of it.
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
    """One task: `arrays` of the problem, `options` of the recipe, and a clock that began with the process."""

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
        """Since the driver started this process."""
        return time.time() - self.spawned

    def start(self):
        """Where optimisers start: lengthscales (D,), scale and noise, the same for every peer."""
        return self.start_lengthscale, float(self.start_scale), float(self.start_noise)

    def point(self):
        """Where gradients are timed: lengthscales (D,), scale and noise, the same for every peer."""
        return self.lengthscale, float(self.scale), float(self.noise)

    def over(self):
        """Whether the soft budget is used up: a sampler should come to an end with the draws it has."""
        return self.seconds() > self.options.get("cap", float("inf"))

    def predictive(self):
        """How many draws predict, the same for every peer; 0 where nothing is predicted."""
        return self.options["predictive_draws"] if self.options.get("predict", True) else 0

    def deadline(self, began, k, n):
        """When chain k of n, one after the other since `began`, has had its share of the soft budget."""
        return began + (self.spawned + self.options["cap"] - began) * (k + 1) / n


class Trajectory:
    """(seconds since the process began, bound) as an optimiser goes, and the best bound of them."""

    def __init__(self, job):
        self.job, self.points, self.best = job, [], float("-inf")

    def add(self, bound):
        self.points.append((round(self.job.seconds(), 4), float(bound)))
        self.best = max(self.best, float(bound))

    def improve(self, bound):
        """Add a bound that is better than all before; whether it is."""
        better = float(bound) > self.best
        if better:
            self.add(bound)
        return better


def timed_calls(call, options):
    """Seconds of the first call (which compiles) and of each warm one, for some seconds or calls."""
    began = time.perf_counter()
    call()
    first = time.perf_counter() - began
    call()
    budget, least, most = options.get("seconds", 2.0), options.get("least", 5), options.get("most", 300)
    times, began = [], time.perf_counter()
    while len(times) < least or (len(times) < most and time.perf_counter() - began < budget):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return {"first": first, "calls": [round(t, 7) for t in times]}


def point_arrays(lengthscale, scale, noise, Z=None):
    """θ (and Z) of an optimum, under the names that the referee looks for."""
    found = {"lengthscale": np.asarray(lengthscale), "scale": np.asarray(scale), "noise": np.asarray(noise)}
    return found if Z is None else found | {"Z": np.asarray(Z)}


def stacked(lengthscale, scale, noise):
    """Draws (chain, draw, D + 2) from lengthscales (chain, draw, D), scales and noises (chain, draw)."""
    return np.concatenate([lengthscale, np.asarray(scale)[..., None], np.asarray(noise)[..., None]], axis=-1)


def picked(total, most):
    """Places of at most so many of `total` draws, evenly spaced over all chains."""
    return np.linspace(0, total - 1, min(most, total)).astype(int)


def thinned(draws, most):
    """At most so many draws (S, P) of all chains: those that predict."""
    flat = draws.reshape(-1, draws.shape[-1])
    return flat[picked(len(flat), most)]


def serve(tasks, packages):
    """Do the job of the command line and write what came of it."""
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
    """The most memory that this process ever had, in MB; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024.0 for line in lines if line.startswith("VmHWM")), 0.0)


def in_processes(part, job):
    """Chains by part((job's path, spawned), seeds) in a fresh process for each core, and the row they begin.

    For samplers of one chain at a time; a part returns its chains and the seconds that they took.
    """
    import multiprocessing

    seeds = [job.seed * 100 + k for k in range(job.options["chains"])]
    tasks = [((sys.argv[1], job.spawned), seeds[k :: job.cores]) for k in range(job.cores)]
    with multiprocessing.get_context("spawn").Pool(job.cores) as pool:
        found = pool.starmap(part, tasks, chunksize=1)
    chains = [chain for some, _ in found for chain in some]
    if len(chains) < len(seeds):
        raise TimeoutError(f"tuning did not end within the budget of {job.options['cap']} s")
    sampling = max(spent for _, spent in found)
    return chains, {"seconds": job.seconds(), "sampling_seconds": sampling, "tune": job.options["tune"]}


def mixture(found):
    """Arrays of what is predicted: (means, variances) at the test rows for each of some θ."""
    return {"means": np.array([m for m, _ in found]), "variances": np.array([v for _, v in found])}
