"""All methods by name: what each draws from, with what, and where its code is (imported when it is first used)."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from integrand.errors import InputError
from integrand.likelihoods import Gaussian, Likelihood
from integrand.methods.problem import TRACED, Problem, Settings, refuse_many_rows
from integrand.posterior.posterior import Posterior

THETA_SAMPLERS = ("nuts", *TRACED, "nested")


@dataclass(frozen=True)
class Method:
    """A row of the table: a target, an algorithm and a conditional, in a file of their own."""

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

    def check(
        self, name: str, settings: Settings, likelihood: Likelihood, n_rows: int = 0, on_disk: bool = False
    ) -> None:
        """Refuse what this method cannot do with so many rows, or in a run directory, and say which can."""
        self._check_sampler(name, settings.sampler)
        if settings.schedule == "paper":
            self._check_paper(name, settings, on_disk)
        if not self.sparse:
            refuse_many_rows(n_rows, settings)
        if not self.any_likelihood and not isinstance(likelihood, Gaussian):
            others = ", ".join(other for other, method in METHODS.items() if method.any_likelihood)
            raise InputError(f"{name} is for Gaussian noise, not for a {likelihood.name} likelihood: use {others}")

    def check_large(self, name: str, settings: Settings) -> None:
        """Refuse rows that are on disk or in several processes where a method needs more than sums over them."""
        if not self.collapsed:
            others = ", ".join(other for other, method in METHODS.items() if method.collapsed)
            raise InputError(f"{name} needs all rows in the memory of one process: use {others}")
        if settings.sampler not in (Settings.sampler, "nuts"):
            sampler = settings.sampler
            raise InputError(f"the sampler {sampler} needs all rows in the memory of one process: use default or nuts")
        if settings.schedule == "paper":
            raise InputError("the paper's schedule needs all rows in the memory of one process: use the default")

    def _check_sampler(self, name: str, sampler: str) -> None:
        if sampler == Settings.sampler or sampler in self.samplers:
            return
        if self.own_sampler:
            raise InputError(f"{name} has a sampler of its own: leave `sampler` out (it is {sampler!r})")
        has = (
            f"it has {', '.join(self.samplers)}" if self.samplers else "it is not drawn by chains, leave `sampler` out"
        )
        raise InputError(
            f"{name} has no sampler {sampler!r}: {has}"
            + (" (`joint-hmc` and `bsgp` have sghmc)" if sampler == "sghmc" else "")
        )

    def _check_paper(self, name: str, settings: Settings, on_disk: bool) -> None:
        if not self.paper:
            others = ", ".join(other for other, method in METHODS.items() if method.paper)
            raise InputError(f"the paper has no schedule for {name}: leave `schedule` out ({others} have one)")
        if settings.sampler != Settings.sampler:
            raise InputError("the paper's schedule has a sampler of its own: leave `sampler` or `schedule` out")
        if on_disk and self.draws:
            raise InputError(
                "the paper's schedule keeps no state on disk: leave run_dir out, or use the default schedule"
            )

    def fit(self, problem: Problem) -> Posterior:
        """Run the method."""
        function = getattr(importlib.import_module(f"integrand.methods.{self.module}"), self.function)
        return function(problem, **self.options)


METHODS: Mapping[str, Method] = {
    "ml2": Method(
        "SGPR: θ and Z maximise the bound", "optimised", "fit_sparse", {"with_prior": False}, paper=True, collapsed=True
    ),
    "map": Method(
        "θ and Z maximise bound + log prior", "optimised", "fit_sparse", {"with_prior": True}, collapsed=True
    ),
    "sgpr-hmc": Method(
        "Algorithm 1: θ drawn from p(θ) exp L(θ, Z), Z moved along the mean of ∂L/∂Z",
        "sgpr_hmc",
        "fit",
        draws=True,
        samplers=THETA_SAMPLERS,
        paper=True,
        collapsed=True,
    ),
    "sgpr-hmc-fixed-z": Method(
        "θ drawn from p(θ) exp L(θ, Z), Z stays where it starts",
        "sgpr_hmc",
        "sgpr_hmc",
        {"move_Z": False},
        draws=True,
        samplers=THETA_SAMPLERS,
        collapsed=True,
    ),
    "gpr-ml2": Method(
        "exact GP, θ maximises the likelihood", "optimised", "fit_exact", {"with_prior": False}, sparse=False
    ),
    "gpr-map": Method(
        "exact GP, θ maximises likelihood + log prior", "optimised", "fit_exact", {"with_prior": True}, sparse=False
    ),
    "gpr-hmc": Method(
        "exact GP, θ drawn from its posterior",
        "gpr_hmc",
        "gpr_hmc",
        draws=True,
        samplers=THETA_SAMPLERS,
        sparse=False,
    ),
    "gpr-latent": Method(
        "exact GP, θ and f drawn together by slices",
        "gpr_latent",
        "gpr_latent",
        draws=True,
        any_likelihood=True,
        own_sampler=True,
        sparse=False,
    ),
    "pseudo-marginal": Method(
        "exact GP, θ drawn by Metropolis with unbiased estimates of p(y given θ)",
        "pseudo_marginal",
        "pseudo_marginal",
        draws=True,
        any_likelihood=True,
        own_sampler=True,
        sparse=False,
    ),
    "joint-hmc": Method(
        "θ and u drawn together, for any likelihood; Z fixed after the warm start",
        "joint_hmc",
        "joint_hmc",
        draws=True,
        any_likelihood=True,
        samplers=("nuts", "hmc", "sghmc"),
        paper=True,
    ),
    "bsgp": Method(
        "θ, u and Z drawn together from batches of rows",
        "bsgp",
        "bsgp",
        draws=True,
        any_likelihood=True,
        samplers=("sghmc",),
    ),
    "fbgp": Method(
        "θ and Z drawn together, with the collapsed bound",
        "fbgp",
        "fbgp",
        draws=True,
        samplers=("nuts",),
        collapsed=True,
    ),
    "svgp": Method(
        "θ, Z and a Gaussian q(u) maximise the uncollapsed bound", "svgp", "svgp", any_likelihood=True, paper=True
    ),
    "vi-uncollapsed": Method(
        "Gaussian q(θ) and q(u), Z optimised, by batches",
        "vi_uncollapsed",
        "vi_uncollapsed",
        draws=True,
        any_likelihood=True,
    ),
    "vi-collapsed": Method(
        "Gaussian q(θ), u collapsed, Z optimised", "vi_collapsed", "vi_collapsed", draws=True, collapsed=True
    ),
    "gpr-vi": Method("exact GP, Gaussian q(θ)", "vi_collapsed", "gpr_vi", draws=True, sparse=False),
}
