"""`SparseGPRegressor`: everything behind the contract of scikit-learn, the only file that imports scikit-learn."""

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from types import ModuleType
from typing import Any, Self

import numpy as np

from integrand.errors import InputError
from integrand.kernels.base import Kernel
from integrand.methods.registry import fit
from integrand.posterior.predictive import Predictive


@contextmanager
def _postponed(name: str) -> Iterator[None]:
    """Within this scope `import name` costs nothing; the module is loaded when something of it is used."""
    stand_in = ModuleType(name)

    def leave() -> None:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]

    def load(attribute: str) -> Any:
        leave()
        return getattr(importlib.import_module(name), attribute)

    vars(stand_in)["__getattr__"] = load
    if importlib.util.find_spec(name):
        sys.modules.setdefault(name, stand_in)
    try:
        yield
    finally:
        leave()


# scikit-learn imports them for a rarely used function each; together they take longer than JAX.
with _postponed("scipy.stats"), _postponed("pandas"):
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

# Types of columns, as pandas and polars print them, that are numbers or can be read as such.
_NUMERIC = ("int", "uint", "float", "double", "half", "bool", "decimal", "sparse", "null", "object")
_TIMES = ("date", "time", "duration", "period")

_ENCODE = "encode categories and text as numbers (sklearn.preprocessing.OneHotEncoder, pandas.get_dummies) or drop them"

# Parameters that are fields of `Settings` under the same name.
_SETTINGS = ("n_inducing", "chains", "target_ess", "max_draws", "max_minutes", "target_accept", "steps")


class SparseGPRegressor(RegressorMixin, BaseEstimator):
    """Sparse Gaussian process regression whose hyperparameters are integrated out.

    Data are standardised inside; predictions are in the units of `y`. Priors, and numbers given in their place,
    speak of standardised data.

    Parameters
    ----------
    kernel : Kernel, optional
        By default RBF with one lengthscale a column.
    n_inducing : int
        Inducing points; no more are used than there are distinct rows.
    method : str
        `sgpr-hmc` integrates over the hyperparameters (Algorithm 1 of the paper), `ml2` and `map` optimise them; see
        `integrand.METHODS`.
    priors : str
        Preset of the priors that the kernel leaves open: `paper` or `scaled`.
    noise, mean
        Standard deviation of the observations and level of the function: a number or a prior.
    chains, target_ess, max_draws, max_minutes, target_accept
        The sampler draws until each hyperparameter has `target_ess` effective draws, each chain has `max_draws`, or
        `max_minutes` have passed.
    steps : int
        Steps of the optimiser, for methods that only optimise.
    settings : mapping, optional
        More fields of `integrand.methods.problem.Settings` by name, such as `restarts` or `predictive_draws`.
    strict : bool
        Raise `NotConvergedError` where `fit` otherwise gives a `ConvergenceWarning`.
    progress : bool
        Show bars on standard error.
    random_state : int, RandomState or None
        The same int gives the same draws.
    run_dir : path, optional
        A new directory that keeps the state of one fit, for `integrand.resume`.
    noise_variance : None
        Reserved for known noise of each row.

    Attributes
    ----------
    posterior_ : Posterior
        Draws, inducing inputs, timings; `posterior_.to_arviz()` hands them to ArviZ.
    diagnostics_ : Verdict or None
        Whether the draws can be trusted, in words by `print`; None for methods that do not sample.
    n_inducing_ : int
        Inducing points in use (training rows, for exact methods).
    feature_ranges_ : ndarray of shape (n_features, 2)
        Smallest and largest value of each column.
    n_features_in_, feature_names_in_
        As in all of scikit-learn.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_inducing: int = 100,
        method: str = "sgpr-hmc",
        priors: str = "paper",
        noise: Any = None,
        mean: Any = 0.0,
        chains: int = 4,
        target_ess: float = 400.0,
        max_draws: int = 5_000,
        max_minutes: float | None = None,
        target_accept: float = 0.7,
        steps: int = 1_000,
        settings: Mapping[str, Any] | None = None,
        strict: bool = False,
        progress: bool = False,
        random_state: Any = None,
        run_dir: str | os.PathLike[str] | None = None,
        noise_variance: None = None,
    ):
        self.kernel = kernel
        self.n_inducing = n_inducing
        self.method = method
        self.priors = priors
        self.noise = noise
        self.mean = mean
        self.chains = chains
        self.target_ess = target_ess
        self.max_draws = max_draws
        self.max_minutes = max_minutes
        self.target_accept = target_accept
        self.steps = steps
        self.settings = settings
        self.strict = strict
        self.progress = progress
        self.random_state = random_state
        self.run_dir = run_dir
        self.noise_variance = noise_variance

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (n_rows, n_features) and y (n_rows,): arrays, lists, pandas or polars."""
        if self.noise_variance is not None:
            raise InputError(
                "noise_variance is reserved for known noise of each row, which is not available yet: leave it out, "
                "or give `noise`, one standard deviation (or its prior) for all rows"
            )
        target_name = getattr(y, "name", None)
        rows, y = self._checked(X, y=y, y_numeric=True, reset=True)
        names = getattr(self, "feature_names_in_", None)
        self.posterior_ = fit(
            rows,
            y,
            self.kernel,
            method=self.method,
            noise=self.noise,
            mean=self.mean,
            priors=self.priors,
            columns=None if names is None else list(names),
            run_dir=None if self.run_dir is None else os.fspath(self.run_dir),
            strict=self.strict,
            progress=self.progress,
            seed=_seed(self.random_state),
            **self._settings(),
        )
        self._describe(np.column_stack([rows.min(axis=0), rows.max(axis=0)]), target_name)
        return self

    def predict(
        self, X: Any, return_std: bool = False, quantiles: Any = None, include_noise: bool = True
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Mean of the mixture over all draws at each row of X, and on request its spread.

        Parameters
        ----------
        return_std
            Add the standard deviation of the mixture.
        quantiles
            Probabilities; adds the quantiles of the mixture.
        include_noise
            True for the spread of a new observation y, False for that of the function f. The mean is the same.

        Returns
        -------
        `mean`, or a tuple `(mean, std)`, `(mean, quantiles)` or `(mean, std, quantiles)`: whatever was asked for, in
        this order. `mean` and `std` have shape (n_rows,), `quantiles` has shape (n_rows, len(quantiles)).
        """
        predictive = self.predict_distribution(X, include_noise)
        results = [predictive.mean]
        if return_std:
            results.append(predictive.sd)
        if quantiles is not None:
            results.append(predictive.quantile(np.atleast_1d(np.asarray(quantiles, float))).T)
        return results[0] if len(results) == 1 else tuple(results)

    def predict_distribution(self, X: Any, include_noise: bool = True) -> Predictive:
        """The mixture itself: moments, quantiles, densities, CRPS and draws at the rows of X."""
        check_is_fitted(self)
        return self.posterior_.predict(self._checked(X), include_noise=include_noise)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = None, joint: bool = True, include_noise: bool = True
    ) -> np.ndarray:
        """Draws at the rows of X, shape (n_rows, n_samples).

        With `joint=True` a column is one draw of all rows together (a function, plus noise if that is included), which
        needs a matrix of n_rows x n_rows; with `joint=False` each row is drawn on its own.
        """
        predictive = self.predict_distribution(X, include_noise)
        rng = np.random.default_rng(_seed(random_state))
        return (predictive.sample_joint if joint else predictive.sample)(rng, n_samples).T

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log density of each y at its row of X under the mixture, in nats and the units of y; shape (n_rows,)."""
        check_is_fitted(self)
        X, y = self._checked(X, y=y, y_numeric=True)
        return self.posterior_.predict(X, include_noise=True).log_density(np.asarray(y, float))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file that `load` reads; see `integrand.posterior.modelfile`."""
        from integrand.posterior.modelfile import save_model

        check_is_fitted(self)
        save_model(
            self.posterior_,
            path,
            feature_ranges=self.feature_ranges_,
            target_name=self._target_name,
            settings=self._settings(),
            extra={"named_columns": hasattr(self, "feature_names_in_")},
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A fitted estimator from a model file; it needs no training data and nothing in the file is executed."""
        from integrand.posterior.modelfile import load_model

        saved = load_model(path)
        model = saved.posterior.model
        known = {name: saved.settings.pop(name) for name in _SETTINGS if name in saved.settings}
        prior = {"priors": model.priors, "noise": model.noise, "mean": model.mean}
        estimator = cls(model.kernel, method=saved.posterior.method, settings=saved.settings or None, **prior, **known)
        estimator.posterior_ = saved.posterior
        vars(estimator)["n_features_in_"] = model.n_columns
        if saved.extra.get("named_columns", model.columns != tuple(f"x{i}" for i in range(model.n_columns))):
            vars(estimator)["feature_names_in_"] = np.array(model.columns, dtype=object)
        estimator._describe(saved.feature_ranges, saved.target_name)
        return estimator

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS} | dict(self.settings or {})

    def _describe(self, feature_ranges: np.ndarray | None, target_name: Any) -> None:
        self.diagnostics_, self.n_inducing_ = self.posterior_.verdict, len(self.posterior_.conditional[1])
        self.feature_ranges_ = feature_ranges
        self._target_name = target_name if isinstance(target_name, str) else None

    def _checked(self, X: Any, reset: bool = False, **y: Any) -> Any:
        """X (and y) as float64, checked as scikit-learn does; `reset` notes the columns, else they are compared."""
        _refuse_columns(X)
        try:
            # One layout, so that sums are rounded alike whatever the data came in.
            return validate_data(self, X, reset=reset, dtype=np.float64, order="C", **y)
        except (ValueError, OverflowError) as error:
            raise InputError(_with_advice(str(error))) from error


def _seed(random_state: Any) -> int:
    """An int is the seed itself; anything else that scikit-learn accepts draws one."""
    generator = check_random_state(random_state)
    return int(random_state) if isinstance(random_state, Integral) else int(generator.randint(2**31 - 1))


def _refuse_columns(X: Any) -> None:
    """Name the columns of a data frame that are no numbers: converting them would fail late, or guess an order."""
    for column, dtype in zip(getattr(X, "columns", ()), getattr(X, "dtypes", ()), strict=False):
        kind = str(dtype).lower()
        if kind.startswith(_TIMES):
            raise InputError(f"column {column!r} holds times ({dtype}): give a number, such as days since a date")
        if not kind.startswith(_NUMERIC):
            raise InputError(f"column {column!r} does not hold numbers ({dtype}): {_ENCODE}")


def _with_advice(message: str) -> str:
    """What scikit-learn says, and what to do about it."""
    if "NaN" in message:  # the rest of scikit-learn's text recommends other models
        return f"{message.splitlines()[0]} Drop these rows, or impute the values (sklearn.impute in a Pipeline)."
    if "infinity" in message:
        return f"{message} Drop these rows, or replace the values by numbers."
    if "could not convert string" in message:
        return f"{message}; {_ENCODE}"
    return message
