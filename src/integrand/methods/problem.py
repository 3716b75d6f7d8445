"""What every method is given: a problem in standardised units, settings, and helpers to start from."""

import math
import operator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float

from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.errors import InputError
from integrand.inducing import candidates, distinct_rows
from integrand.infer.chains import Chains
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.storage import RunDirectory
from integrand.precision import float64_scope
from integrand.progress import Clock, Progress, Silent
from integrand.targets import CollapsedTarget, Counter, gp_at

# Samplers of a density that JAX traces (`infer/transitions.py`), and all of them.
TRACED = ("hmc", "mala", "metropolis", "slice")
SAMPLERS = ("default", "nuts", *TRACED, "nested", "sghmc")

# Where there are so many times as many rows as a sample has, the sample searches.
_LEAST_FOLD = 2.5


@dataclass(frozen=True)
class Settings:
    """How hard to try. The defaults are those of the estimator and the command line."""

    n_inducing: int = 100
    chains: int = 4
    target_ess: float = 400.0
    max_draws: int = 5_000  # for each chain
    max_minutes: float | None = None
    target_accept: float = 0.7
    optimiser: str = "lbfgs"  # or "adam", as in the paper
    steps: int = 1_000  # of the optimiser, for methods that only optimise
    warm_steps: int = 200
    tune: int = 60  # tuning steps of a chain; half as many where one is gone on with
    round_draws: int = 40  # draws of each chain in a round
    restarts: int = 1
    max_rounds: int = 5
    schedule: str = "default"  # or "paper"
    sampler: str = "default"  # of θ: the method's own (jumps for θ alone, NUTS for most); or one of SAMPLERS
    vi_covariance: str = "full"  # or "diagonal": of the Gaussian q(θ) of variational methods
    importance_draws: int = 64  # of f, for each estimate of p(y | θ) in `pseudo-marginal`
    batch_size: int = 200  # rows of a step, for methods that climb on batches
    learning_rate: float = 0.01  # of Adam on batches
    predictive_draws: int = 400  # draws kept for predicting, evenly thinned
    live_points: int = 250  # of nested sampling
    max_exact_rows: int = 8_000  # exact methods factor a matrix with as many rows at every step
    grow: bool | None = None  # begin on a sample of the rows; None: where there are many more than a sample has
    sample_rows: int = 20_000  # of that sample
    seed: int = 0

    def __post_init__(self):
        counts = "n_inducing chains max_draws steps warm_steps restarts tune round_draws max_rounds"
        counts += " predictive_draws batch_size importance_draws max_exact_rows live_points sample_rows"
        for name in counts.split():
            self._check_count(name, least=1)
        self._check_count("seed", least=0)
        self._check_number("target_ess", 0.0, math.inf)
        self._check_number("target_accept", 0.0, 1.0)
        self._check_number("learning_rate", 0.0, math.inf)
        if self.max_minutes is not None:
            self._check_number("max_minutes", 0.0, math.inf)
        choices = {"optimiser": ("lbfgs", "adam"), "schedule": ("default", "paper"), "sampler": SAMPLERS}
        choices["vi_covariance"] = ("full", "diagonal")
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")

    def _check_count(self, name: str, least: int) -> None:
        value = getattr(self, name)
        try:
            if isinstance(value, bool) or operator.index(value) < least:
                raise TypeError
        except TypeError:
            raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}") from None

    def samples(self, n_rows: int) -> bool:
        """Whether a fit of so many rows begins on a sample of them."""
        wanted = n_rows >= _LEAST_FOLD * self.sample_rows if self.grow is None else self.grow
        return wanted and n_rows > self.sample_rows

    def _check_number(self, name: str, above: float, below: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not above < value < below:
            limits = f"positive and finite, not {value!r}" if below == math.inf else f"between 0 and 1, not {value!r}"
            raise InputError(f"{name} must be {limits}")


def refuse_many_rows(n_rows: int, settings: Settings) -> None:
    """Exact methods take N³ time and N² memory: no more rows than the user allows."""
    most = settings.max_exact_rows
    if n_rows > most:
        raise InputError(
            f"an exact GP factors a matrix with {n_rows} rows at every step (limit {most}): use a sparse method such "
            "as ml2 or sgpr-hmc, or raise max_exact_rows"
        )


@dataclass(frozen=True)
class Problem:
    """Standardised data, the model, and where progress and state go."""

    model: Model
    data: Dataset
    scaler: Standardiser
    settings: Settings
    jitter: Jitter = Jitter()
    progress: Progress = field(default_factory=Silent)
    run: RunDirectory | None = None
    clock: Clock = field(default_factory=Clock)
    Z: Float[np.ndarray, "M D"] | None = None  # inducing inputs to start from, standardised
    sample: Dataset | None = None  # some of the rows, in memory, standing for all: where there are very many
    sample_counter: Counter = field(default_factory=Counter)  # of what the sample alone was asked

    def refuse_many_rows(self) -> None:
        """No more rows than the user allows for exact methods."""
        refuse_many_rows(self.data.n_rows, self.settings)

    def rng(self, purpose: int) -> np.random.Generator:
        """A generator for one purpose, so that what one phase draws does not depend on another."""
        return np.random.default_rng([self.settings.seed, purpose])

    @cached_property
    def n_inducing(self) -> int:
        """M: what was asked for, but no more than there are distinct rows."""
        if self.Z is not None:
            return len(self.Z)
        return min(self.settings.n_inducing, len(distinct_rows(self.some_inputs())))

    @property
    def grows(self) -> bool:
        """Whether a sample searches and all rows decide; rows that are elsewhere have one for the first Z alone."""
        asked = self.settings.sampler == "default" and self.settings.schedule == "default"  # nothing else was asked for
        return self.sample is not None and asked and self.settings.samples(self.data.n_rows)

    @property
    def over_time(self) -> bool:
        """Whether the minutes are used up."""
        minutes = self.settings.max_minutes
        return minutes is not None and self.clock.elapsed > 60.0 * minutes

    def some_inputs(self) -> Float[np.ndarray, "K D"]:
        """Rows to start inducing inputs from: all, or a uniform sample where not all are at hand."""
        return np.asarray((self.data if self.data.local or self.sample is None else self.sample).arrays()[0])


def starting_inducing(
    problem: Problem, target: CollapsedTarget, phi: Float[np.ndarray, " P"], purpose: int = 0
) -> tuple[Float[np.ndarray, "M D"], str]:
    """The first Z: the candidate with the best bound at φ, and its name."""
    if problem.Z is not None:
        return problem.Z, "given"
    rng, m = problem.rng(purpose), problem.n_inducing
    with float64_scope():
        X = problem.some_inputs()
        found = candidates(rng, X, m, gp_at(problem.model, phi))
    bounds = {name: target.evaluate(phi, Z).log_likelihood for name, Z in found.items()}
    best = max(bounds, key=lambda name: bounds[name])
    return found[best], best


def one_draw(phi: Float[np.ndarray, " P"], log_density: float) -> Chains:
    """A single point in the form of draws, so that optimised and sampled results are used alike."""
    number = np.full((1, 1), log_density)
    zero = np.zeros((1, 1))
    return Chains(
        phi[None, None, :], number, -number, zero + 1.0, zero.astype(int), zero.astype(int), zero.astype(bool), zero
    )
