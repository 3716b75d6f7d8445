"""The jobs of the benchmark, as data: what is measured, on what, by whom, how often and with which budget."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from contestants import CONTESTANTS
from profiles import (
    FULL,
    GRADIENT,
    HYPERPOSTERIOR,
    MEASURES,
    ML2,
    PREDICTIVE_DRAWS,
    PROFILES,
    QUICK,
    SMOKE,
    UCI,
    Profile,
)

__all__ = [
    "FULL",
    "MEASURES",
    "PRIORS",
    "PROFILES",
    "QUICK",
    "SMOKE",
    "UNTIMED",
    "Job",
    "group",
    "jobs",
    "warm_jobs",
]

# Where bounds and posteriors are compared all peers have this jitter on k(Z, Z): the default of most of them.
COMMON_JITTER = 1e-6
# Of the preset `paper`: Gamma(shape, rate) of lengthscales, half-Cauchy(scale) of the standard deviations.
PRIORS = {"lengthscale": (2.0, 1.0), "scale": (1.0,), "noise": (1.0,)}


# What is read of these are predictions, not seconds: they run side by side, each on one core.
UNTIMED = ("accuracy",)


@dataclass(frozen=True)
class Job:
    """One child process. Jobs with equal keys are the same job, whichever measure asked for it."""

    measure: str
    task: str
    problem: str  # DATASET-SPLIT or synthetic-ROWS
    contestant: str
    repeat: int
    cores: int
    threads: int  # of BLAS and the like, in each process
    limit: float  # seconds, then it is ended
    jitter: float | None  # None: whatever the package has
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        return f"{self.measure}/{self.problem}/{self.contestant}-{self.cores}/{self.repeat}"

    @property
    def group(self) -> str:
        return group(self.measure, self.problem, self.key)

    @property
    def keeps(self) -> bool:
        """Whether this library finds programs on disk that a job before has compiled."""
        return self.options.get("programs") == "kept"

    def record(self) -> dict[str, Any]:
        """What the worker and the result file are told."""
        return asdict(self) | {"priors": PRIORS, "key": self.key}


def group(measure: str, problem: str, key: str) -> str:
    """Jobs that are compared by their seconds have the same: they belong on one processor."""
    if measure in UNTIMED:
        return key
    if measure == "gradient":
        return f"gradient/{problem}"
    return problem  # the whole product stands beside ML-II and beside hyperposteriors


# Of samplers whose chains hardly move: they would use up any budget, and have no ESS to compare at its end.
_CAPS = {"gpflow-sgpmc": 60.0, "gpflow-hmc": 90.0, "pyro-exact": 120.0}
# Of synthetic rows one process: with so many calls at least, fewer where they take long.
_LEAST_CALLS = {"synthetic-100000": 3, "synthetic-1000000": 2}
# Runs of those that take long or are no close call: what is timed fits into two hours, and so onto one machine.
_AT_MOST = {
    "gradient": dict.fromkeys(("gpjax", "numpyro", "gpflow-xla", "pymc-z", "pymc-numba"), 1)
    | {"gpytorch": 2, "pymc": 2},
    "ml2": dict.fromkeys(("gpjax", "gpjax-lbfgs", "sklearn", "gpytorch-slow"), 1),
    "hyperposterior": dict.fromkeys(("pymc", "gpflow-hmc", "gpflow-sgpmc", "numpyro", "pyro-exact"), 1)
    | {"integrand-fixed-z-cold": 2},
}
# Where those stand that are not made for this, or would only give up: shown on these problems alone.
_ONLY_ON = {
    "pymc-z": ("synthetic-10000",),
    "pymc-numba": (*(f"{dataset}-0" for dataset in UCI), "synthetic-10000"),
    "gpflow-xla": ("yacht-0", "synthetic-10000"),
    "gpflow-hmc": ("yacht-0", "boston-0", "energy-0"),
    "gpflow-sgpmc": ("yacht-0",),
    "pyro-exact": ("yacht-0",),
}


def jobs(profile: Profile, measures: Sequence[str] = MEASURES) -> list[Job]:
    """All jobs in the order of running: whatever is compared runs one after the other, repeats are far apart."""
    found: dict[str, Job] = {}
    for measure in measures:
        for job in _BUILDERS[measure](profile):
            found.setdefault(job.key, job)
    return list(found.values())


def _options(contestant: str, **more: Any) -> dict[str, Any]:
    return CONTESTANTS[contestant].options | more


def _taking_part(
    profile: Profile, measure: str, names: Sequence[str], problem: str, repeat: int, repeats: int
) -> Iterator[str]:
    """Those who run this problem this time, in another order each time, so that nobody is always first."""
    k = repeat % len(names)
    for name in (*names[k:], *names[:k]):
        left_out = name in profile.without.get(measure, ()) or problem not in _ONLY_ON.get(name, (problem,))
        if not left_out and repeat < _AT_MOST.get(measure, {}).get(name, repeats):
            yield name


def _gradients(profile: Profile, problems: Sequence[str], cores: Sequence[int], repeats: int) -> Iterator[Job]:
    for repeat in range(repeats):
        for problem in problems:
            if problem.startswith("synthetic") and repeat > 0:
                continue
            least = _LEAST_CALLS.get(problem, 5)
            for n in cores:
                for name in _taking_part(profile, "gradient", GRADIENT, problem, repeat, repeats):
                    options = _options(name, seconds=profile.gradient_seconds, least=least, most=1000)
                    limit = profile.gradient_limit
                    yield Job("gradient", "gradient", problem, name, repeat, n, n, limit, COMMON_JITTER, 0, options)


def _gradient(profile: Profile) -> Iterator[Job]:
    problems = [f"{d}-0" for d in profile.gradient_datasets] + [f"synthetic-{n}" for n in profile.gradient_rows]
    yield from _gradients(profile, problems, (1, 2), profile.gradient_repeats)


def _growth(profile: Profile) -> Iterator[Job]:
    problems = [f"synthetic-{n}" for n in profile.growth_rows]
    yield from _gradients(profile, problems, (2,), 1)


def _optimisation(profile: Profile, measure: str, problem: str, name: str, repeat: int, jitter: Any) -> Job:
    options = _options(name)
    if name.startswith("gpytorch"):
        options["steps"] = profile.adam_steps
    return Job(measure, "ml2", problem, name, repeat, 2, 2, profile.ml2_limit, jitter, repeat, options)


def _ml2(profile: Profile) -> Iterator[Job]:
    for repeat in range(profile.ml2_repeats):
        for dataset in profile.datasets:
            problem = f"{dataset}-0"
            for name in _taking_part(profile, "ml2", ML2, problem, repeat, profile.ml2_repeats):
                yield _optimisation(profile, "ml2", problem, name, repeat, COMMON_JITTER)
            if repeat < profile.product_repeats:  # in the same minutes as what it is compared with
                yield _whole(profile, dataset, repeat)


def _sampling(
    profile: Profile, measure: str, problem: str, name: str, repeat: int, jitter: Any, cap: float, **more: Any
) -> Job:
    """Chains side by side: one thread of BLAS in each process is best for all who take part."""
    cap = min(cap, _CAPS.get(name, cap) * (2.0 if measure in UNTIMED else 1.0))  # those have one core of two
    known = {"cap": cap, "chains": 4, "priors": CONTESTANTS[name].priors, "predictive_draws": PREDICTIVE_DRAWS}
    options = _options(name, **known) | profile.draws.get(name, {}) | more
    return Job(measure, "sample", problem, name, repeat, 2, 1, 1.2 * cap + 60.0, jitter, repeat, options)


def _hyperposterior(profile: Profile) -> Iterator[Job]:
    measure, repeats = "hyperposterior", profile.hyper_repeats
    for repeat in range(repeats):
        for dataset in profile.hyper_datasets:
            problem = f"{dataset}-0"
            for name in _taking_part(profile, measure, HYPERPOSTERIOR, problem, repeat, repeats):
                more = {"predict": False} | _KEEPING.get(name, {})
                yield _sampling(profile, measure, problem, name, repeat, COMMON_JITTER, profile.cap, **more)
            if repeat < profile.product_repeats:  # the same jobs as those beside ML-II: nothing is run twice
                yield _whole(profile, dataset, repeat)


def _whole(profile: Profile, dataset: str, repeat: int) -> Job:
    """Ours with its defaults, threads included."""
    job = _sampling(profile, "product", f"{dataset}-0", "integrand-sgpr-hmc", repeat, None, profile.cap)
    return replace(job, threads=2)


def _product(profile: Profile) -> Iterator[Job]:
    """Ours only: its first repeats run beside what it is compared with, in the other measures, and the rest here."""
    for repeat in range(profile.product_repeats):
        for dataset in profile.datasets:
            yield _whole(profile, dataset, repeat)


def _accuracy(profile: Profile) -> Iterator[Job]:
    most = max(n for names in profile.splits.values() for n in names.values())
    for split in range(most):
        for dataset, names in profile.splits.items():
            for name, count in names.items():
                if split >= count:
                    continue
                problem = f"{dataset}-{split}"
                if name in ML2:
                    job = _optimisation(profile, "accuracy", problem, name, 0, None)
                else:
                    fewer = profile.to_predict.get(name, {})
                    job = _sampling(profile, "accuracy", problem, name, 0, None, profile.accuracy_cap, **fewer)
                yield replace(job, cores=1, threads=1)


_BUILDERS = {
    "gradient": _gradient,
    "ml2": _ml2,
    "hyperposterior": _hyperposterior,
    "product": _product,
    "accuracy": _accuracy,
    "growth": _growth,
}

# One small job that nobody times, for each environment: its files are then in memory, and compilers' caches are there.
_WARM = {"sklearn": "ml2"}
_SMALL = "synthetic-300"
# What Numba and this library compile they keep on disk for each problem apart, PyTensor's C code is the same for all.
_WARM_EACH = ("pymc-nutpie", "integrand-fixed-z")
# Timed where others find what they compiled, ours does too.
_KEEPING = {"integrand-fixed-z": {"programs": "kept"}}


def warm_jobs(waiting: Sequence[Job]) -> list[Job]:
    """What to run before `waiting`, and to throw away."""
    environments = sorted({CONTESTANTS[job.contestant].environment for job in waiting})
    small = [(name, _WARM.get(name, "gradient"), _SMALL) for name in environments]
    timed = [job for job in waiting if job.measure not in UNTIMED]
    each = sorted({(job.contestant, job.task, job.problem) for job in timed if job.contestant in _WARM_EACH})
    few = {"seconds": 0.0, "least": 1, "steps": 2, "tune": 10, "draws": 10, "cap": 200.0, "chains": 2, "predict": False}

    def options(name: str) -> dict[str, Any]:
        return _options(name, **few, priors=CONTESTANTS[name].priors) | _KEEPING.get(name, {})

    return [
        Job("warm-up", task, problem, name, 0, 2, 1, 300.0, COMMON_JITTER, 0, options(name))
        for name, task, problem in small + each
    ]
