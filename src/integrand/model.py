"""A model of the data: mean, kernel, noise and likelihood with the priors of their hyperparameters.

It maps natural hyperparameters θ to the unconstrained φ that samplers move in and back, gives the log prior, and can
be described as JSON for run directories and model files. A user describes a model in the units of the data; `fit`
hands methods the same model for standardised data, which `units.py` makes.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.errors import InputError
from integrand.gp import BOUNDS, GP, check_bound
from integrand.kernels.base import Change, FieldInfo, Kernel, number_or_prior
from integrand.kernels.registry import describe_kernel, restore_kernel
from integrand.likelihoods import Gaussian, Likelihood, describe_likelihood, restore_likelihood
from integrand.precision import in_float64
from integrand.priors import (
    DEFAULT,
    ColumnPriors,
    HalfCauchy,
    HalfNormal,
    Prior,
    bare,
    describe_value,
    preset_prior,
    restore_value,
    standardised,
)
from integrand.transforms import PATH, SIGNED, Transform, as_transform, describe_transform, restore_transform
from integrand.units import lines_of_values, standardised_field

Theta = dict[str, Float[Array, "..."]]

MEAN_FIELD = FieldInfo("mean", "mean", unit="y", signed=True)
NOISE_FIELD = FieldInfo("noise", "noise", unit="y", default=lambda n_columns: HalfCauchy(1.0))


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One inferred hyperparameter: path, prior, shape, the columns it speaks of, unit, and its place in φ.

    Of a field that is fixed for some columns it is the rest.
    """

    name: str
    prior: Prior
    shape: tuple[int, ...]
    columns: tuple[int, ...]
    unit: str
    start: int
    labels: tuple[str, ...] = ()  # of the entries of a vector, such as `lengthscale[age]`

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.shape[0] if self.shape else 1

    def of(self, phi: Float[Array, " P"]) -> Float[Array, "..."]:
        """Its part of φ, in its shape."""
        return phi[self.start : self.start + self.size].reshape(self.shape)


@dataclasses.dataclass(frozen=True, repr=False)
class Model:
    """A GP regression model for data with given columns, in the units of these data.

    Parameters
    ----------
    kernel
        A kernel tree; fields that hold None take the prior that the preset gives them.
    columns
        Names of the input columns, or how many there are.
    noise
        Standard deviation of the observations: a number, a prior, or None for the preset's. For a Student-t
        likelihood its scale; likelihoods without noise (Bernoulli, Poisson) leave it out. Zero is for rows that come
        with their own `noise_variance` and have no other noise.
    mean
        The constant that the function varies around: a number or a prior. None is the mean of y.
    priors
        Name of the preset: `paper`, `scaled` or `pooled`.
    likelihood
        Of y given f: Gaussian by default; others are for methods that do not collapse u.
    bound
        The collapsed bound of sparse methods: `titsias`, the paper's, or `tight`, which is never lower.
    target_transform
        For a skewed y: `log`, `box-cox`, `sinh-arcsinh`, or one such as `integrand.transforms.BoxCox(power=0.5)`.
        The mean, the scale and the noise then speak of the transformed y.

    Numbers and priors are in the units of the data: a lengthscale in that of its column, scale and noise in that of y.
    Presets, and what `standardised` is put around, speak of standardised data.

    Models with the same kernel, noise, mean, likelihood, bound and transform are equal and hash alike: compiled
    functions are shared.

    Attributes
    ----------
    given, scaler
        Of the model of a fit, which is for standardised data: the model that it was made from, and how the data were
        standardised. None elsewhere.
    """

    kernel: Kernel
    columns: tuple[str, ...]
    noise: Any
    mean: Any
    priors: str
    likelihood: Likelihood
    bound: str
    target_transform: Transform | None
    given: "Model | None" = None
    scaler: Any = None

    def __init__(
        self,
        kernel: Kernel,
        columns: int | Sequence[str],
        noise: Any = None,
        mean: Any = None,
        priors: str = DEFAULT,
        likelihood: Likelihood | None = None,
        bound: str = BOUNDS[0],
        target_transform: str | Transform | None = None,
    ):
        likelihood = Gaussian() if likelihood is None else likelihood
        if not isinstance(kernel, Kernel):
            of_text = f": parse_kernel({kernel!r}) makes one of text" if isinstance(kernel, str) else ""
            raise InputError(f"kernel must be a kernel such as RBF(), not {kernel!r}{of_text}")
        names = tuple(f"x{i}" for i in range(columns)) if isinstance(columns, int) else tuple(map(str, columns))
        if not names:
            raise InputError("a model needs at least one input column")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"two input columns are both called {twice!r}: rename one")

        def preset(field_info: FieldInfo, entry: int = 0) -> Any:
            if field_info is MEAN_FIELD:
                return standardised(0.0)
            default, latent = field_info.default, getattr(likelihood, "latent_scale", None)
            if isinstance(default, tuple):
                return standardised(default[entry])
            if field_info.field == "scale" and latent is not None:
                default = HalfNormal(latent)
            return standardised(preset_prior(priors, field_info.field, len(field_info.columns), default))

        def resolve(field_info: FieldInfo, value: Any) -> Any:
            if value is None:
                several = range(len(field_info.default)) if isinstance(field_info.default, tuple) else ()
                value = tuple(preset(field_info, i) for i in several) or preset(field_info)
            elif isinstance(value, tuple):
                value = tuple(preset(field_info, i) if entry is None else entry for i, entry in enumerate(value))
            _check_field(field_info, value)
            return value

        kernel = kernel.for_columns(names)
        if categories := kernel.category_levels():
            columns_of_codes = [int(column) for column in categories]
            kernel = kernel.map_leaves(lambda leaf: leaf.without_columns(columns_of_codes, names))
        kernel.check(len(names))
        if not isinstance(likelihood, Likelihood):
            raise InputError(f"likelihood must be one such as Gaussian() or Poisson(), not {likelihood!r}")
        if not likelihood.has_noise:
            if noise not in (None, 1.0):  # 1.0 is what such a model holds in its place
                raise InputError(f"a {likelihood.name} likelihood has no noise: leave `noise` out")
            noise = 1.0
        transform = as_transform(target_transform)
        if transform is not None and not isinstance(likelihood, Gaussian):
            raise InputError(
                f"target_transform is for Gaussian noise, not for a {likelihood.name} likelihood: leave it out"
            )
        values = {
            "kernel": kernel.map_fields(resolve, len(names), kernel.name or ""),
            "columns": names,
            "noise": resolve(NOISE_FIELD, number_or_prior(noise, "noise")),
            "mean": resolve(MEAN_FIELD, number_or_prior(mean, "mean")),
            "priors": priors,
            "likelihood": likelihood,
            "bound": check_bound(bound),
            "target_transform": None if transform is None else transform.map_fields(resolve),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def levels(self) -> Mapping[int, tuple[str, ...]]:
        """The columns that hold categories, by number, each with the names of its levels, whose codes are 0, 1, ...

        A column whose levels are not known yet has none.
        """
        return {int(column): levels or () for column, levels in self.kernel.category_levels().items()}

    @property
    def levels_given(self) -> Mapping[int | str, tuple[str, ...] | None]:
        """The same, with None where they are not known yet."""
        return self.kernel.category_levels()

    def with_leaves(self, change: Callable[[Kernel], Kernel]) -> "Model":
        """The same model in the units of the data, with every kernel that is not made of others changed."""
        given = self if self.given is None else self.given
        return given._with(GP(given.kernel.map_leaves(change), given.noise, given.mean, given.target_transform))

    def for_data(self, scaler: Any) -> "Model":
        """The model for data that `scaler` standardised. One that is of a fit is made from what it was given as."""
        given = self if self.given is None else self.given

        def change(field_info: FieldInfo, value: Any) -> Any:
            if field_info is NOISE_FIELD and not given.likelihood.has_noise:
                return value
            return standardised_field(field_info, value, scaler, given.columns)

        return given._with(given.map_fields(change))._of_fit(given, scaler)

    def restored_for(self, scaler: Any) -> "Model":
        """The same model, which is for data that `scaler` standardised already: it comes from a file or a fit."""
        if self.scaler is scaler and self.given is not None:
            return self
        given = self.given  # files of earlier versions have none: their numbers are standardised
        given = self._with(self.map_fields(lambda field_info, value: standardised(value))) if given is None else given
        return self._of_fit(given, scaler)

    def _with(self, gp: GP) -> "Model":
        noise = gp.noise if self.likelihood.has_noise else None
        return Model(gp.kernel, self.columns, noise, gp.mean, self.priors, self.likelihood, self.bound, gp.transform)

    def _of_fit(self, given: "Model", scaler: Any) -> "Model":
        model = self._with(GP(self.kernel, self.noise, self.mean, self.target_transform))
        object.__setattr__(model, "given", given)
        object.__setattr__(model, "scaler", scaler)
        return model

    @property
    def n_columns(self) -> int:
        """D."""
        return len(self.columns)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The inferred hyperparameters, in the order of φ."""
        parameters: list[Parameter] = []

        def note(field_info: FieldInfo, value: Any) -> Any:
            prior, shape, columns = bare(value), field_info.shape, field_info.columns
            labels = field_info.labels(self.columns) if shape else ()
            if isinstance(value, tuple):
                free = {i: prior for i, v in enumerate(value) if isinstance(prior := bare(v), Prior)}
                columns = columns if field_info.entries else tuple(columns[i] for i in free)
                labels = tuple(labels[i] for i in free)
                shape, distinct = (len(free),), set(free.values())
                prior = ColumnPriors(entries=tuple(free.values())) if len(distinct) > 1 else next(iter(distinct), None)
            if isinstance(prior, Prior):
                start = parameters[-1].start + parameters[-1].size if parameters else 0
                parameters.append(Parameter(field_info.path, prior, shape, columns, field_info.unit, start, labels))
            return value

        self.map_fields(note)
        return tuple(parameters)

    @cached_property
    def n_theta(self) -> int:
        """Number of inferred hyperparameters, counting the entries of vectors."""
        return sum(p.size for p in self.parameters)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One label per entry of φ, such as `lengthscale[age]` or `noise`."""
        labels: list[str] = []
        for p in self.parameters:
            labels += p.labels if p.shape else [p.name]
        return tuple(labels)

    def theta(self, phi: Float[Array, " P"]) -> Theta:
        """Natural hyperparameters, by name, from the unconstrained vector."""
        return {p.name: p.prior.constrain(p.of(phi)) for p in self.parameters}

    def phi(self, theta: Mapping[str, Any]) -> Float[Array, " P"]:
        """Unconstrained vector from natural hyperparameters."""
        missing = [p.name for p in self.parameters if p.name not in theta]
        if missing:
            raise InputError(f"no value for {', '.join(missing)}")
        parts = []
        for p in self.parameters:
            value = jnp.broadcast_to(jnp.asarray(theta[p.name], float), p.shape)
            parts.append(p.prior.unconstrain(value).reshape(-1))
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def log_prior(self, phi: Float[Array, " P"]) -> Float[Array, ""]:
        """log p(x) + log |∂x/∂φ|, the prior's log density of φ. Here x is θ, or θ² for a prior on a variance."""
        terms = [p.prior.log_density(p.of(phi)) for p in self.parameters]
        return sum(terms, jnp.zeros((), phi.dtype))

    def log_jacobian(self, phi: Float[Array, " P"]) -> Float[Array, ""]:
        """log |∂x/∂φ|, the part of `log_prior` that comes from the change of coordinates."""
        terms = [p.prior.log_jacobian(p.of(phi)) for p in self.parameters]
        return sum(terms, jnp.zeros((), phi.dtype))

    def gp(self, theta: Mapping[str, Any]) -> GP:
        """The GP with these hyperparameters: priors replaced by values, fixed numbers by arrays."""
        return self.map_fields(lambda field_info, value: filled(value, lambda: theta[field_info.path]))

    def sample_prior(self, key: jax.Array, n: int) -> Theta:
        """`n` draws of every hyperparameter from its prior, stacked along a first axis."""
        keys = jax.random.split(key, max(len(self.parameters), 1))
        pairs = zip(keys, self.parameters, strict=False)
        return {p.name: p.prior.sample(k, (n, p.size)).reshape(n, *p.shape) for k, p in pairs}

    def start(self) -> np.ndarray:
        """A first φ: the medians of the priors."""
        return self.unconstrained({p.name: p.prior.median for p in self.parameters})

    @in_float64
    def unconstrained(self, theta: Mapping[str, Any]) -> np.ndarray:
        """φ of these natural hyperparameters, as a NumPy array in float64."""
        return np.asarray(self.phi(theta))

    def map_fields(self, change: Change) -> GP:
        """Kernel, noise, mean and transform with every field replaced by what `change` returns for it."""
        kernel = self.kernel.map_fields(change, self.n_columns, self.kernel.name or "")
        noise, mean = change(NOISE_FIELD, self.noise), change(MEAN_FIELD, self.mean)
        transform = self.target_transform
        return GP(kernel, noise, mean, None if transform is None else transform.map_fields(change))

    @cached_property
    def _identity(self) -> tuple:
        return self.kernel, self.noise, self.mean, self.n_columns, self.likelihood, self.bound, self.target_transform

    @cached_property
    def _hash(self) -> int:
        return hash(self._identity)

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of strings differ between processes: what is cached stays behind.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __hash__(self) -> int:
        return self._hash  # asked for at every call of a compiled function

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Model) and self._identity == other._identity)

    def __repr__(self) -> str:
        other = "" if self.likelihood == Gaussian() else f", likelihood={self.likelihood!r}"
        other += "" if self.bound == BOUNDS[0] else f", bound={self.bound!r}"
        other += "" if self.target_transform is None else f", target_transform={self.target_transform!r}"
        return f"Model({self.kernel}, noise={self.noise}, mean={self.mean}, columns={list(self.columns)}{other})"

    def __str__(self) -> str:
        other = "" if self.likelihood == Gaussian() else f"\nlikelihood: {self.likelihood!r}"
        other += "" if self.target_transform is None else f"\ntarget_transform: {self.target_transform.name}"
        kernel = self.kernel if self.given is None else self.given.kernel
        return "\n".join([f"kernel: {kernel}{other}", *lines_of_values(self)])


def filled(value: Any, theta: Callable[[], Any]) -> Float[Array, "..."]:
    """What a field is in a GP: its numbers, and for what is inferred the values that `theta` gives."""
    if not isinstance(value, tuple):
        return jnp.asarray(theta() if isinstance(bare(value), Prior) else bare(value), float)
    free = [isinstance(bare(entry), Prior) for entry in value]
    if all(free):
        return jnp.asarray(theta(), float)
    fixed = jnp.asarray([0.0 if inferred else bare(entry) for inferred, entry in zip(free, value, strict=True)], float)
    return fixed.at[np.flatnonzero(free)].set(jnp.asarray(theta(), float)) if any(free) else fixed


def _check_field(field_info: FieldInfo, value: Any) -> None:
    """Refuse values of the wrong kind, sign or length, naming the path."""
    value = bare(value)
    if isinstance(value, tuple) and not all(isinstance(entry, float) for entry in value):
        for entry in value:
            _check_field(field_info, entry)
        return
    signed = field_info.signed or (field_info.path.startswith(PATH) and field_info.field in SIGNED)
    if isinstance(value, Prior):
        if not signed and not value.positive:
            raise InputError(f"{field_info.path} must be positive, but {value!r} allows negative values")
        return
    if not isinstance(value, (int, float, tuple)):
        raise InputError(f"{field_info.path} is a number or a prior such as Gamma(2, 1), not {value!r}")
    if np.shape(value) and not field_info.columns and field_info.path.split(".")[0] in ("noise", "mean", PATH):
        known = " (known variances of each row are `noise_variance` of `fit`)" if field_info.path == "noise" else ""
        count = np.size(value)
        raise InputError(f"{field_info.field} is one number or one prior for all rows, not {count} numbers{known}")
    numbers = np.asarray(value, float)
    if field_info.path == "noise" and value == 0.0:
        return  # for rows whose noise is known: `fit` refuses it for others
    if not np.all(np.isfinite(numbers)) or (not signed and np.any(numbers <= 0)):
        zero = " (0 is for rows whose noise is known)" if field_info.path == "noise" else ""
        raise InputError(
            f"{field_info.path} must be {'finite' if signed else 'positive and finite'}, not {value}{zero}"
        )


def check_known_noise(model: Model) -> None:
    """A known noise variance is one of y itself: of Gaussian noise, and without a transform."""
    check_gaussian(model.likelihood)
    if model.target_transform is not None:
        raise InputError(
            "noise_variance is in squared units of y, and a model with a target_transform has its noise on the "
            "transformed y: leave one of them out"
        )


def check_gaussian(likelihood: Likelihood) -> None:
    """A known noise variance has a meaning for Gaussian noise alone."""
    if not isinstance(likelihood, Gaussian):
        raise InputError(
            f"a {likelihood.name} likelihood takes no `noise_variance`: leave it out, or use Gaussian noise"
        )


def describe_model(model: Model) -> dict[str, Any]:
    """A model as JSON; an UnregisteredError if it has a kernel, prior or likelihood that could not be read back."""
    described = {
        "kernel": describe_kernel(model.kernel),
        "noise": describe_value(model.noise),
        "mean": describe_value(model.mean),
        "columns": list(model.columns),
        "priors": model.priors,
    }
    if model.bound != BOUNDS[0]:  # as in files from before there was another
        described |= {"bound": model.bound}
    if model.target_transform is not None:
        described |= {"target_transform": describe_transform(model.target_transform)}
    if model.given is not None:
        described["given"] = describe_model(model.given)
    if model.likelihood == Gaussian():  # as in files from before there were others
        return described
    return described | {"likelihood": describe_likelihood(model.likelihood)}


def restore_model(description: Mapping[str, Any]) -> Model:
    """The model that `describe_model` described."""
    try:
        likelihood, given = description.get("likelihood"), description.get("given")
        transform = description.get("target_transform")
        model = Model(
            restore_kernel(description["kernel"]),
            list(description["columns"]),
            restore_value(description["noise"]),
            restore_value(description["mean"]),
            description["priors"],
            Gaussian() if likelihood is None else restore_likelihood(likelihood),
            description.get("bound", BOUNDS[0]),
            None if transform is None else restore_transform(transform),
        )
        return model if given is None else model._of_fit(restore_model(given), None)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"this is not the description of a model: {error!r}") from error


def same_model(a: Any, b: Any) -> bool:
    """Whether two descriptions are equal but for the modules that kernels, priors and likelihoods are from."""
    return _without_modules(a) == _without_modules(b)


def _without_modules(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_modules(item) for key, item in value.items() if key != "module"}
    return [_without_modules(item) for item in value] if isinstance(value, list) else value
