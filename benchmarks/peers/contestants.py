"""The contestants: label, environment, worker and options of each, and how its model differs from the others'."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Contestant:
    """A row of the tables. `caveat` says what a reader must know before comparing."""

    label: str
    environment: str
    worker: str
    options: dict[str, Any] = field(default_factory=dict)
    caveat: str = ""
    same_model: bool = True  # whether its bound or posterior is that of the others
    of_bound: str = ""
    as_predictor: str = ""  # how its predictions differ from its fit
    priors: str = ""  # preset of priors under which θ is drawn; "" if it is optimised without a prior

    @property
    def bound_label(self) -> str:
        """The label without optimiser or sampler, for tables of the bound."""
        return self.of_bound or self.label.partition(",")[0]


OURS = "integrand"

_FITC = (
    "predicts with FITC's mean and variance (`sgpr_diagonal_correction` is on by default); noise variance at least 1e-4"
)
_NO_JITTER = "adds jitter (1e-8 and up) only where a factorisation fails; "
_FIXED_Z = "Z stays where it is"
_PAPER = "paper"  # the preset whose numbers are in `plan.PRIORS`
_EXACT = "exact GP, no inducing points: another model"

CONTESTANTS = {
    OURS: Contestant("integrand `ml2`", OURS, "peer_integrand.py", {"steps": 1000}, of_bound="integrand"),
    "integrand-sgpr-hmc": Contestant(
        "integrand `sgpr-hmc`",
        OURS,
        "peer_integrand.py",
        {"method": "sgpr-hmc", "own_Z": True},
        "Z moves with θ, from the library's own start; its default priors, not those that the others are given",
        priors="pooled",
    ),
    "integrand-sgpr-hmc-paper": Contestant(
        "integrand `sgpr-hmc`",
        OURS,
        "peer_integrand.py",
        {"method": "sgpr-hmc", "own_Z": True},
        "Z moves with θ, from the library's own start; the priors that the others are given",
        priors=_PAPER,
    ),
    "integrand-fixed-z": Contestant(
        "integrand `sgpr-hmc-fixed-z`",
        OURS,
        "peer_integrand.py",
        {"method": "sgpr-hmc-fixed-z"},
        _FIXED_Z,
        priors=_PAPER,
    ),
    "integrand-fixed-z-cold": Contestant(
        "integrand `sgpr-hmc-fixed-z`, nothing on disk",
        OURS,
        "peer_integrand.py",
        {"method": "sgpr-hmc-fixed-z"},
        f"{_FIXED_Z}; the first fit of data of this shape: it compiles",
        priors=_PAPER,
    ),
    "gpflow": Contestant(
        "GPflow SGPR, L-BFGS", "gpflow", "peer_gpflow.py", {"steps": 1000}, "noise variance at least 1e-6"
    ),
    "gpflow-xla": Contestant(
        "GPflow SGPR, compiled by XLA",
        "gpflow",
        "peer_gpflow.py",
        {"xla": True},
        "`tf_fun_args={'jit_compile': True}`, which is not its default",
        of_bound="GPflow SGPR, by XLA",
    ),
    "gpflow-hmc": Contestant(
        "GPflow SGPR, HMC helper",
        "gpflow",
        "peer_gpflow.py",
        {"method": "sgpr", "tune": 300, "draws": 600},
        f"{_FIXED_Z}; HMC with 10 leapfrog steps, from the mode",
        priors=_PAPER,
    ),
    "gpflow-sgpmc": Contestant(
        "GPflow SGPMC",
        "gpflow",
        "peer_gpflow.py",
        {"method": "sgpmc", "tune": 200, "draws": 600},
        f"{_FIXED_Z}; u is drawn too, so that θ has the same posterior as with SGPR",
        priors=_PAPER,
    ),
    "gpytorch": Contestant(
        "GPyTorch SGPR, Adam 0.1",
        "gpytorch",
        "peer_gpytorch.py",
        {"rate": 0.1},
        _NO_JITTER + _FITC,
        as_predictor="predicts as FITC",
    ),
    "gpytorch-slow": Contestant(
        "GPyTorch SGPR, Adam 0.01",
        "gpytorch",
        "peer_gpytorch.py",
        {"rate": 0.01},
        _NO_JITTER + _FITC,
        as_predictor="predicts as FITC",
    ),
    "pyro-exact": Contestant(
        "GPyTorch exact GP, Pyro NUTS",
        "gpytorch",
        "peer_gpytorch.py",
        {"tune": 150, "draws": 150},
        f"{_EXACT}; the same recipe on GPyTorch's SGPR leaves out the trace term, which only its own objective adds; "
        "by Cholesky, not by the random estimates that it has from 800 rows on",
        same_model=False,
        priors=_PAPER,
    ),
    "pymc": Contestant(
        "PyMC MarginalApprox VFE, NUTS",
        "pymc",
        "peer_pymc.py",
        {"method": "nuts", "tune": 200, "draws": 200},
        f"{_FIXED_Z}, its gradient is in θ alone; PyTensor from pip has no BLAS to link: products are NumPy's",
        of_bound="PyMC MarginalApprox VFE, in θ alone",
        priors=_PAPER,
    ),
    "pymc-z": Contestant(
        "PyMC MarginalApprox VFE, Z as a variable",
        "pymc",
        "peer_pymc.py",
        {"with_Z": True},
        "Z declared as a flat variable, which PyMC is not made for",
        of_bound="PyMC MarginalApprox VFE, in θ and Z",
    ),
    "pymc-numba": Contestant(
        "PyMC MarginalApprox VFE, compiled by Numba",
        "pymc",
        "peer_pymc.py",
        {"mode": "NUMBA"},
        "PyTensor's mode `NUMBA` in place of its default, C; in θ alone",
        of_bound="PyMC MarginalApprox VFE, by Numba, in θ alone",
    ),
    "pymc-nutpie": Contestant(
        "PyMC MarginalApprox VFE, nutpie",
        "pymc",
        "peer_pymc.py",
        {"method": "nutpie", "tune": 200, "draws": 200},
        f"{_FIXED_Z}; its gradient is compiled by Numba",
        priors=_PAPER,
    ),
    "gpjax": Contestant(
        "GPJax collapsed ELBO, `fit_scipy`",
        "gpjax",
        "peer_gpjax.py",
        {"steps": 500},
        "names no method to SciPy, which takes BFGS, not the L-BFGS-B of its docstring; 500 steps are its default",
    ),
    "gpjax-lbfgs": Contestant(
        "GPJax collapsed ELBO, `fit_lbfgs`",
        "gpjax",
        "peer_gpjax.py",
        {"steps": 1000, "optimiser": "lbfgs"},
        "one compiled loop: when it passed a target is not known, only when it ended; its default is 100 steps",
    ),
    "numpyro": Contestant(
        "NumPyro, the bound written naively",
        "numpyro",
        "peer_numpyro.py",
        {"tune": 200, "draws": 200},
        f"{_FIXED_Z}; chains wait for each other every 50 steps",
        of_bound="NumPyro, the bound written naively",
        priors=_PAPER,
    ),
    "sklearn": Contestant("scikit-learn exact GP", "sklearn", "peer_sklearn.py", {}, _EXACT, same_model=False),
}

# The environments that `--install` makes; the worker peer_NAME.py has the pins of each.
ENVIRONMENTS = sorted({c.environment for c in CONTESTANTS.values()} - {OURS})
