"""All methods by name: what each draws from, with what, and where its code is (imported when it is first used)."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from integrand.data.sources import Overview, RowSource
from integrand.errors import InputError, need
from integrand.gp import BOUNDS
from integrand.likelihoods import Gaussian, Likelihood
from integrand.methods.problem import AUTO, TRACED, FitContext, Problem, Settings, refuse_many_rows
from integrand.model import Model, check_gaussian, check_known_noise
from integrand.posterior.posterior import Posterior

THETA_SAMPLERS = ("nuts", *TRACED, "nested")


@dataclass(frozen=True)
class Method:
    """A row of the table: a target, an algorithm and a conditional, in one file."""

    name: str
    summary: str
    module: str  # in integrand.methods
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    draws: bool = False  # θ is drawn, so there must be something to draw
    any_likelihood: bool = False  # not only Gaussian noise
    samplers: tuple[str, ...] = ()  # that may be chosen in place of the method's own
    own_sampler: bool = False  # part of the method: the setting stays at its default
    sparse: bool = True  # has inducing points
    paper: bool = False  # has the schedule of the paper's runs
    collapsed: bool = False  # needs the rows only through the sums of the collapsed bound
    known_noise: bool = False  # rows may come with the variance of their noise
    draws_Z: bool = False  # columns of codes have no density
    package: str = ""  # of the extra `samplers`, that the method's own sampler needs

    def check(
        self, settings: Settings, likelihood: Likelihood, rows: RowSource | None = None, resumable: bool = False
    ) -> None:
        """Refuse what this method cannot do, and say which can.

        Parameters
        ----------
        settings, likelihood
            What was asked for.
        rows
            The rows, or None where they are not open yet.
        resumable
            Whether the fit has a run directory.
        """
        self._check_sampler(settings.sampler)
        if settings.schedule == "paper":
            self._check_paper(settings, resumable)
        if not self.any_likelihood and not isinstance(likelihood, Gaussian):
            first = default_method(likelihood)
            others = _names(method for method in METHODS.values() if method.any_likelihood and method.name != first)
            raise InputError(
                f"{self.name} is for Gaussian noise, not for a {likelihood.name} likelihood: use {first}, which is the "
                f"default there, or {others}"
            )
        if settings.n_inducing == AUTO:
            self._check_auto(settings, rows)
        self._check_packages(settings, 0 if rows is None else rows.n_rows)
        if rows is not None:
            self._check_rows(settings, likelihood, rows)

    def check_model(self, model: Model, overview: Overview, schedule: str = Settings.schedule) -> None:
        """Refuse to draw where there is nothing to draw: a posterior needs hyperparameters, and a y that varies.

        And refuse a collapsed bound that the method does not use, and categories where Z is drawn.
        """
        if model.levels and self.draws_Z:
            others = _names(method for method in METHODS.values() if not method.draws_Z)
            raise InputError(f"{self.name} draws Z, which categories have no density for: use {others}")
        if model.levels and schedule == "paper":
            raise InputError("the paper has no schedule for categories: leave `schedule` out")
        if model.bound != BOUNDS[0] and not self.collapsed:
            others = _names(method for method in METHODS.values() if method.collapsed)
            raise InputError(f"{self.name} has no collapsed bound: leave bound={model.bound!r} out, or use {others}")
        if model.target_transform is not None:
            if not self.transforms_target:
                others = _names(method for method in METHODS.values() if method.transforms_target)
                raise InputError(f"{self.name} takes no target_transform: leave it out, or use {others}")
            if overview.noise_variances is not None:
                check_known_noise(model)
        least = 0.0 if overview.noise_variances is None else overview.noise_variances[0]
        if model.noise == 0.0 and least == 0.0:
            which = "rows with a noise_variance" if overview.noise_variances is None else "variances above zero"
            raise InputError(f"noise=0 is for {which}: give a positive number or a prior, or leave `noise` out")
        if not self.draws:
            return
        if model.n_theta == 0:
            raise InputError(
                "every hyperparameter is a fixed number, so there is nothing to integrate over: use a prior"
            )
        likelihood, low, high, n = model.likelihood, overview.low[-1], overview.high[-1], overview.n_rows
        if model.target_transform is not None:
            low, high = model.target_transform.original(np.array([low, high]))
        if low == high and likelihood.largest == 1.0:
            raise InputError(f"y is {low:g} in all rows, one class only: there is nothing to tell apart")
        if low == high and likelihood.standardises_y:
            where = "the one sample there is" if n == 1 else f"all {n} rows"
            advice = ' (`method="map"` predicts it)' if isinstance(likelihood, Gaussian) else ""
            raise InputError(f"y is {low:g} in {where}: there is no noise or signal to learn from a constant{advice}")

    @property
    def transforms_target(self) -> bool:
        """Whether y may be transformed: the collapsed bounds, and the exact likelihood of Gaussian noise."""
        return self.collapsed or not (self.sparse or self.any_likelihood)

    def _check_rows(self, settings: Settings, likelihood: Likelihood, rows: RowSource) -> None:
        if rows.noise_column is not None:
            check_gaussian(likelihood)
            if not self.known_noise or settings.sampler == "sghmc":
                others = _names(method for method in METHODS.values() if method.known_noise)
                what = self.name if not self.known_noise else "the sampler sghmc"
                raise InputError(f"{what} cannot use a known noise variance for each row: use {others}")
        if rows.in_memory:
            likelihood.check_y(rows.arrays()["y"])
        else:
            self._check_large(settings)
        if not self.sparse:
            refuse_many_rows(rows.n_rows, settings)

    def _check_large(self, settings: Settings) -> None:
        """Rows on disk or in several processes are for methods that need no more than sums over them."""
        if not self.collapsed:
            others = _names(method for method in METHODS.values() if method.collapsed)
            raise InputError(f"{self.name} needs all rows in the memory of one process: use {others}")
        if settings.sampler not in (Settings.sampler, "nuts"):
            sampler = settings.sampler
            raise InputError(f"the sampler {sampler} needs all rows in the memory of one process: use default or nuts")
        if settings.schedule == "paper":
            raise InputError("the paper's schedule needs all rows in the memory of one process: use the default")

    def _check_sampler(self, sampler: str) -> None:
        if sampler == Settings.sampler or sampler in self.samplers:
            return
        if self.own_sampler:
            raise InputError(f"{self.name} has a sampler of its own: leave `sampler` out (it is {sampler!r})")
        has = (
            f"it has {', '.join(self.samplers)}" if self.samplers else "it is not drawn by chains, leave `sampler` out"
        )
        raise InputError(
            f"{self.name} has no sampler {sampler!r}: {has}"
            + (" (`joint-hmc` and `bsgp` have sghmc)" if sampler == "sghmc" else "")
        )

    def _check_auto(self, settings: Settings, rows: RowSource | None) -> None:
        """The number of inducing points is chosen between rounds of Algorithm 1."""
        advice = f"give n_inducing a number, such as {Settings.n_inducing}"
        if self.name != "sgpr-hmc" or settings.schedule == "paper":
            whose = "the paper's schedule" if settings.schedule == "paper" else self.name
            raise InputError(
                f'n_inducing="{AUTO}" is for sgpr-hmc with its default schedule, not for {whose}: {advice}'
            )
        if rows is not None and rows.processes.size > 1:
            raise InputError(f'n_inducing="{AUTO}" is for fits of one process: {advice}')

    def _check_packages(self, settings: Settings, n_rows: int) -> None:
        """Refuse before the fit what would be missing in the middle of it."""
        sampler, default = settings.sampler, settings.sampler == Settings.sampler
        if self.package and default:
            need(self.package, "samplers", self.name)
        if sampler in ("nuts", "nested"):  # the pilot run of nested sampling is NUTS
            need("nutpie", "samplers", f"the sampler {sampler}")
        if sampler in (*TRACED, "nested", "sghmc"):
            need("blackjax", "samplers", f"the sampler {sampler}")
        if self.draws and settings.schedule == "paper":
            need("nutpie", "samplers", "the paper's schedule")
        if self.draws and self.collapsed and self.samplers and default and settings.uses_subsample(n_rows):
            need("nutpie", "samplers", f"{self.name} with {n_rows} rows")

    def _check_paper(self, settings: Settings, resumable: bool) -> None:
        if not self.paper:
            others = _names(method for method in METHODS.values() if method.paper)
            raise InputError(f"the paper has no schedule for {self.name}: leave `schedule` out ({others} have one)")
        if settings.sampler != Settings.sampler:
            raise InputError("the paper's schedule has a sampler of its own: leave `sampler` or `schedule` out")
        if resumable and self.draws:
            raise InputError(
                "the paper's schedule keeps no state on disk: leave run_dir out, or use the default schedule"
            )

    def run(self, problem: Problem, context: FitContext) -> Posterior:
        """Run the method."""
        function = getattr(importlib.import_module(f"integrand.methods.{self.module}"), self.function)
        return function(problem, context, **self.options)


def _names(methods: Iterable[Method]) -> str:
    return ", ".join(method.name for method in methods)


def default_method(likelihood: Likelihood) -> str:
    """The method where none is asked for: Algorithm 1, or for a likelihood that is not Gaussian, u is drawn too."""
    return "sgpr-hmc" if isinstance(likelihood, Gaussian) else "joint-hmc"


def default_bound(name: str) -> str:
    """The collapsed bound of a method where none is asked for."""
    return BOUNDS[0]


def method_named(name: str) -> Method:
    """A row of the table."""
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}: choose from {', '.join(METHODS)}")
    return METHODS[name]


_TABLE = (
    Method(
        "ml2",
        "SGPR: θ and Z maximise the bound",
        "optimised",
        "fit_sparse",
        {"with_prior": False},
        paper=True,
        collapsed=True,
        known_noise=True,
    ),
    Method(
        "map",
        "θ and Z maximise bound + log prior",
        "optimised",
        "fit_sparse",
        {"with_prior": True},
        collapsed=True,
        known_noise=True,
    ),
    Method(
        "sgpr-hmc",
        "Algorithm 1: θ drawn from p(θ) exp L(θ, Z), Z moved along the mean of ∂L/∂Z",
        "sgpr_hmc",
        "sgpr_hmc",
        draws=True,
        samplers=THETA_SAMPLERS,
        paper=True,
        collapsed=True,
        known_noise=True,
    ),
    Method(
        "sgpr-hmc-fixed-z",
        "θ drawn from p(θ) exp L(θ, Z), Z stays where it starts",
        "sgpr_hmc",
        "sgpr_hmc",
        {"move_Z": False},
        draws=True,
        samplers=THETA_SAMPLERS,
        collapsed=True,
        known_noise=True,
    ),
    Method(
        "gpr-ml2",
        "exact GP, θ maximises the likelihood",
        "optimised",
        "fit_exact",
        {"with_prior": False},
        sparse=False,
        known_noise=True,
    ),
    Method(
        "gpr-map",
        "exact GP, θ maximises likelihood + log prior",
        "optimised",
        "fit_exact",
        {"with_prior": True},
        sparse=False,
        known_noise=True,
    ),
    Method(
        "gpr-hmc",
        "exact GP, θ drawn from its posterior",
        "gpr_hmc",
        "gpr_hmc",
        draws=True,
        samplers=THETA_SAMPLERS,
        sparse=False,
        known_noise=True,
    ),
    Method(
        "gpr-latent",
        "exact GP, θ and f drawn together by slices",
        "latent_function",
        "gpr_latent",
        draws=True,
        any_likelihood=True,
        own_sampler=True,
        sparse=False,
    ),
    Method(
        "pseudo-marginal",
        "exact GP, θ drawn by Metropolis with unbiased estimates of p(y given θ)",
        "latent_function",
        "pseudo_marginal",
        draws=True,
        any_likelihood=True,
        own_sampler=True,
        sparse=False,
    ),
    Method(
        "joint-hmc",
        "θ and u drawn together, for any likelihood; Z fixed after the warm start",
        "joint_hmc",
        "joint_hmc",
        draws=True,
        any_likelihood=True,
        samplers=("nuts", "hmc", "sghmc"),
        paper=True,
        known_noise=True,
        package="nutpie",
    ),
    Method(
        "bsgp",
        "θ, u and Z drawn together from batches of rows",
        "joint_hmc",
        "bsgp",
        draws=True,
        draws_Z=True,
        any_likelihood=True,
        samplers=("sghmc",),
        package="blackjax",
    ),
    Method(
        "fbgp",
        "θ and Z drawn together, with the collapsed bound",
        "fbgp",
        "fbgp",
        draws=True,
        draws_Z=True,
        samplers=("nuts",),
        collapsed=True,
        known_noise=True,
        package="nutpie",
    ),
    Method(
        "svgp",
        "θ, Z and a Gaussian q(u) maximise the uncollapsed bound",
        "svgp",
        "svgp",
        any_likelihood=True,
        paper=True,
    ),
    Method(
        "vi-uncollapsed",
        "Gaussian q(θ) and q(u), Z optimised, by batches",
        "svgp",
        "vi_uncollapsed",
        draws=True,
        any_likelihood=True,
    ),
    Method(
        "vi-collapsed",
        "Gaussian q(θ), u collapsed, Z optimised",
        "collapsed_vi",
        "vi_collapsed",
        draws=True,
        collapsed=True,
        known_noise=True,
    ),
    Method("gpr-vi", "exact GP, Gaussian q(θ)", "collapsed_vi", "gpr_vi", draws=True, sparse=False, known_noise=True),
)

METHODS: Mapping[str, Method] = {method.name: method for method in _TABLE}
