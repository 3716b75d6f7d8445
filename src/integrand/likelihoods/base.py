"""Likelihoods: what each of them can do, and the registry that knows them by name."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Array, Float

from integrand.errors import InputError
from integrand.likelihoods.quadrature import Numbers, Value
from integrand.registry import Registry


@dataclass(frozen=True)
class Likelihood(ABC):
    """How y depends on f, and on the model's `noise` where `has_noise`; the others ignore that argument.

    Likelihoods are immutable and hashable: static arguments of compiled functions. `f`, `mean` and `variance` are
    in the units of the latent function, everything broadcasts.
    """

    name: ClassVar[str]
    has_noise: ClassVar[bool]  # whether the model's `noise` is its scale
    standardises_y: ClassVar[bool]  # whether y may be shifted and scaled
    discrete: ClassVar[bool]  # whether y is a whole number
    largest: ClassVar[float] = math.inf  # no y is larger

    @property
    def latent_scale(self) -> float | None:
        """Scale of a half-normal prior for the `scale` of a kernel, where that is left open; None for the preset's."""
        return None

    @property
    def tail_power(self) -> float:
        """P(|y| > x | f) falls like x to minus this power; infinite if faster."""
        return math.inf

    @abstractmethod
    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """Log p(y | f)."""

    @abstractmethod
    def expected_log_prob(self, y: Value, mean: Value, variance: Value, noise: Value) -> Float[Array, "..."]:
        """∫ log p(y | f) N(f; mean, variance) df."""

    @abstractmethod
    def conditional_mean(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """E[y | f]."""

    @abstractmethod
    def conditional_variance(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """Var[y | f]."""

    def guess(self, y: Value) -> Float[Array, "..."] | None:
        """f near where p(y | f) is largest, for Newton's method to start from; None if the prior's mean does as well.

        From there it does not where the slope grows with y: a first step from afar is as long as y is large.
        """
        return None

    def check_y(self, y: Numbers) -> None:
        """Raise `InputError` naming the first value that cannot be an observation."""
        refuse(y, ~np.isfinite(y), f"a {self.name} likelihood wants finite numbers, so remove or replace it")

    @abstractmethod
    def cdf(self, y: Numbers, f: Numbers, noise: Numbers) -> Numbers:
        """P(Y ≤ y | f)."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, f: Numbers, noise: Numbers) -> Numbers:
        """One draw of y for each f."""

    @abstractmethod
    def marginal_mean(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """E[y] for f ~ N(mean, variance)."""

    @abstractmethod
    def marginal_variance(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Var[y] for f ~ N(mean, variance)."""

    @abstractmethod
    def marginal_log_prob(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Log ∫ p(y | f) N(f; mean, variance) df."""

    @abstractmethod
    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """P(Y ≤ y) for f ~ N(mean, variance)."""

    def continued_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """`marginal_cdf` at whole y ≥ 0 if y is discrete, and smooth in between: sums over many y are made of few."""
        return self.marginal_cdf(y, mean, variance, noise)


def refuse(y: Numbers, bad: np.ndarray, wish: str) -> None:
    """Raise `InputError` for the first bad value, if there is one."""
    bad, y = np.ravel(bad), np.ravel(y)
    if bad.any():
        first = int(np.argmax(bad))
        raise InputError(f"y[{first}] is {y[first]}: {wish}")


LIKELIHOODS: Registry[type[Likelihood]] = Registry("likelihood")

L = TypeVar("L", bound=type[Likelihood])


def register_likelihood(cls: L) -> L:
    """Class decorator: the likelihood can be saved, loaded, resumed, and named in `fit` and on the command line.

    Its name everywhere is its attribute `name`; its fields are numbers and texts with defaults.
    """
    if not (isinstance(cls, type) and issubclass(cls, Likelihood)):
        raise InputError(f"register_likelihood takes a class derived from Likelihood, not {cls!r}")
    LIKELIHOODS.register(cls, cls, cls.name)
    return cls


def registered_likelihoods() -> dict[str, type[Likelihood]]:
    """All registered likelihoods by name."""
    return dict(LIKELIHOODS)


def likelihood_named(name: str) -> Likelihood:
    """The likelihood of this name, with the defaults of its fields."""
    return LIKELIHOODS.named(name)()


def describe_likelihood(likelihood: Likelihood) -> dict[str, Any]:
    """A likelihood as JSON; an UnregisteredError if it is not registered."""
    name = LIKELIHOODS.name_of(type(likelihood))
    return {"name": name, **LIKELIHOODS.hint(name), **asdict(likelihood)}


def restore_likelihood(description: Mapping[str, Any]) -> Likelihood:
    """The likelihood that `describe_likelihood` described."""
    fields = dict(description)
    return LIKELIHOODS.restored(fields.pop("name"), fields.pop("module", None))(**fields)
