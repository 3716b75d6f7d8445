"""The result of a fit: draws of the hyperparameters with everything needed to judge them and to predict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.data.checked import checked_matrix
from integrand.data.scaling import Standardiser
from integrand.errors import InputError
from integrand.infer.chains import Chains
from integrand.infer.diagnostics import Verdict
from integrand.linalg import Jitter
from integrand.model import Model, Parameter
from integrand.posterior.conditional import Conditional
from integrand.posterior.predictive import Predictive
from integrand.precision import in_float64


class BoundPoint(NamedTuple):
    """One entry of the bound's history: phase, round or step, seconds since the start, bound, standard error."""

    phase: str
    step: int
    seconds: float
    bound: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Draws of θ (one, for methods that optimise), inducing inputs, and what they predict.

    Hyperparameters are those of standardised data unless `original_units` is asked for.
    """

    method: str
    model: Model
    scaler: Standardiser
    jitter: Jitter
    chains: Chains  # x is φ
    conditional: Conditional
    verdict: Verdict | None  # None for methods that climb with L-BFGS to one point
    optimum: Float[np.ndarray, " P"]  # the ML-II point (for `map` methods: the MAP point)
    history: tuple[BoundPoint, ...] = ()
    Z_path: Float[np.ndarray, "R M D"] | None = None  # inducing inputs after the warm start and after each round
    seconds: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # gradients, failures, rounds, ...
    notes: tuple[str, ...] = ()  # what the method decided or ran into, in sentences
    evidence: tuple[float, float] | None = None  # log evidence and its standard error, where the sampler gives one

    @cached_property
    def theta(self) -> dict[str, Float[np.ndarray, "..."]]:
        """Draws by name, each (chain, draw, ...), for standardised data."""
        return self._theta_of(self.chains.x)

    @cached_property
    def theta_original(self) -> dict[str, Float[np.ndarray, "..."]]:
        """Draws by name in the units of the data; a number that has no unit of its own stays as it is."""
        return self.in_original_units(self.theta)

    def in_original_units(self, theta: Mapping[str, Any]) -> dict[str, Any]:
        """Hyperparameters of standardised data in the units of the data."""
        return {p.name: theta[p.name] * self.unit_factor(p) + self.unit_offset(p) for p in self.model.parameters}

    @cached_property
    def theta_optimum(self) -> dict[str, Float[np.ndarray, "..."]]:
        """The ML-II (or MAP) point by name, for standardised data."""
        return self._theta_of(self.optimum)

    @property
    def Z(self) -> Float[np.ndarray, "M D"]:
        """Inducing inputs in the units of the data: training inputs for exact methods, the mean of drawn ones."""
        inputs = self.conditional[1]
        return self.scaler.inverse_X(inputs.mean(axis=0) if inputs.ndim == 3 else inputs)

    def predict(self, X: Any, *, include_noise: bool, memory: int = 256 * 2**20) -> Predictive:
        """The mixture over draws at the rows of X: of y (`include_noise=True`) or of f (`False`)."""
        X = checked_matrix(X, "X")
        if X.shape[1] != self.model.n_columns:
            raise InputError(f"X has {X.shape[1]} columns, but the model was fitted to {self.model.n_columns}")
        return Predictive(
            self.model, self.jitter, self.scaler, self.conditional, self.scaler.transform_X(X), include_noise, memory
        )

    def to_arviz(self, *, original_units: bool = True) -> Any:
        """An `arviz.InferenceData` with posterior and sample statistics; ARD entries are named by their columns."""
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ArviZ announces its refactoring on first import
            import arviz

        draws = self.theta_original if original_units else self.theta
        dims, coords = {}, {}
        for p in self.model.parameters:
            if p.shape:
                dims[p.name] = [f"{p.name}_column"]
                coords[f"{p.name}_column"] = [self.model.columns[i] for i in p.columns]
        stats = {
            "lp": self.chains.log_density,
            "energy": self.chains.energy,
            "acceptance_rate": self.chains.acceptance,
            "n_steps": self.chains.n_steps,
            "tree_depth": self.chains.depth,
            "diverging": self.chains.diverging,
            "step_size": self.chains.step_size,
        }
        return arviz.from_dict(posterior=draws, sample_stats=stats, dims=dims, coords=coords)

    @in_float64
    def _theta_of(self, phi: np.ndarray) -> dict[str, np.ndarray]:
        flat = jax.vmap(self.model.theta)(jnp.asarray(phi.reshape(-1, self.model.n_theta)))
        return {name: np.asarray(value).reshape((*phi.shape[:-1], *value.shape[1:])) for name, value in flat.items()}

    def unit_factor(self, p: Parameter) -> Any:
        """The factor from standardised to original units; 1 where a number covers columns of different scales."""
        x = self.scaler.x_sd[list(p.columns)] if p.columns else np.ones(1)
        shared = p.shape or bool(np.all(x == x[0]))
        x = x if p.shape else x[0]
        y = float(self.scaler.y_sd)
        return {"1": 1.0, "y": y, "x": x if shared else 1.0, "y/x": y / x if shared else 1.0}[p.unit]

    def unit_offset(self, p: Parameter) -> float:
        """What is added in original units: the mean of y, for a constant mean."""
        return float(self.scaler.y_mean) if p.name == "mean" else 0.0
