"""The jobs of the benchmark, as data: who takes part in which measure, on which problem, how often and how long."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.peers.contestants import CONTESTANTS, OURS

UCI = ("boston", "concrete", "energy", "winered", "yacht")
MEASURES = ("gradient", "ml2", "hyperposterior", "product", "accuracy", "growth")

GRADIENT = (OURS, "gpflow", "gpflow-xla", "gpytorch", "pymc", "pymc-z", "pymc-numba", "gpjax", "numpyro")
ML2 = (OURS, "gpflow", "gpytorch", "gpytorch-slow", "gpjax", "gpjax-lbfgs", "sklearn")
HYPERPOSTERIOR = ("integrand-fixed-z", "integrand-fixed-z-cold", "pymc", "pymc-nutpie")
HYPERPOSTERIOR += ("gpflow-hmc", "gpflow-sgpmc", "numpyro", "pyro-exact")
ACCURACY = (
    OURS,
    "integrand-sgpr-hmc",
    "integrand-sgpr-hmc-paper",
    "integrand-fixed-z",
    "gpflow",
    "gpytorch",
    "gpjax",
    "sklearn",
    "pymc-nutpie",
)
# Draws that predict, for all packages: the default of this library.
PREDICTIVE_DRAWS = 400


@dataclass(frozen=True)
class Profile:
    """The amounts of a run: `FULL` makes the published tables, `QUICK` takes a quarter of an hour."""

    name: str
    datasets: tuple[str, ...]
    gradient_datasets: tuple[str, ...]
    gradient_rows: tuple[int, ...]  # of the synthetic sets, one thread and two
    growth_rows: tuple[int, ...]
    gradient_repeats: int
    gradient_seconds: float
    gradient_limit: float
    ml2_repeats: int
    ml2_limit: float
    adam_steps: int
    hyper_repeats: int
    hyper_datasets: tuple[str, ...]
    draws: dict[str, dict[str, int]]  # instead of those of the contestants' table
    cap: float  # seconds of samplers; after a fifth more they are ended
    product_repeats: int
    splits: dict[str, dict[str, int]]  # data set -> contestant -> number of splits
    accuracy_cap: float
    to_predict: dict[str, dict[str, int]] = field(default_factory=dict)  # draws of chains that only predict
    without: dict[str, tuple[str, ...]] = field(default_factory=dict)  # measure -> contestants left out


FULL = Profile(
    name="full",
    datasets=UCI,
    gradient_datasets=UCI,
    gradient_rows=(10_000, 100_000),
    growth_rows=(1_000, 10_000, 100_000, 1_000_000),
    gradient_repeats=3,
    gradient_seconds=1.0,
    gradient_limit=600.0,
    ml2_repeats=3,
    ml2_limit=600.0,
    adam_steps=2000,
    hyper_repeats=3,
    hyper_datasets=UCI,
    draws={},
    cap=600.0,
    product_repeats=5,  # how many draws a fit takes differs by chance
    splits={
        "yacht": dict.fromkeys(ACCURACY, 10) | {"gpflow-sgpmc": 1, "pyro-exact": 1},
        "concrete": dict.fromkeys(ACCURACY, 10),
    },
    accuracy_cap=300.0,
    to_predict={"pymc-nutpie": {"tune": 100, "draws": 100}},
)

_FEW = {"tune": 100, "draws": 100}
QUICK = Profile(
    name="quick",
    datasets=("yacht",),
    gradient_datasets=("yacht",),
    gradient_rows=(),  # growth has them
    growth_rows=(1_000, 10_000),
    gradient_repeats=1,
    gradient_seconds=0.5,
    gradient_limit=120.0,
    ml2_repeats=1,
    ml2_limit=120.0,
    adam_steps=500,
    hyper_repeats=1,
    hyper_datasets=("yacht",),
    draws={"pymc": _FEW, "pymc-nutpie": _FEW, "numpyro": _FEW},
    cap=60.0,
    product_repeats=1,
    splits={"yacht": {name: 1 for name in ACCURACY if name not in ("pymc-nutpie", "gpjax")}},
    accuracy_cap=60.0,
    without={
        "gradient": ("gpflow-xla", "pymc-z", "pymc-numba"),
        "ml2": ("gpytorch-slow", "gpjax"),  # SciPy's BFGS is several times as long under way as `fit_lbfgs`
        "hyperposterior": ("gpflow-hmc", "gpflow-sgpmc", "pyro-exact", "integrand-fixed-z-cold"),
    },
)
_SHORT = {"tune": 30, "draws": 30}
_STRETCH = {"tune": 20, "draws": 40, "chunk": 20}
# Tests that everything runs; the numbers mean nothing.
SMOKE = replace(
    QUICK,
    name="smoke",
    gradient_rows=(1_000,),
    growth_rows=(1_000, 2_000),
    gradient_seconds=0.2,
    adam_steps=20,
    draws=dict.fromkeys(("pymc", "pymc-nutpie", "numpyro"), _SHORT)
    | {"gpflow-hmc": _STRETCH, "gpflow-sgpmc": _STRETCH, "pyro-exact": {"tune": 5, "draws": 6}},
    splits={"yacht": dict.fromkeys(ACCURACY, 1) | {"gpflow-sgpmc": 1}},
    without={},
)
PROFILES = {"full": FULL, "quick": QUICK, "smoke": SMOKE}


# Where bounds and posteriors are compared, all packages have this jitter on k(Z, Z), the default of most.
COMMON_JITTER = 1e-6
# Of the preset `paper`: Gamma(shape, rate) of lengthscales, half-Cauchy(scale) of the standard deviations.
PRIORS = {"lengthscale": (2.0, 1.0), "scale": (1.0,), "noise": (1.0,)}


# Measures whose seconds are not read: their jobs run in parallel, each on one core.
UNTIMED = ("accuracy",)


@dataclass(frozen=True)
class Job:
    """One child process. Jobs with equal keys are the same job, also between measures."""

    measure: str
    task: str
    problem: str  # DATASET-SPLIT or synthetic-ROWS
    contestant: str
    repeat: int
    cores: int
    threads: int  # of BLAS and other libraries, in each process
    limit: float  # seconds, then it is ended
    jitter: float | None  # None: the default of the package
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
        """Whether this library finds programs on disk that an earlier job compiled."""
        return self.options.get("programs") == "kept"

    def record(self) -> dict[str, Any]:
        """The job as the worker and its row have it."""
        return asdict(self) | {"priors": PRIORS, "key": self.key}


def group(measure: str, problem: str, key: str) -> str:
    """The group of a job: jobs of one group are compared by their seconds, so they belong on one processor."""
    if measure in UNTIMED:
        return key
    if measure == "gradient":
        return f"gradient/{problem}"
    return problem  # the whole product stands beside ML-II and beside hyperposteriors


# Limits in seconds for samplers whose chains hardly move: they would use up any budget.
_CAPS = {"gpflow-sgpmc": 60.0, "gpflow-hmc": 90.0, "pyro-exact": 120.0}
# Minimum number of calls in a process, for synthetic rows whose calls take seconds.
_MIN_CALLS = {"synthetic-100000": 3, "synthetic-1000000": 2}
# Repeats of packages that are slow or clearly behind, so that all timed jobs fit into two hours on one machine.
_MAX_REPEATS = {
    "gradient": dict.fromkeys(("gpjax", "numpyro", "gpflow-xla", "pymc-z", "pymc-numba"), 1)
    | {"gpytorch": 2, "pymc": 2},
    "ml2": dict.fromkeys(("gpjax", "gpjax-lbfgs", "sklearn", "gpytorch-slow"), 1),
    "hyperposterior": dict.fromkeys(("pymc", "gpflow-hmc", "gpflow-sgpmc", "numpyro", "pyro-exact"), 1)
    | {"integrand-fixed-z-cold": 2},
}
# Variants that are not made for this use, or would reach their limit elsewhere, run on these problems only.
_ONLY_ON = {
    "pymc-z": ("synthetic-10000",),
    "pymc-numba": (*(f"{dataset}-0" for dataset in UCI), "synthetic-10000"),
    "gpflow-xla": ("yacht-0", "synthetic-10000"),
    "gpflow-hmc": ("yacht-0", "boston-0", "energy-0"),
    "gpflow-sgpmc": ("yacht-0",),
    "pyro-exact": ("yacht-0",),
}


def jobs(profile: Profile, measures: Sequence[str] = MEASURES) -> list[Job]:
    """All jobs in the order of running: compared jobs in a row, repeats far apart."""
    by_key: dict[str, Job] = {}
    for measure in measures:
        for job in _BUILDERS[measure](profile):
            by_key.setdefault(job.key, job)
    return list(by_key.values())


def _options(contestant: str, **more: Any) -> dict[str, Any]:
    return CONTESTANTS[contestant].options | more


def _taking_part(
    profile: Profile, measure: str, names: Sequence[str], problem: str, repeat: int, repeats: int
) -> Iterator[str]:
    """The contestants of a problem in one repeat. Their order rotates, so that none is always first."""
    k = repeat % len(names)
    for name in (*names[k:], *names[:k]):
        left_out = name in profile.without.get(measure, ()) or problem not in _ONLY_ON.get(name, (problem,))
        if not left_out and repeat < _MAX_REPEATS.get(measure, {}).get(name, repeats):
            yield name


def _gradients(profile: Profile, problems: Sequence[str], cores: Sequence[int], repeats: int) -> Iterator[Job]:
    for repeat in range(repeats):
        for problem in problems:
            if problem.startswith("synthetic") and repeat > 0:
                continue
            fewest = _MIN_CALLS.get(problem, 5)
            for n in cores:
                for name in _taking_part(profile, "gradient", GRADIENT, problem, repeat, repeats):
                    options = _options(name, seconds=profile.gradient_seconds, least=fewest, most=1000)
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
            if repeat < profile.product_repeats:  # in the same minutes as the jobs that it is compared with
                yield _whole(profile, dataset, repeat)


def _sampling(
    profile: Profile, measure: str, problem: str, name: str, repeat: int, jitter: Any, cap: float, **more: Any
) -> Job:
    """A job with parallel chains: one BLAS thread in each process is best for every package."""
    cap = min(cap, _CAPS.get(name, cap) * (2.0 if measure in UNTIMED else 1.0))  # they have one core of two
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
            if repeat < profile.product_repeats:  # the same jobs as beside ML-II: they run once
                yield _whole(profile, dataset, repeat)


def _whole(profile: Profile, dataset: str, repeat: int) -> Job:
    """The whole product: our default fit, with its default threads."""
    job = _sampling(profile, "product", f"{dataset}-0", "integrand-sgpr-hmc", repeat, None, profile.cap)
    return replace(job, threads=2)


def _product(profile: Profile) -> Iterator[Job]:
    """Repeats of the whole product. The first ones also belong to the measures that it is compared with."""
    for repeat in range(profile.product_repeats):
        for dataset in profile.datasets:
            yield _whole(profile, dataset, repeat)


def _accuracy(profile: Profile) -> Iterator[Job]:
    n_splits = max(n for names in profile.splits.values() for n in names.values())
    for split in range(n_splits):
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

# One small job per environment, not timed, brings package files into memory and fills the caches of compilers.
_WARM = {"sklearn": "ml2"}
_SMALL = "synthetic-300"
# Numba and this library cache compiled code by problem; PyTensor's C code is the same for all problems.
_WARM_EACH = ("pymc-nutpie", "integrand-fixed-z")
# Other packages find compiled code on disk in this measure, so ours does too.
_KEEPING = {"integrand-fixed-z": {"programs": "kept"}}


def warm_jobs(waiting: Sequence[Job]) -> list[Job]:
    """The jobs to run before `waiting`; their results are dropped."""
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
