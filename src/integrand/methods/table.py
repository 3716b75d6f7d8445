"""All methods by name: what each draws from, with what, and where its code is (imported when it is first used)."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from integrand.errors import InputError
from integrand.likelihoods import Gaussian, Likelihood
from integrand.methods.problem import Problem, Settings
from integrand.posterior.posterior import Posterior

THETA_SAMPLERS = ("nuts", "hmc", "mala", "metropolis", "slice", "nested")


@dataclass(frozen=True)
class Method:
    """A row of the table: a target, an algorithm and a conditional, in a file of their own."""

    summary: str
    module: str  # in integrand.methods
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    draws: bool = False  # θ is drawn, so there must be something to draw
    any_likelihood: bool = False  # not only Gaussian noise
    samplers: tuple[str, ...] = ("nuts",)
    own_sampler: bool = False  # part of the method: the setting stays at its default
    sparse: bool = True  # has inducing points

    def check(self, name: str, settings: Settings, likelihood: Likelihood) -> None:
        """Refuse what this method cannot do, and say which can."""
        if self.own_sampler and settings.sampler != Settings.sampler:
            raise InputError(f"{name} has a sampler of its own: leave `sampler` out (it is {settings.sampler!r})")
        # A method with one sampler uses that, and the setting's default says nothing against it.
        allowed = self.samplers if len(self.samplers) > 1 else (*self.samplers, Settings.sampler)
        if self.draws and settings.sampler not in allowed:
            raise InputError(
                f"{name} has no sampler {settings.sampler!r}: it has {', '.join(self.samplers)}"
                + (" (`joint-hmc` and `bsgp` have sghmc)" if settings.sampler == "sghmc" else "")
            )
        if not self.any_likelihood and not isinstance(likelihood, Gaussian):
            others = ", ".join(other for other, method in METHODS.items() if method.any_likelihood)
            raise InputError(f"{name} is for Gaussian noise, not for a {likelihood.name} likelihood: use {others}")

    def fit(self, problem: Problem) -> Posterior:
        """Run the method."""
        function = getattr(importlib.import_module(f"integrand.methods.{self.module}"), self.function)
        return function(problem, **self.options)


METHODS: Mapping[str, Method] = {
    "ml2": Method("SGPR: θ and Z maximise the bound", "optimised", "fit_sparse", {"with_prior": False}),
    "map": Method("θ and Z maximise bound + log prior", "optimised", "fit_sparse", {"with_prior": True}),
    "sgpr-hmc": Method(
        "Algorithm 1: θ drawn from p(θ) exp L(θ, Z), Z moved along the mean of ∂L/∂Z",
        "sgpr_hmc",
        "fit",
        draws=True,
        samplers=THETA_SAMPLERS,
    ),
    "sgpr-hmc-fixed-z": Method(
        "θ drawn from p(θ) exp L(θ, Z), Z stays where it starts",
        "sgpr_hmc",
        "sgpr_hmc",
        {"move_Z": False},
        draws=True,
        samplers=THETA_SAMPLERS,
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
    ),
    "bsgp": Method(
        "θ, u and Z drawn together from batches of rows",
        "bsgp",
        "bsgp",
        draws=True,
        any_likelihood=True,
        samplers=("sghmc",),
    ),
    "fbgp": Method("θ and Z drawn together, with the collapsed bound", "fbgp", "fbgp", draws=True),
    "svgp": Method("θ, Z and a Gaussian q(u) maximise the uncollapsed bound", "svgp", "svgp", any_likelihood=True),
    "vi-uncollapsed": Method(
        "Gaussian q(θ) and q(u), Z optimised, by batches",
        "vi_uncollapsed",
        "vi_uncollapsed",
        draws=True,
        any_likelihood=True,
    ),
    "vi-collapsed": Method("Gaussian q(θ), u collapsed, Z optimised", "vi_collapsed", "vi_collapsed", draws=True),
    "gpr-vi": Method("exact GP, Gaussian q(θ)", "vi_collapsed", "gpr_vi", draws=True, sparse=False),
}
