"""Who takes part in which measure, and how much of everything: the published tables, a coffee's worth, a smoke test."""

from dataclasses import dataclass, field, replace

from contestants import OURS

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
# As many draws predict for everyone: the default of this library.
PREDICTIVE_DRAWS = 400


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
    gradient_limit: float
    ml2_repeats: int
    ml2_limit: float
    adam_steps: int
    hyper_repeats: int
    hyper_datasets: tuple[str, ...]
    draws: dict[str, dict[str, int]]  # instead of those of the contestants' table
    cap: float  # soft, of samplers; a fifth more and they are ended
    product_repeats: int
    splits: dict[str, dict[str, int]]  # data set -> contestant -> number of splits
    accuracy_cap: float
    to_predict: dict[str, dict[str, int]] = field(default_factory=dict)  # chains that only predict
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
_LEAST = {"tune": 30, "draws": 30}
_STRETCH = {"tune": 20, "draws": 40, "chunk": 20}
# Does everything still run? Numbers mean nothing here.
SMOKE = replace(
    QUICK,
    name="smoke",
    gradient_rows=(1_000,),
    growth_rows=(1_000, 2_000),
    gradient_seconds=0.2,
    adam_steps=20,
    draws=dict.fromkeys(("pymc", "pymc-nutpie", "numpyro"), _LEAST)
    | {"gpflow-hmc": _STRETCH, "gpflow-sgpmc": _STRETCH, "pyro-exact": {"tune": 5, "draws": 6}},
    splits={"yacht": dict.fromkeys(ACCURACY, 1) | {"gpflow-sgpmc": 1}},
    without={},
)
PROFILES = {"full": FULL, "quick": QUICK, "smoke": SMOKE}
