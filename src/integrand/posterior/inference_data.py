"""What ArviZ takes: groups of arrays as an `InferenceData` (ArviZ 0.x) or a `DataTree` (ArviZ 1.x)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.errors import import_quietly, need
from integrand.infer.base import Chains
from integrand.likelihoods import Likelihood
from integrand.model import Model
from integrand.posterior.mixture import log_normal
from integrand.posterior.predictive import Predictive
from integrand.posterior.transformed import log_units, transforms_of
from integrand.precision import in_float64
from integrand.transforms import Transform
from integrand.version import __version__

# Arrays with a number for each draw and row are made for up to this many rows: 64 MB for 400 draws.
MOST_ROWS = 10_000

_DRAWS = ("chain", "draw")


class Group(NamedTuple):
    """Variables by name, each with the names of its dimensions, and the labels along dimensions."""

    variables: Mapping[str, tuple[tuple[str, ...], Any]]
    coords: Mapping[str, Any]


def inference_data(groups: Mapping[str, Group]) -> Any:
    """The container that the installed ArviZ works with."""
    need("arviz", "report", "`to_arviz`")
    arviz = import_quietly("arviz")
    import xarray

    made_by = {"inference_library": "integrand", "inference_library_version": __version__}
    datasets = {name: xarray.Dataset(group.variables, group.coords, made_by) for name, group in groups.items()}
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**datasets)  # pyright: ignore[reportArgumentType]
    return xarray.DataTree.from_dict(datasets)


def posterior_group(model: Model, theta: Mapping[str, np.ndarray]) -> Group:
    """Draws of the hyperparameters; entries of a vector are labelled by their columns."""
    variables, coords = {}, _positions(next(iter(theta.values()))) if theta else {}
    for p in model.parameters:
        along = (f"{p.name}_column",) if p.shape else ()
        variables[p.name] = ((*_DRAWS, *along), theta[p.name])
        coords |= {dimension: [_inside(label) for label in p.labels] for dimension in along}
    return Group(variables, coords)


def _inside(label: str) -> str:
    """What stands in the brackets of a label such as `lengthscale[age]`."""
    return label.partition("[")[2][:-1]


def sample_stats_group(chains: Chains) -> Group:
    """What the sampler noted at each draw, by ArviZ's names."""
    stats = {
        "lp": chains.log_density,
        "energy": chains.energy,
        "acceptance_rate": chains.acceptance,
        "n_steps": chains.n_steps,
        "tree_depth": chains.depth,
        "diverging": chains.diverging,
        "step_size": chains.step_size,
    }
    return Group({name: (_DRAWS, values) for name, values in stats.items()}, _positions(chains.log_density))


@in_float64
def log_prior_group(model: Model, x: Float[np.ndarray, "C n P"], factors: Mapping[str, Any]) -> Group:
    """Log prior density of each hyperparameter (of a vector as a whole) at its draws.

    It is that of the numbers in the group `posterior`, which are standardised ones times `factors`.
    """
    variables, flat = {}, jnp.asarray(x.reshape(-1, x.shape[2]))
    for p in model.parameters:

        def log_density(phi, p=p):
            return p.prior.log_density_of_theta(p.of(phi))

        units = np.sum(np.log(np.broadcast_to(factors[p.name], p.shape)))
        values = np.asarray(jax.jit(jax.vmap(log_density))(flat)).reshape(x.shape[:2])
        variables[p.name] = (_DRAWS, values - units)
    return Group(variables, _positions(x[:, :, 0]))


def groups_of_draws_and_rows(
    predictive: Predictive, y: Float[np.ndarray, " T"], chains: Chains, seed: int
) -> dict[str, Group]:
    """New observations for each draw that predicts, and the log likelihood of y.

    Both come from one draw of f at each row: y ~ p(y | f) is drawn, and the log likelihood is log p(y | f).
    """
    coords = _positions(chains.log_density) | {"row": np.arange(len(y))}
    shape = tuple(map(len, coords.values()))
    rng = np.random.default_rng(seed)
    mean, variance, noise = predictive.components()
    f = mean + np.sqrt(variance) * rng.standard_normal(mean.shape)
    if (transform := transforms_of(predictive.model, predictive.conditional.phis)) is not None:
        return _of_transformed(predictive, transform, y, (f, np.sqrt(noise[:, None])), rng, coords)
    known = 0.0 if predictive.noise_variance is None else predictive.noise_variance
    likelihood, scale = predictive.model.likelihood, np.sqrt(noise[:, None] + known)
    drawn = np.asarray(likelihood.sample(rng, f, scale), float)
    values = {"posterior_predictive": drawn, "log_likelihood": _log_likelihood(likelihood, y, f, scale)}
    return {name: Group({"y": ((*_DRAWS, "row"), v.reshape(shape))}, coords) for name, v in values.items()}


def _of_transformed(
    predictive: Predictive,
    transform: Transform,
    y: Float[np.ndarray, " T"],
    given: tuple[Float[np.ndarray, "J T"], Float[np.ndarray, "J 1"]],
    rng: np.random.Generator,
    coords: Mapping[str, Any],
) -> dict[str, Group]:
    """The same of a transformed y, from draws of f and the noise of each draw, which are of g(y)."""
    (f, noise), scaler = given, predictive.scaler
    t = scaler.transform_y(transform.base(y))
    with np.errstate(over="ignore"):
        drawn = transform.original(scaler.inverse_y(transform.inverse(f + noise * rng.standard_normal(f.shape))))
    log_p = log_normal(transform(t), f, noise) + transform.log_slope(t) - log_units(transform, scaler, t)
    shape = tuple(map(len, coords.values()))
    values = {"posterior_predictive": drawn, "log_likelihood": log_p}
    return {name: Group({"y": ((*_DRAWS, "row"), v.reshape(shape))}, coords) for name, v in values.items()}


def groups_of_rows(model: Model, X: Float[np.ndarray, "T D"], y: Float[np.ndarray, " T"]) -> dict[str, Group]:
    """Rows as they were given."""
    row, column = {"row": np.arange(len(y))}, {"column": list(model.columns)}
    return {
        "observed_data": Group({"y": (("row",), y)}, row),
        "constant_data": Group({"X": (("row", "column"), X)}, row | column),
    }


def draws_that_predict(phis: Float[np.ndarray, "J P"], chains: Chains) -> Chains:
    """The draws that predict; as one chain if chains have different numbers of them."""
    flat = [a.reshape(-1, *a.shape[2:]) for a in chains]
    if np.array_equal(phis, flat[0]):  # resampled draws are there more than once, and have no one position
        return chains
    position = {x.tobytes(): i for i, x in enumerate(flat[0])}
    rows_of_draws = np.array([position[phi.tobytes()] for phi in phis])
    counts = np.bincount(rows_of_draws // chains.n_draws, minlength=len(chains.x))
    n_chains = len(chains.x) if np.all(counts == counts[0]) else 1
    return Chains(*(a[rows_of_draws].reshape(n_chains, -1, *a.shape[1:]) for a in flat))


def _positions(values: np.ndarray) -> dict[str, Any]:
    return dict(zip(_DRAWS, map(np.arange, values.shape[:2]), strict=True))


@in_float64
def _log_likelihood(likelihood: Likelihood, y: np.ndarray, f: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return np.asarray(likelihood.log_prob(*map(jnp.asarray, (y, f, noise))))
