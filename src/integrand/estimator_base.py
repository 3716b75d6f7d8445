"""What the estimators share behind the contract of scikit-learn; nothing else imports scikit-learn."""

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
from integrand.methods.fitting import fit
from integrand.posterior.modelfile import SavedModel, load_model, save_model
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


# scikit-learn imports them for a rarely used function each.
with _postponed("scipy.stats"), _postponed("pandas"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

# The estimators import scikit-learn from here, so that what it postpones stays postponed.
__all__ = [
    "ClassifierMixin",
    "RegressorMixin",
    "SparseGP",
    "check_classification_targets",
    "check_is_fitted",
    "seed_of",
    "type_of_target",
]

# Types of columns, as pandas and polars print them, that are numbers or can be read as such.
_NUMERIC = ("int", "uint", "float", "double", "half", "bool", "decimal", "sparse", "null", "object")
_TIMES = ("date", "time", "duration", "period")

_ENCODE = "encode categories and text as numbers (sklearn.preprocessing.OneHotEncoder, pandas.get_dummies) or drop them"

# Parameters that are fields of `Settings` under the same name.
_SETTINGS = ("n_inducing", "sampler", "chains", "target_ess", "max_draws", "max_minutes", "target_accept", "steps")


class SparseGP(BaseEstimator):
    """Fitting, checking input, saving and loading. Subclasses hold their parameters as scikit-learn wants it."""

    # Parameters that every subclass has; those of `_SETTINGS` that it has too are handed on.
    kernel: Any
    method: str
    priors: str
    mean: Any
    settings: Mapping[str, Any] | None
    strict: bool
    progress: bool
    random_state: Any
    run_dir: Any

    def _fit(self, rows: np.ndarray, y: np.ndarray, target_name: Any, **model: Any) -> None:
        """Run the method on checked rows and keep what it gave."""
        names = getattr(self, "feature_names_in_", None)
        self.posterior_ = fit(
            rows,
            y,
            self.kernel,
            method=self.method,
            mean=self.mean,
            priors=self.priors,
            columns=None if names is None else list(names),
            run_dir=None if self.run_dir is None else os.fspath(self.run_dir),
            strict=self.strict,
            progress=self.progress,
            seed=seed_of(self.random_state),
            **model,
            **self._settings(),
        )
        self._describe(np.column_stack([rows.min(axis=0), rows.max(axis=0)]), target_name)

    def predict_distribution(self, X: Any, include_noise: bool = True) -> Predictive:
        """The mixture itself: moments, quantiles, densities, CRPS and draws at the rows of X."""
        check_is_fitted(self)
        return self.posterior_.predict(self._checked(X), include_noise=include_noise)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file that `load` reads; see `integrand.posterior.modelfile`."""
        check_is_fitted(self)
        save_model(
            self.posterior_,
            path,
            feature_ranges=self.feature_ranges_,
            target_name=self._target_name,
            settings=self._settings(),
            extra=self._extra(),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A fitted estimator from a model file; it needs no training data and nothing in the file is executed."""
        saved = load_model(path)
        model = saved.posterior.model
        known = {name: saved.settings.pop(name) for name in _SETTINGS if name in saved.settings}
        arguments = {
            "kernel": model.kernel,
            "priors": model.priors,
            "mean": model.mean,
            "method": saved.posterior.method,
            "settings": saved.settings or None,
        }
        estimator = cls(**arguments, **known, **cls._from_saved(saved))
        estimator.posterior_ = saved.posterior
        vars(estimator)["n_features_in_"] = model.n_columns
        if saved.extra.get("named_columns", model.columns != tuple(f"x{i}" for i in range(model.n_columns))):
            vars(estimator)["feature_names_in_"] = np.array(model.columns, dtype=object)
        estimator._describe(saved.feature_ranges, saved.target_name)
        estimator._take_over(saved)
        return estimator

    @classmethod
    def _from_saved(cls, saved: SavedModel) -> dict[str, Any]:
        """Parameters that only this estimator has, from a file; refuses models that it is not for."""
        raise NotImplementedError

    def _take_over(self, saved: SavedModel) -> None:
        """Fitted attributes that only this estimator has, from a file."""

    def _extra(self) -> dict[str, Any]:
        return {"named_columns": hasattr(self, "feature_names_in_")}

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS if hasattr(self, name)} | dict(self.settings or {})

    def _describe(self, feature_ranges: np.ndarray | None, target_name: Any) -> None:
        self.diagnostics_, self.n_inducing_ = self.posterior_.verdict, len(self.posterior_.Z)
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


def seed_of(random_state: Any) -> int:
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
