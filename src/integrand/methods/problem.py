"""Settings of a fit, the Problem that a method gets (model and rows), and the FitContext that records how it goes."""

import dataclasses
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.errors import InputError, callers_level
from integrand.inducing import distinct_rows
from integrand.infer.base import Callback, Chains, Counter, Plan, Run, Snapshot, Target
from integrand.infer.convergence import LEAST_DRAWS
from integrand.infer.coordinates import Coordinates
from integrand.infer.modes import Mode
from integrand.infer.stopping import StoppingRule
from integrand.infer.verdict import Finding, Verdict, verdict
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import Conditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.progress import Clock, Progress
from integrand.storage.run_store import RunStore, WarmStart

# Samplers whose loop runs inside XLA, and all that can be asked for.
TRACED = ("hmc", "mala", "metropolis", "slice")
SAMPLERS = ("default", "nuts", *TRACED, "nested", "sghmc")

# A fit begins on a subsample from this multiple of the subsample's size on.
_MIN_FOLD = 2.5
# Steps of methods that only optimise, where the settings do not say.
LBFGS_STEPS, ADAM_STEPS = 1_000, 5_000
# Names that settings had before, in run directories and in calls.
DEPRECATED_SETTINGS = {"tune": "warmup", "grow": "subsample", "sample_rows": "subsample_rows"}


# `n_inducing` that is chosen by the fit, and M that it begins with.
AUTO, FIRST_INDUCING = "auto", 50


def _count(default: int, least: int = 1) -> Any:
    return dataclasses.field(default=default, metadata={"least": least})


def _number(default: float, above: float = 0.0, below: float = math.inf) -> Any:
    return dataclasses.field(default=default, metadata={"above": above, "below": below})


def _choice(*choices: str) -> Any:
    return dataclasses.field(default=choices[0], metadata={"choices": choices})


@dataclasses.dataclass(frozen=True)
class Settings:
    """How hard to try. The defaults are those of the estimator and the command line."""

    n_inducing: int | str = dataclasses.field(default=100, metadata={"least": 1, "or": AUTO})
    max_inducing: int = _count(500)  # of "auto"
    chains: int = _count(4)
    target_ess: float = _number(400.0)
    max_draws: int = _count(5_000)  # of each chain
    max_minutes: float | None = dataclasses.field(default=None, metadata={"above": 0.0, "below": math.inf})
    target_accept: float = _number(0.7, below=1.0)
    optimiser: str = _choice("lbfgs", "adam")  # Adam is the paper's
    # Of the optimiser, for methods that only optimise; None: 1 000 of L-BFGS, 5 000 of Adam on batches.
    steps: int | None = dataclasses.field(default=None, metadata={"least": 1})
    warm_steps: int = _count(1_000)  # of the optimiser, before the first draw
    warmup: int = _count(60)  # draws of each chain; half as many where a chain goes on
    round_draws: int = _count(40)  # of each chain in a round
    restarts: int = _count(1)
    max_rounds: int = _count(5)
    schedule: str = _choice("default", "paper")
    sampler: str = _choice(*SAMPLERS)  # of θ; by default the method's own
    vi_covariance: str = _choice("full", "diagonal")  # of the Gaussian q(θ) of variational methods
    importance_draws: int = _count(64)  # of f, for each estimate of p(y | θ) in `pseudo-marginal`
    batch_size: int = _count(200)  # rows of a step, for methods that work on batches
    learning_rate: float = _number(0.01)  # of Adam on batches
    predictive_draws: int = _count(400)  # draws kept for predicting, evenly thinned
    live_points: int = _count(250)  # of nested sampling
    max_exact_rows: int = _count(8_000)  # exact methods factor a matrix with as many rows at every step
    subsample: bool | None = None  # begin on a subsample; None: where there are many more rows than it has
    subsample_rows: int = _count(20_000)
    seed: int = _count(0, least=0)
    jitter: Jitter = Jitter()  # on the diagonal of k(Z, Z)
    check_model: bool = True  # look at residuals and at what the inducing points cost, after the fit

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """Settings by name. An unknown name is refused, one of an earlier version is translated with a warning."""
        return cls(**cls._by_current_names(values))

    def but(self, **changes: Any) -> "Settings":
        """These settings with some changed."""
        return dataclasses.replace(self, **self._by_current_names(changes))

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> "Settings":
        """Settings of a run directory, perhaps of an earlier version."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return cls.of(values)

    @classmethod
    def _by_current_names(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        current: dict[str, Any] = {}
        for name, value in values.items():
            if name in DEPRECATED_SETTINGS:
                new = DEPRECATED_SETTINGS[name]
                if new in values:
                    raise InputError(f"{name!r} is the old name of {new!r}: give only {new!r}")
                warnings.warn(
                    f"{name}= is now {new}=: write {new}={value!r}", DeprecationWarning, stacklevel=callers_level()
                )
                name = new
            current[name] = _jitter(value) if name == "jitter" else value
        known = sorted(field.name for field in dataclasses.fields(cls))
        for name in current:
            if name not in known:
                raise InputError(f"there is no setting {name!r}: choose from {', '.join(known)}")
        return current

    def as_json(self) -> dict[str, Any]:
        """What `restored` takes, as plain values."""
        return dataclasses.asdict(self) | {"jitter": self.jitter._asdict()}

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value, limits = getattr(self, field.name), field.metadata
            if "or" in limits and value == limits["or"]:
                continue
            if "least" in limits and (value is not None or field.default is not None):
                _check_count(field.name, value, limits["least"], limits.get("or"))
            elif "above" in limits and (value is not None or field.default is not None):
                _check_number(field.name, value, limits["above"], limits["below"])
            elif "choices" in limits and value not in limits["choices"]:
                raise InputError(f"{field.name} must be one of {', '.join(limits['choices'])}, not {value!r}")

    @property
    def lbfgs_steps(self) -> int:
        """Steps of an optimiser that sees all rows at each step."""
        return LBFGS_STEPS if self.steps is None else self.steps

    @property
    def adam_steps(self) -> int:
        """Steps of Adam on batches of rows: they are shorter, so there are more by default."""
        return ADAM_STEPS if self.steps is None else self.steps

    def uses_subsample(self, n_rows: int) -> bool:
        """Whether a fit of this many rows begins on a subsample of them."""
        wanted = n_rows >= _MIN_FOLD * self.subsample_rows if self.subsample is None else self.subsample
        return wanted and n_rows > self.subsample_rows


def _jitter(value: Any) -> Jitter:
    """A Jitter as it is, or from the forms that JSON has for one."""
    try:
        relative, absolute = Jitter(**value) if isinstance(value, Mapping) else Jitter(*value)
        return Jitter(float(relative), float(absolute))
    except (TypeError, ValueError):
        raise InputError(f"jitter must be a Jitter, such as Jitter(relative=1e-8), not {value!r}") from None


def _check_count(name: str, value: Any, least: int, word: str | None) -> None:
    try:
        if isinstance(value, bool) or operator.index(value) < least:
            raise TypeError
    except TypeError:
        other = "" if word is None else f" or {word!r}"
        raise InputError(f"{name} must be a whole number of at least {least}{other}, not {value!r}") from None


def _check_number(name: str, value: Any, above: float, below: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not above < value < below:
        limits = f"positive and finite, not {value!r}" if below == math.inf else f"between 0 and 1, not {value!r}"
        raise InputError(f"{name} must be {limits}")


def refuse_many_rows(n_rows: int, settings: Settings) -> None:
    """Exact methods take N³ time and N² memory: no more rows than the user allows."""
    if n_rows > settings.max_exact_rows:
        raise InputError(
            f"an exact GP factors a matrix with {n_rows} rows at every step (limit {settings.max_exact_rows}): use a "
            "sparse method such as ml2 or sgpr-hmc, or raise max_exact_rows"
        )


@dataclasses.dataclass(frozen=True)
class Problem:
    """Standardised data, the model and the settings."""

    model: Model
    data: Dataset
    scaler: Standardiser
    settings: Settings
    method: str = "sgpr-hmc"
    Z: Float[np.ndarray, "M D"] | None = None  # inducing inputs to start from, standardised
    subsample: Dataset | None = None  # some of the rows, in memory, that represent all: where there are very many
    subsample_counter: Counter = dataclasses.field(default_factory=Counter)  # evaluations of the subsample's density

    @property
    def jitter(self) -> Jitter:
        """What is added to the diagonal of k(Z, Z)."""
        return self.settings.jitter

    def refuse_many_rows(self) -> None:
        """No more rows than the user allows for exact methods."""
        refuse_many_rows(self.data.n_rows, self.settings)

    def rng(self, stream: int) -> np.random.Generator:
        """A generator for one purpose: what one phase draws does not depend on another."""
        return np.random.default_rng([self.settings.seed, stream])

    @cached_property
    def n_inducing(self) -> int:
        """M: what was asked for, but no more than there are distinct rows."""
        if self.Z is not None:
            return len(self.Z)
        wanted = self.settings.n_inducing
        return min(FIRST_INDUCING if isinstance(wanted, str) else wanted, self.n_distinct)

    @cached_property
    def n_distinct(self) -> int:
        """Distinct rows, among those that inducing inputs start from."""
        return len(distinct_rows(self.some_inputs()))

    @property
    def use_subsample(self) -> bool:
        """Whether a subsample searches and all rows decide. (Rows on disk have a subsample for the first Z alone.)"""
        default = self.settings.sampler == "default" and self.settings.schedule == "default"
        return self.subsample is not None and default and self.settings.uses_subsample(self.data.n_rows)

    def some_inputs(self) -> Float[np.ndarray, "K D"]:
        """Rows to start inducing inputs from: all, or a uniform sample where not all are in memory."""
        return np.asarray((self.data if self.data.local or self.subsample is None else self.subsample).arrays()[0])


def _without_resuming(finding: Finding) -> Finding:
    """The finding for a fit without a run directory, which cannot be resumed."""
    if finding.code == "interrupted":
        return finding._replace(remedy="Fit again; with a run directory (run_dir) an interrupted fit can be resumed.")
    if finding.code == "budget":
        return finding._replace(remedy="Fit again with a larger budget (max_draws, max_minutes).")
    return finding


class FitContext:
    """The record of one fit: phases and their seconds, notes, findings, the history of the bound, the run store."""

    def __init__(self, problem: Problem, store: RunStore, progress: Progress, findings: tuple[Finding, ...] = ()):
        self.problem, self.settings, self.store, self.progress = problem, problem.settings, store, progress
        self.clock = Clock()
        self._earlier = store.seconds()  # of the processes that began this run
        self.store.refuse_another_kind(self.settings.sampler == "nested")
        self.notes: list[str] = []
        self.findings: list[Finding] = list(findings)  # what else the verdict has to say
        self.history: list[BoundPoint] = []
        self.interrupted = False
        self.evidence: tuple[float, float] | None = None
        self.modes: tuple[Mode, ...] = ()  # of the density of θ, as far as they are known
        self.broad: tuple[Coordinates, ...] = ()  # of what is plausible far from all modes
        self.searched = False  # whether they were looked for
        self.confirmed: bool | None = None  # whether the stopping rule ended the final draws; None: it was not asked
        self.own_verdict: Verdict | None = None  # of draws that are not chains
        self.target_accept = self.settings.target_accept

    def phase(self, name: str) -> None:
        """Begin a phase. Those that announce their own steps are not announced here."""
        self.clock.enter(name)
        self.store.save_seconds(self.seconds)
        if name not in ("rounds", "final", "conditional"):
            self.progress.phase(name)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, those before the run was resumed included; `clock` has those since."""
        now, earlier = self.clock.so_far, self._earlier
        return {name: earlier.get(name, 0.0) + now.get(name, 0.0) for name in {**earlier, **now}}

    def save_draws(self, block: int, chains: Chains) -> None:
        """Keep the draws of a block that is being drawn, and the time so far."""
        self.store.save_draws(block, chains)
        self.store.save_seconds(self.seconds)

    @property
    def over_time(self) -> bool:
        """Whether the minutes are used up."""
        minutes = self.settings.max_minutes
        return minutes is not None and self.clock.elapsed > 60.0 * minutes

    def over_half_time(self, seconds: float) -> bool:
        """Whether this many more seconds would end past half of the minutes."""
        minutes = self.settings.max_minutes
        return minutes is not None and self.clock.elapsed + seconds > 30.0 * minutes

    @property
    def short_warmup(self) -> int:
        """Warm-up where coordinates and step size are nearly known."""
        return max(1, self.settings.warmup // 2)

    def plan(self, seed: tuple[int, ...], target: Target, **more: Any) -> Plan:
        """A plan for the samplers; `seed` tells the phases of a fit apart."""
        return Plan(
            seed=(self.settings.seed, *seed),
            parallel=target.parallel,
            short_warmup=self.short_warmup,
            target_accept=self.target_accept,
            **more,
        )

    def record(self, target: Target, run: Run) -> Run:
        """Add a run's evaluations, notes and findings to the record."""
        target.counter.gradients += run.evaluations
        target.counter.failures += run.failures
        self.interrupted = run.interrupted
        self.notes += run.notes
        self.findings += run.findings
        return run

    def record_bound(self, phase: str, step: int, bound: float, error: float = 0.0) -> None:
        """Add to the history of the bound."""
        self.history.append(BoundPoint(phase, step, self.clock.elapsed, bound, error))

    def warm_start(self, ascend: Callable[[], WarmStart]) -> WarmStart:
        """The warm start: from the run directory, or by `ascend`, and then kept there."""
        self.phase("warm start")
        start = self.store.warm_start()
        if start is None:
            start = ascend()
            self.store.save_warm_start(start)
        if start.candidate:
            self.notes.append(f"Z started from {start.candidate}.")
        self.record_bound("warm start", 0, start.bound)
        return start

    def stop_in_time(self, total: int) -> Callback:
        """A callback that shows progress and ends a run whose time is up."""

        def callback(s: Snapshot) -> int | None:
            self.progress.update(s.done, total, f"{s.done} of {total} draws")
            return s.chains.n_draws if self.over_time else None

        return callback

    def converged(self, chains: Chains) -> bool:
        """Whether what has to mix has R-hat and ESS as asked for."""
        rule = StoppingRule(self.problem.model.n_theta, self.settings.target_ess, self.modes)
        return chains.n_draws >= LEAST_DRAWS and rule.holds(chains)

    def thinned(self, chains: Chains, limit: int | None = None) -> Float[np.ndarray, "J P"]:
        """The draws that predict: evenly spaced, as many from every chain, no more than `limit`."""
        wanted = min(self.settings.predictive_draws, limit or self.settings.predictive_draws)
        each = min(max(wanted // len(chains.x), 1), chains.n_draws)
        evenly = np.linspace(0, chains.n_draws - 1, each).astype(int)
        return chains.x[:, evenly].reshape(-1, chains.x.shape[2])

    def verdict(self, chains: Chains, counter: Counter, max_depth: int = Plan.max_depth, ended: str = "") -> Verdict:
        """Whether draws of θ can be trusted."""
        reached = self.converged(chains) if self.confirmed is None else self.confirmed
        result = verdict(
            chains,
            self.problem.model.names,
            target_ess=self.settings.target_ess,
            rejections=counter.failures,
            evaluations=counter.gradients + counter.values,
            max_depth=max_depth,
            ended="interrupted" if self.interrupted else ended or ("" if reached else "budget"),
        )
        return dataclasses.replace(result, findings=(*result.findings, *self.findings))

    def posterior(
        self,
        chains: Chains,
        conditional: Conditional,
        *,
        optimum: np.ndarray,
        counter: Counter,
        verdict: Verdict | None,
        Z_path: Any = None,
        counts: Mapping[str, int] | None = None,
    ) -> Posterior:
        """The one place that builds a Posterior. Entries of x behind φ (u, Z) are nuisances and left out."""
        problem = self.problem
        chains = chains._replace(x=chains.x[:, :, : problem.model.n_theta])
        self.clock.enter("")
        self.store.save_seconds(self.seconds)
        if verdict is not None:  # one of the method's own does not know of these
            further = (finding for finding in self.findings if finding not in verdict.findings)
            verdict = dataclasses.replace(verdict, findings=(*verdict.findings, *further))
        if verdict is not None and not self.store.keeps:
            verdict = dataclasses.replace(verdict, findings=tuple(map(_without_resuming, verdict.findings)))
        if verdict is None:
            self.notes += [f"{finding.sentence} {finding.remedy}" for finding in self.findings]
        return Posterior(
            method=problem.method,
            model=problem.model,
            scaler=problem.scaler,
            jitter=problem.jitter,
            chains=chains,
            conditional=conditional,
            verdict=verdict,
            optimum=optimum,
            history=tuple(self.history),
            Z_path=None if Z_path is None else np.array(Z_path),
            seconds=self.seconds,
            counts={"gradients": counter.gradients, "failures": counter.failures} | dict(counts or {}),
            notes=tuple(self.notes),
            evidence=self.evidence,
            known_noise=problem.data.has_noise_variance,
        )

    def sampled(
        self,
        chains: Chains,
        conditional: Conditional,
        *,
        optimum: np.ndarray,
        counter: Counter,
        verdict: Verdict | None = None,
        Z_path: Any = None,
        counts: Mapping[str, int] | None = None,
    ) -> Posterior:
        """The posterior of a sampled fit, with the verdict on its draws (or a verdict of the method's own)."""
        theta = chains._replace(x=chains.x[:, :, : self.problem.model.n_theta])
        return self.posterior(
            chains,
            conditional,
            optimum=optimum,
            counter=counter,
            verdict=verdict or self.own_verdict or self.verdict(theta, counter),
            Z_path=Z_path,
            counts={"values": counter.values, "blocks": self.store.n_blocks} | dict(counts or {}),
        )
