"""The jobs of the benchmark, as data: what is measured, on what, by whom, how often and with which budget."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from contestants import CONTESTANTS, OURS

UCI = ("boston", "concrete", "energy", "winered", "yacht")
MEASURES = ("gradient", "ml2", "hyperposterior", "product", "accuracy", "growth")

# Where bounds and posteriors are compared all peers have this jitter on k(Z, Z): the default of most of them.
COMMON_JITTER = 1e-6
# Of the preset `paper`: Gamma(shape, rate) of lengthscales, half-Cauchy(scale) of the standard deviations.
PRIORS = {"lengthscale": (2.0, 1.0), "scale": (1.0,), "noise": (1.0,)}

GRADIENT = (OURS, "gpflow", "gpytorch", "pymc", "pymc-z", "gpjax", "numpyro")
ML2 = (OURS, "gpflow", "gpytorch", "gpytorch-slow", "gpjax", "sklearn")
HYPERPOSTERIOR = ("integrand-fixed-z", "pymc", "pymc-nutpie", "gpflow-hmc", "numpyro", "pyro-exact")
ACCURACY = (OURS, "integrand-sgpr-hmc", "gpflow", "gpytorch", "gpjax", "sklearn", "pymc-nutpie")


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

    def record(self) -> dict[str, Any]:
        """What the worker and the result file are told."""
        return asdict(self) | {"priors": PRIORS, "key": self.key}


@dataclass(frozen=True)
class Profile:
    """How much of everything: `FULL` is the published table, `QUICK` takes a coffee."""

    name: str
    datasets: tuple[str, ...]
    gradient_datasets: tuple[str, ...]
    gradient_rows: tuple[int, ...]  # of the synthetic sets, one thread and two
    growth_rows: tuple[int, ...]
    gradient_repeats: int
    gradient_seconds: float
    ml2_repeats: int
    steps: dict[str, int]  # of optimisers that do not end by themselves
    hyper_repeats: int
    hyper_datasets: tuple[str, ...]
    draws: dict[str, dict[str, int]]  # instead of those of the contestants' table
    cap: float  # soft, of samplers; a fifth more and they are ended
    product_repeats: int
    splits: dict[str, dict[str, int]]  # data set -> contestant -> number of splits
    accuracy_cap: float


FULL = Profile(
    name="full",
    datasets=UCI,
    gradient_datasets=UCI,
    gradient_rows=(10_000, 100_000),
    growth_rows=(1_000, 10_000, 100_000, 1_000_000),
    gradient_repeats=3,
    gradient_seconds=1.5,
    ml2_repeats=3,
    steps={"adam": 2000},
    hyper_repeats=2,
    hyper_datasets=UCI,
    draws={},
    cap=1500.0,
    product_repeats=3,
    splits={
        "yacht": dict.fromkeys(ACCURACY, 10) | {"gpflow-sgpmc": 2, "pyro-exact": 2},
        "concrete": dict.fromkeys(ACCURACY, 10) | {"gpflow-sgpmc": 1},
    },
    accuracy_cap=900.0,
)

_FEW = {"tune": 100, "draws": 100}
QUICK = Profile(
    name="quick",
    datasets=("yacht",),
    gradient_datasets=("yacht",),
    gradient_rows=(10_000,),
    growth_rows=(1_000, 10_000),
    gradient_repeats=1,
    gradient_seconds=1.0,
    ml2_repeats=1,
    steps={"adam": 500},
    hyper_repeats=1,
    hyper_datasets=("yacht",),
    draws={"pymc": _FEW, "pymc-nutpie": _FEW, "numpyro": _FEW, "gpflow-hmc": {"tune": 100, "draws": 200}}
    | {"pyro-exact": {"tune": 20, "draws": 20}},
    cap=75.0,
    product_repeats=1,
    splits={"yacht": dict.fromkeys(ACCURACY, 1)},
    accuracy_cap=60.0,
)
_LEAST = {"tune": 30, "draws": 30}
# Does everything still run? Numbers mean nothing here.
SMOKE = replace(
    QUICK,
    name="smoke",
    datasets=("yacht",),
    gradient_datasets=("yacht",),
    gradient_rows=(1_000,),
    growth_rows=(1_000, 2_000),
    gradient_seconds=0.2,
    steps={"adam": 20},
    draws=dict.fromkeys(("pymc", "pymc-nutpie", "numpyro"), _LEAST)
    | {"gpflow-hmc": {"tune": 20, "draws": 40, "chunk": 20}, "gpflow-sgpmc": {"tune": 20, "draws": 40, "chunk": 20}}
    | {"pyro-exact": {"tune": 5, "draws": 6}},
    splits={"yacht": dict.fromkeys(ACCURACY, 1) | {"gpflow-sgpmc": 1}},
)
PROFILES = {"full": FULL, "quick": QUICK, "smoke": SMOKE}

# Of samplers that would use up any budget: another model, or chains that hardly move.
_CAPS = {"pyro-exact": 180.0, "gpflow-sgpmc": 120.0}
# Where a call takes seconds: so many calls at least, and so many processes at most.
_LARGE = {"synthetic-100000": (3, 2), "synthetic-1000000": (2, 1)}
# Of these one run says enough: they take long, and nothing about them is a close call.
_ONCE = {
    "gradient": ("pymc-z",),
    "ml2": ("sklearn", "gpytorch-slow"),
    "hyperposterior": ("pymc", "pyro-exact", "gpflow-hmc", "numpyro"),
}
# PyMC with Z as a variable is not made for that: where it stands is shown once, small and large.
_WITH_Z = ("yacht-0", "synthetic-10000")
# Chains that only predict: as many draws as a mixture needs.
_TO_PREDICT = {"pymc-nutpie": {"tune": 200, "draws": 200}}


def jobs(profile: Profile, measures: Sequence[str] = MEASURES) -> list[Job]:
    """All jobs in the order of running: whatever is compared runs one after the other, repeats are far apart."""
    found: dict[str, Job] = {}
    for measure in measures:
        for job in _BUILDERS[measure](profile):
            found.setdefault(job.key, job)
    return list(found.values())


def _options(contestant: str, **more: Any) -> dict[str, Any]:
    return CONTESTANTS[contestant].options | more


def _repeats(measure: str, contestant: str, repeats: int) -> int:
    return 1 if contestant in _ONCE.get(measure, ()) else repeats


def _turned(names: Sequence[str], repeat: int) -> list[str]:
    """In another order each time, so that nobody is always first."""
    k = repeat % len(names)
    return [*names[k:], *names[:k]]


def _gradients(profile: Profile, problems: Sequence[str], cores: Sequence[int], repeats: int) -> Iterator[Job]:
    for repeat in range(repeats):
        for problem in problems:
            least, most = _LARGE.get(problem, (5, repeats))
            if repeat >= most:
                continue
            for n in cores:
                for name in _turned(GRADIENT, repeat):
                    if repeat >= _repeats("gradient", name, repeats) or (name == "pymc-z" and problem not in _WITH_Z):
                        continue
                    options = _options(name, seconds=profile.gradient_seconds, least=least, most=1000)
                    limit = 600.0 if profile is FULL else 120.0
                    yield Job("gradient", "gradient", problem, name, repeat, n, n, limit, COMMON_JITTER, 0, options)


def _gradient(profile: Profile) -> Iterator[Job]:
    problems = [f"{d}-0" for d in profile.gradient_datasets] + [f"synthetic-{n}" for n in profile.gradient_rows]
    yield from _gradients(profile, problems, (1, 2), profile.gradient_repeats)


def _growth(profile: Profile) -> Iterator[Job]:
    problems = [f"synthetic-{n}" for n in profile.growth_rows]
    yield from _gradients(profile, problems, (2,), min(2, profile.gradient_repeats))


def _optimisation(profile: Profile, measure: str, problem: str, name: str, repeat: int, jitter: Any) -> Job:
    options = _options(name)
    if name.startswith("gpytorch"):
        options["steps"] = profile.steps["adam"]
    return Job(measure, "ml2", problem, name, repeat, 2, 2, 900.0, jitter, repeat, options)


def _ml2(profile: Profile) -> Iterator[Job]:
    for repeat in range(profile.ml2_repeats):
        for dataset in profile.datasets:
            for name in _turned(ML2, repeat):
                if repeat < _repeats("ml2", name, profile.ml2_repeats):
                    yield _optimisation(profile, "ml2", f"{dataset}-0", name, repeat, COMMON_JITTER)
            if repeat < profile.product_repeats:  # in the same minutes as what it is compared with
                yield _whole(profile, dataset, repeat)


def _sampling(profile: Profile, measure: str, problem: str, name: str, repeat: int, jitter: Any, cap: float) -> Job:
    """Chains side by side: one thread of BLAS in each process is best for all who take part."""
    cap = min(cap, _CAPS.get(name, cap))
    options = _options(name, cap=cap, chains=4) | profile.draws.get(name, {})
    return Job(measure, "sample", problem, name, repeat, 2, 1, 1.2 * cap + 60.0, jitter, repeat, options)


def _hyperposterior(profile: Profile) -> Iterator[Job]:
    for repeat in range(profile.hyper_repeats):
        for dataset in profile.hyper_datasets:
            for name in _turned(HYPERPOSTERIOR, repeat):
                if repeat < _repeats("hyperposterior", name, profile.hyper_repeats):
                    problem = f"{dataset}-0"
                    yield _sampling(profile, "hyperposterior", problem, name, repeat, COMMON_JITTER, profile.cap)


def _whole(profile: Profile, dataset: str, repeat: int) -> Job:
    """Ours with its defaults, threads included."""
    job = _sampling(profile, "product", f"{dataset}-0", "integrand-sgpr-hmc", repeat, None, profile.cap)
    return replace(job, threads=2)


def _product(profile: Profile) -> Iterator[Job]:
    """Ours only: what it is compared with, ML-II and PyMC, is in the other measures."""
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
                    yield _optimisation(profile, "accuracy", problem, name, 0, None)
                else:
                    job = _sampling(profile, "accuracy", problem, name, 0, None, profile.accuracy_cap)
                    fewer = _TO_PREDICT.get(name, {}) if profile is FULL else {}
                    yield replace(job, options=job.options | fewer)


_BUILDERS = {
    "gradient": _gradient,
    "ml2": _ml2,
    "hyperposterior": _hyperposterior,
    "product": _product,
    "accuracy": _accuracy,
    "growth": _growth,
}
