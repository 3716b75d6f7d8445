"""`SparseGPRegressor` and `SparseGPClassifier`: fits behind the contract of scikit-learn.

Nothing else in the library imports scikit-learn.
"""

import os
from collections.abc import Mapping
from inspect import signature
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from integrand.data.checks import checked_variances, refuse_series, refuse_words
from integrand.data.sources import ArrayRows
from integrand.errors import InputError, UnreliableWeightsError
from integrand.kernels import RBF
from integrand.kernels.base import Kernel
from integrand.likelihoods import Bernoulli
from integrand.methods.fit import as_likelihood, fit, prior_predictive, update
from integrand.methods.table import METHODS
from integrand.model import Model, check_known_noise
from integrand.posterior.mixture import checked_levels
from integrand.posterior.predictive import Predictive
from integrand.posterior.updating import joined_ranges
from integrand.priors import DEFAULT
from integrand.storage.model_file import (
    MAX_TRIANGLE_BYTES,
    SavedModel,
    load_members,
    load_model,
    model_bytes,
    model_from_bytes,
    save_members,
    save_model,
)

# Types of columns, as pandas and polars print them, that are numbers or can be read as such.
_NUMERIC = ("int", "uint", "float", "double", "half", "bool", "decimal", "sparse", "null", "object")
_TIMES = ("date", "time", "duration", "period")
_ENCODE = "use Categorical('name of the column') in the kernel for categories and text, or drop them"

# Parameters that are fields of `Settings` under the same name.
_SETTINGS = ("n_inducing", "sampler", "chains", "target_ess", "max_draws", "max_minutes", "target_accept", "steps")


class SparseGP(BaseEstimator):
    """What both estimators share: fitting, checking input, saving and loading.

    Subclasses list their parameters in `__init__`, as scikit-learn wants it.
    """

    # Parameters that every subclass has; those of `_SETTINGS` that it has too are handed on.
    kernel: Any
    method: str | None
    priors: str
    mean: Any
    settings: Mapping[str, Any] | None
    strict: bool
    progress: bool
    random_state: Any
    run_dir: Any

    def _fit(self, rows: np.ndarray, y: np.ndarray, target_name: Any, noise_variance: Any = None, **model: Any) -> None:
        """Run the method on checked rows and keep its posterior."""
        self.posterior_ = fit(
            self._rows(rows, y, noise_variance),
            kernel=self.kernel,
            method=self.method,
            mean=self.mean,
            priors=self.priors,
            run_dir=None if self.run_dir is None else os.fspath(self.run_dir),
            strict=self.strict,
            progress=self.progress,
            seed=seed_of(self.random_state),
            **model,
            **self._settings(),
        )
        vars(self)["_category_levels"] = dict(self.posterior_.model.levels)  # words are taken after codes, too
        self._describe(_ranges(rows), target_name)

    def _rows(self, X: np.ndarray, y: np.ndarray, noise_variance: Any = None) -> ArrayRows:
        """Checked rows with what is known of their columns."""
        names = getattr(self, "feature_names_in_", None)
        columns = None if names is None else list(names)
        levels = {columns[i] if columns else f"x{i}": of_column for i, of_column in self._levels.items()}
        return ArrayRows(X, y, columns, noise_variance=noise_variance, levels=levels)

    @property
    def _levels(self) -> dict[int, tuple[str, ...]]:
        """The levels of columns that held categories, by number; without codes, whose levels the fit counts."""
        return vars(self).get("_category_levels", {})

    def predict_distribution(self, X: Any, include_noise: bool = True, noise_variance: Any = None) -> Predictive:
        """The mixture itself: moments, quantiles, densities, CRPS and draws at the rows of X.

        `noise_variance` is the known variance of the noise of each row, as in `fit`.
        """
        check_is_fitted(self)
        X = self._checked(X)
        return self.posterior_.predict(
            X, include_noise=include_noise, noise_variance=noise_variance, strict=self.strict
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file that `load` reads; see `integrand.storage.model_file`."""
        check_is_fitted(self)
        save_model(self.posterior_, path, **self._noted())

    def _noted(self) -> dict[str, Any]:
        """What a file holds beside the posterior."""
        return {
            "feature_ranges": self.feature_ranges_,
            "target_name": self._target_name,
            "settings": self._settings(),
            "extra": self._extra(),
        }

    def report(
        self,
        path: str | os.PathLike[str],
        X: Any = None,
        y: Any = None,
        *,
        noise_variance: Any = None,
        held_out: bool = False,
        title: str = "",
    ) -> None:
        """Write the HTML report of `integrand report` to `path`.

        Parameters
        ----------
        path
            The file to write.
        X, y
            Rows with their observations, to hold predictions against.
        noise_variance
            Known variance of the noise of each row, if the fit had one.
        held_out
            Whether these rows took no part in the fit.
        title
            Heading of the page.
        """
        from integrand.report import write_report

        check_is_fitted(self)
        if (X is None) != (y is None):
            raise InputError("`report` takes rows with their observations: give both X and y, or neither")
        if hasattr(self, "estimators_"):
            raise InputError(
                "with more than two classes each has a model of its own: report one of them, as in "
                "clf.estimators_[0].report(path, X, y == clf.classes_[0]). predict_proba has the probabilities of all"
            )
        data = None if X is None else (self._checked(X), self._coded(np.asarray(y)))
        if data is not None and noise_variance is not None:
            check_known_noise(self.posterior_.model)
            data = (*data, checked_variances(noise_variance, len(data[1])))
        write_report(
            path,
            self.posterior_,
            data=data,
            held_out=held_out,
            title=title or None,
            target=self._target_name or "y",
            settings=self._settings(),
        )

    def _coded(self, y: np.ndarray) -> np.ndarray:
        """Observations as numbers."""
        return y

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A fitted estimator from a model file; it needs no training data and nothing in the file is executed."""
        return cls._from_saved(load_model(path))

    @classmethod
    def _from_saved(cls, saved: SavedModel) -> Self:
        model, settings = saved.posterior.model.given or saved.posterior.model, _saved_settings(saved)
        parameters = {name: settings.pop(name) for name in _SETTINGS if name in settings}
        make: Any = cls  # the constructors of the two estimators have more parameters than that of their base
        estimator = make(
            kernel=model.kernel,
            priors=model.priors,
            mean=model.mean,
            method=saved.posterior.method,
            random_state=settings.pop("seed", None),
            settings=settings or None,
            **parameters,
            **cls._own_parameters(saved),
        )
        estimator.posterior_ = saved.posterior
        vars(estimator)["n_features_in_"] = model.n_columns
        vars(estimator)["_category_levels"] = dict(saved.posterior.model.levels)
        if saved.extra.get("named_columns", model.columns != tuple(f"x{i}" for i in range(model.n_columns))):
            vars(estimator)["feature_names_in_"] = np.array(model.columns, dtype=object)
        estimator._describe(saved.feature_ranges, saved.target_name)
        estimator._restore(saved)
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and joblib: the posterior as the bytes of a model file, which later versions can read."""
        state: dict[str, Any] = dict(super().__getstate__())  # pyright: ignore[reportCallIssue, reportArgumentType, reportAssignmentType]
        posterior = state.pop("posterior_", None)
        if posterior is not None:
            state.pop("diagnostics_", None)
        return state if posterior is None else state | {"model_file": model_bytes(posterior)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        content = state.pop("model_file", None)
        super().__setstate__(state)
        if content is not None:
            self.posterior_ = model_from_bytes(content).posterior
            self.diagnostics_ = self.posterior_.verdict

    @classmethod
    def _own_parameters(cls, saved: SavedModel) -> dict[str, Any]:
        """Parameters that only this estimator has, from a file; refuses models that it is not for."""
        raise NotImplementedError

    def _restore(self, saved: SavedModel) -> None:
        """Set the fitted attributes that only this estimator has, from a file."""

    def _extra(self) -> dict[str, Any]:
        """What a file holds for `_restore`, and whether the columns were named."""
        return {"named_columns": hasattr(self, "feature_names_in_")}

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS if hasattr(self, name)} | dict(self.settings or {})

    def _describe(self, feature_ranges: np.ndarray | None, target_name: Any) -> None:
        self.diagnostics_, self.n_inducing_ = self.posterior_.verdict, len(self.posterior_.Z)
        self.feature_ranges_ = feature_ranges
        self._target_name = target_name if isinstance(target_name, str) else None

    def _with_codes(self, X: Any, reset: bool, known_only: bool) -> Any:
        """X with codes in the place of categories that the kernel speaks of; `reset` notes their levels."""
        wanted = self.kernel.category_levels() if isinstance(self.kernel, Kernel) else {}
        if not wanted and not hasattr(X, "dtypes"):
            return X
        from integrand.data.categories import coded, refuse_numbers  # few fits need it

        if not reset:
            names = getattr(self, "feature_names_in_", range(vars(self).get("n_features_in_", 0)))
            if wanted and sorted(map(str, getattr(X, "columns", ()))) == sorted(map(str, names)):
                X = X[list(names)]  # by name: a category is no number in another place
            refuse_numbers(X, self._levels, list(map(str, names)))
        X, found = coded(X, wanted if reset else {i: v for i, v in self._levels.items() if v}, known_only)
        if reset:
            vars(self)["_category_levels"] = found
        return X

    def _checked(self, X: Any, reset: bool = False, known_only: bool = False, **y: Any) -> Any:
        """X (and y) as float64, checked as scikit-learn does; `reset` notes the columns, else they are compared."""
        refuse_series(X, "X")
        if y.get("y_numeric"):
            refuse_words(y["y"])
        X = self._with_codes(X, reset, known_only or reset)
        _refuse_columns(X)
        try:
            # One layout, so that sums are rounded alike whatever the data came in.
            return validate_data(self, X, reset=reset, dtype=np.float64, order="C", **y)
        except (ValueError, OverflowError) as error:
            raise InputError(_with_advice(str(error), y.get("y"))) from error


def seed_of(random_state: Any) -> int:
    """An int is the seed itself; anything else that scikit-learn accepts draws one."""
    generator = check_random_state(random_state)
    return int(random_state) if isinstance(random_state, Integral) else int(generator.randint(2**31 - 1))


def _ranges(rows: np.ndarray) -> np.ndarray:
    """Smallest and largest value of each column."""
    return np.column_stack([rows.min(axis=0), rows.max(axis=0)])


def _saved_settings(saved: SavedModel) -> dict[str, Any]:
    """The settings in a file. The command line notes other arguments of `fit` beside them, such as the method."""
    return {name: value for name, value in saved.settings.items() if name not in signature(fit).parameters}


def _refuse_columns(X: Any) -> None:
    """Name the columns of a data frame that are no numbers: converting them would fail late, or guess an order."""
    for column, dtype in zip(getattr(X, "columns", ()), getattr(X, "dtypes", ()), strict=False):
        kind = str(dtype).lower()
        if kind.startswith(_TIMES):
            raise InputError(f"column {column!r} holds times ({dtype}): give a number, such as days since a date")
        if not kind.startswith(_NUMERIC):
            advice = f"use Categorical({column!r}) in the kernel, or drop it"
            raise InputError(f"column {column!r} does not hold numbers ({dtype}): {advice}")


def _is_no_number(value: Any) -> bool:
    """Whether a value is missing or infinite; labels are neither."""
    try:
        return not np.isfinite(float(value))
    except ValueError:
        return False
    except (TypeError, OverflowError):
        return True


def _with_advice(message: str, y: Any) -> str:
    """What scikit-learn says, and what to do about it."""
    if "y contains" in message:
        row = next((row for row, value in enumerate(np.asarray(y, object).ravel()) if _is_no_number(value)), "?")
        return f"{message.splitlines()[0].rstrip('.')}, the first in row {row}: leave such rows out."
    if "NaN" in message:  # the rest of scikit-learn's text recommends other models
        return f"{message.splitlines()[0]} Drop these rows, or impute the values (sklearn.impute in a Pipeline)."
    if "infinity" in message:
        return f"{message} Drop these rows, or replace the values by numbers."
    if "\narray=" in message:  # scikit-learn shows all of it
        return f"{message.partition(':')[0]}. {message.splitlines()[-1]}"
    if "could not convert string" in message:
        return f"{message}; {_ENCODE}"
    return message


class SparseGPRegressor(RegressorMixin, SparseGP):
    """Sparse Gaussian process regression whose hyperparameters are integrated out.

    Data are standardised inside. Predictions, numbers and priors are in the units of the data; presets, and what
    `standardised` is put around, are for standardised data.

    Parameters
    ----------
    kernel : Kernel, optional
        By default RBF with one lengthscale a column.
    n_inducing : int or "auto"
        Inducing points; no more are used than there are distinct rows. With "auto" the fit chooses (`sgpr-hmc` alone).
    method : str, optional
        `sgpr-hmc` integrates over the hyperparameters (Algorithm 1 of the paper), `ml2` and `map` optimise them; see
        `integrand.METHODS`. By default `sgpr-hmc`, and `joint-hmc` where the likelihood is not Gaussian.
    priors : str
        Preset of the priors that the kernel leaves open: `paper`, `scaled` or `pooled`.
    likelihood : str or Likelihood
        Of y given f: `gaussian`, `student-t` or `poisson`. For classes use `SparseGPClassifier`.
    sampler : str
        Of the hyperparameters: `default` (the method's own), `nuts`, `hmc`, `mala`, `metropolis`, `slice` or `nested`.
    noise, mean
        Standard deviation of the observations and level of the function, in the units of y: a number or a prior. By
        default the noise is inferred and the mean is that of y. `noise=0` is for rows whose noise is known,
        `fit(X, y, noise_variance=v)`.
    bound : str, optional
        Collapsed bound of the sparse methods that have one: `titsias` or `tight`; by default that of the method.
    target_transform : str or Transform, optional
        For a skewed target: `log`, `box-cox` (both for positive targets) or `sinh-arcsinh`. Predictions stay in the
        units of y. Numbers and priors on noise, scale and mean are those of the transformed y.
    chains, target_ess, max_draws, max_minutes, target_accept
        The sampler draws until each hyperparameter has `target_ess` effective draws, each chain has `max_draws`, or
        `max_minutes` have passed.
    steps : int, optional
        Steps of the optimiser, for methods that only optimise; by default 1 000 of L-BFGS or 5 000 of Adam on batches.
    settings : mapping, optional
        More fields of `integrand.methods.problem.Settings` by name, such as `restarts` or `predictive_draws`.
    strict : bool
        Raise `NotConvergedError` where `fit` otherwise gives a `ConvergenceWarning`, and an `InputError` where
        `predict` otherwise gives an `UnknownCategoryWarning`.
    progress : bool
        Show bars in a terminal or notebook, and a line every ten seconds in a log file.
    random_state : int, RandomState or None
        The same int gives the same draws.
    run_dir : path, optional
        A new directory that keeps the state of one fit, for `integrand.resume`.

    Attributes
    ----------
    posterior_ : Posterior
        Draws, inducing inputs, timings; `posterior_.to_arviz()` hands them to ArviZ.
    diagnostics_ : Verdict or None
        Whether the draws can be trusted, and what residuals say of the model, in words by `print`.
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
        n_inducing: int | str = 100,
        method: str | None = None,
        priors: str = DEFAULT,
        noise: Any = None,
        mean: Any = None,
        likelihood: Any = "gaussian",
        bound: str | None = None,
        target_transform: Any = None,
        sampler: str = "default",
        chains: int = 4,
        target_ess: float = 400.0,
        max_draws: int = 5_000,
        max_minutes: float | None = None,
        target_accept: float = 0.7,
        steps: int | None = None,
        settings: Mapping[str, Any] | None = None,
        strict: bool = False,
        progress: bool = False,
        random_state: Any = None,
        run_dir: str | os.PathLike[str] | None = None,
    ):
        self.kernel = kernel
        self.n_inducing = n_inducing
        self.method = method
        self.priors = priors
        self.noise = noise
        self.mean = mean
        self.likelihood = likelihood
        self.bound = bound
        self.target_transform = target_transform
        self.sampler = sampler
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

    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> Self:
        """Fit to X (n_rows, n_features) and y (n_rows,): arrays, lists, pandas or polars.

        `noise_variance` (n_rows,) is the known variance of the noise of each row, in squared units of y. The noise of
        the model is added to it; `noise=0` leaves the known one alone. `set_fit_request(noise_variance=True)` makes
        `cross_validate` and `GridSearchCV` hand it on.
        """
        target_name = getattr(y, "name", None)
        rows, y = self._checked(X, y=y, y_numeric=True, reset=True)
        model = {"noise": self.noise, "likelihood": self.likelihood, "bound": self.bound}
        self._fit(rows, y, target_name, noise_variance, target_transform=self.target_transform, **model)
        return self

    def update(self, X: Any, y: Any, noise_variance: Any = None, old_rows: Any = None) -> Self:
        """Take in new rows, at fixed inducing inputs and draws, which are weighted; see `Posterior.update`.

        Parameters
        ----------
        X, y, noise_variance
            The new rows alone, as for `fit`.
        old_rows
            All rows so far, (X, y) or (X, y, noise_variance), or the run directory of the fit. Where weights cannot be
            trusted, or inducing inputs miss the new rows, all rows are then fitted again; see `integrand.update`.

        Raises
        ------
        UnreliableWeightsError
            If weights cannot be trusted and there are no old rows.
        """
        check_is_fitted(self)
        rows, y = self._checked(X, y=y, y_numeric=True, known_only=True)
        if isinstance(old_rows, tuple | list) and len(old_rows) in (2, 3):
            old_X, old_y = self._checked(old_rows[0], y=old_rows[1], y_numeric=True, known_only=True)
            old_rows = (old_X, old_y, *old_rows[2:])
        source = self._rows(rows, y, noise_variance)
        how = {"strict": self.strict, "progress": self.progress, "seed": seed_of(self.random_state)}
        try:
            self.posterior_ = update(self.posterior_, source, old_rows=old_rows, **how, **self._settings())
        except UnreliableWeightsError as error:
            raise UnreliableWeightsError(str(error).replace("`integrand.update`", "`update`")) from None
        ranges = self.feature_ranges_
        if ranges is not None:
            ranges = joined_ranges(ranges, _ranges(rows))
        self._describe(ranges, self._target_name)
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        quantiles: Any = None,
        include_noise: bool = True,
        noise_variance: Any = None,
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Mean of the mixture over all draws at each row of X, and on request its spread.

        Parameters
        ----------
        return_std
            Add the standard deviation of the mixture.
        quantiles
            Probabilities; adds the quantiles of the mixture.
        include_noise
            True for the spread of a new observation y, False for that of the function f. The mean is the same, but for
            a transformed target: there f is the median of y.
        noise_variance
            Known variance of the noise of each new observation, in squared units of y; see `fit`. If the fit had one,
            a spread of y without it is a `KnownNoiseWarning`.

        Returns
        -------
        `mean`, or a tuple `(mean, std)`, `(mean, quantiles)` or `(mean, std, quantiles)`: whatever was asked for, in
        this order. `mean` and `std` have shape (n_rows,), `quantiles` has shape (n_rows, len(quantiles)).
        """
        levels = np.atleast_1d(checked_levels([] if quantiles is None else quantiles, "quantiles"))
        check_is_fitted(self)
        if not return_std and quantiles is None and self.posterior_.known_noise:
            include_noise = False  # the mean is the same
        predictive = self.predict_distribution(X, include_noise, noise_variance)
        results = [predictive.mean]
        if return_std:
            results.append(predictive.sd)
        if quantiles is not None:
            results.append(predictive.quantile(levels).T)
        return results[0] if len(results) == 1 else tuple(results)

    def predict_gradient(
        self, X: Any, return_std: bool = False, quantiles: Any = None
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Mean of ∂f/∂x over all draws at each row of X, in units of y per unit of each column; on request its spread.

        Parameters
        ----------
        return_std
            Add the standard deviation of the mixture.
        quantiles
            Probabilities; adds the quantiles of the mixture.

        Returns
        -------
        `mean`, or a tuple as in `predict`. `mean` and `std` have shape (n_rows, n_features), `quantiles` has shape
        (n_rows, n_features, len(quantiles)).
        """
        check_is_fitted(self)
        levels = np.atleast_1d(checked_levels([] if quantiles is None else quantiles, "quantiles"))
        gradient = self.posterior_.predict_gradient(self._checked(X))
        results = [gradient.mean]
        if return_std:
            results.append(gradient.sd)
        if quantiles is not None:
            results.append(np.moveaxis(gradient.quantile(levels), 0, -1))
        return results[0] if len(results) == 1 else tuple(results)

    def prior_predictive(
        self, X: Any, y: Any, at: Any = None, n_samples: int = 100, random_state: Any = None
    ) -> np.ndarray:
        """Draws of y from the priors alone, before any fit; see `integrand.prior_predictive`. Shape (rows, n_samples).

        `at` are the rows at which to draw; by default at most 200 of X, evenly spaced. Nothing is kept.
        """
        estimator: Any = clone(self)
        rows, y = estimator._checked(X, y=y, y_numeric=True, reset=True)
        source = estimator._rows(rows, y)
        given = self.noise, self.mean, self.priors, as_likelihood(self.likelihood)
        model = Model(self.kernel or RBF(), source.columns, *given, target_transform=self.target_transform)
        at = None if at is None else estimator._checked(at)
        return prior_predictive(model, source, at=at, n_draws=n_samples, seed=seed_of(random_state)).T

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = None,
        joint: bool = True,
        include_noise: bool = True,
        noise_variance: Any = None,
    ) -> np.ndarray:
        """Draws at the rows of X, shape (n_rows, n_samples).

        With `joint=True` a column is one draw of all rows together (a function, plus noise if that is included), which
        needs a matrix of n_rows x n_rows; with `joint=False` each row is drawn on its own.
        """
        predictive = self.predict_distribution(X, include_noise, noise_variance)
        rng = np.random.default_rng(seed_of(random_state))
        return (predictive.sample_joint if joint else predictive.sample)(rng, n_samples).T

    def log_density(self, X: Any, y: Any, noise_variance: Any = None) -> np.ndarray:
        """Log density of each y at its row of X under the mixture, in nats and the units of y; shape (n_rows,)."""
        check_is_fitted(self)
        X, y = self._checked(X, y=y, y_numeric=True)
        predictive = self.posterior_.predict(X, include_noise=True, noise_variance=noise_variance, strict=self.strict)
        return predictive.log_density(np.asarray(y, float))

    @classmethod
    def _own_parameters(cls, saved: SavedModel) -> dict[str, Any]:
        model = saved.posterior.model.given or saved.posterior.model
        if isinstance(model.likelihood, Bernoulli):
            raise InputError("this file holds a classifier: use SparseGPClassifier.load")
        noise = {"noise": model.noise} if model.likelihood.has_noise else {}
        bound = {"bound": model.bound} if METHODS[saved.posterior.method].collapsed else {}
        return {"likelihood": model.likelihood, "target_transform": model.target_transform, **bound, **noise}


class SparseGPClassifier(ClassifierMixin, SparseGP):
    """Sparse Gaussian process classification: P(y = 1 | f) is the logistic function of f, or Φ(f).

    Inducing values and hyperparameters are drawn together (`joint-hmc`, Hensman et al. 2015), so probabilities are
    averages over what the data leave open. With more than two classes each has a model of its own against the rest, and
    the probabilities that these give are divided by their sum.

    Parameters
    ----------
    kernel : Kernel, optional
        By default RBF with one lengthscale a column.
    n_inducing : int
        Inducing points; no more are used than there are distinct rows.
    method : str
        `joint-hmc`, `bsgp`, `gpr-latent` and `pseudo-marginal` draw, `svgp` and `vi-uncollapsed` optimise; see
        `integrand.METHODS`.
    link : str
        `logit` or `probit`.
    priors : str
        Preset of the priors that the kernel leaves open: `paper`, `scaled` or `pooled`.
    mean
        Level of the latent function: a number or a prior; by default 0.
    sampler : str
        Of `joint-hmc`: `default` (`nuts`), `nuts`, `hmc` or `sghmc`.
    chains, target_ess, max_draws, max_minutes, target_accept, steps, settings, strict, progress, random_state, run_dir
        As in `SparseGPRegressor`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels; probabilities are in their order.
    estimators_ : list of SparseGPClassifier
        With more than two classes: the model of each of them against the rest.
    posterior_, diagnostics_, n_inducing_, feature_ranges_, n_features_in_, feature_names_in_
        As in `SparseGPRegressor`. With more than two classes `diagnostics_` is a mapping from the class to its verdict,
        and `posterior_` is that of each of `estimators_`.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_inducing: int = 100,
        method: str = "joint-hmc",
        link: str = "logit",
        priors: str = DEFAULT,
        mean: Any = None,
        sampler: str = "default",
        chains: int = 4,
        target_ess: float = 400.0,
        max_draws: int = 5_000,
        max_minutes: float | None = None,
        target_accept: float = 0.7,
        steps: int | None = None,
        settings: Mapping[str, Any] | None = None,
        strict: bool = False,
        progress: bool = False,
        random_state: Any = None,
        run_dir: str | os.PathLike[str] | None = None,
    ):
        self.kernel = kernel
        self.n_inducing = n_inducing
        self.method = method
        self.link = link
        self.priors = priors
        self.mean = mean
        self.sampler = sampler
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

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (n_rows, n_features) and labels y (n_rows,) of two or more kinds."""
        target_name = getattr(y, "name", None)
        rows, y = self._checked(X, y=y, reset=True)
        try:
            check_classification_targets(y)
        except ValueError as error:
            raise InputError(f"{error} For numbers use SparseGPRegressor.") from error
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) == 1:
            raise InputError(f"y has one class ({self.classes_[0]}) only: there is nothing to tell apart")
        vars(self).pop("posterior_", None)
        vars(self).pop("estimators_", None)
        if len(self.classes_) == 2:
            self._fit(rows, codes.astype(float), target_name, likelihood=Bernoulli(self.link))
        else:
            self._fit_each(X, codes, target_name)
        return self

    def _fit_each(self, X: Any, codes: np.ndarray, target_name: Any) -> None:
        """One model for each class, against all the others."""
        seed = seed_of(self.random_state)
        members = []
        for k in range(len(self.classes_)):
            run_dir = None if self.run_dir is None else os.path.join(os.fspath(self.run_dir), f"class-{k}")
            member: Any = clone(self)
            member.set_params(random_state=seed, run_dir=run_dir)
            members.append(member.fit(X, (codes == k).astype(int)))
        self._describe_each(members, target_name)

    def _describe_each(self, members: "list[SparseGPClassifier]", target_name: Any) -> None:
        self.estimators_ = members
        self.diagnostics_ = {c: m.diagnostics_ for c, m in zip(self.classes_.tolist(), members, strict=True)}
        self.n_inducing_ = max(member.n_inducing_ for member in members)
        self.feature_ranges_ = members[0].feature_ranges_
        self._target_name = target_name if isinstance(target_name, str) else None

    def predict_distribution(self, X: Any, include_noise: bool = True, noise_variance: Any = None) -> Predictive:
        """The mixture itself at the rows of X, of two classes: `mean` is the probability of the second one."""
        check_is_fitted(self)
        if hasattr(self, "estimators_"):
            raise InputError("each class has a distribution of its own: ask estimators_[k].predict_distribution(X)")
        return super().predict_distribution(X, include_noise, noise_variance)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, shape (n_rows, n_classes), averaged over all draws."""
        check_is_fitted(self)
        if hasattr(self, "estimators_"):
            self._checked(X)
            against_rest = np.column_stack([member.predict_proba(X)[:, 1] for member in self.estimators_])
            against_rest = np.maximum(against_rest, np.finfo(float).tiny)
            return against_rest / against_rest.sum(axis=1, keepdims=True)
        one = np.clip(self.predict_distribution(X).mean, 0.0, 1.0)
        return np.column_stack([1.0 - one, one])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row."""
        check_is_fitted(self)
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]

    def _coded(self, y: np.ndarray) -> np.ndarray:
        """Labels as 0 and 1."""
        if not np.isin(y, self.classes_).all():
            raise InputError(f"y has other labels than the fit, which knows {', '.join(map(str, self.classes_))}")
        return np.searchsorted(self.classes_, y).astype(float)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file that `load` reads; see `integrand.storage.model_file`."""
        check_is_fitted(self)
        if not hasattr(self, "estimators_"):
            super().save(path)
            return
        members = [
            model_bytes(member.posterior_, max_bytes=MAX_TRIANGLE_BYTES, **member._noted())
            for member in self.estimators_
        ]
        save_members(path, members, {"classes": self.classes_.tolist(), "target_name": self._target_name})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A fitted classifier from a model file; it needs no training data and nothing in the file is executed."""
        several = load_members(path)
        if several is None:
            return super().load(path)
        members = [cls._from_saved(saved) for saved in several[0]]
        classifier: Any = clone(members[0])
        for name in ("n_features_in_", "feature_names_in_", "_category_levels"):
            if hasattr(members[0], name):
                vars(classifier)[name] = getattr(members[0], name)
        classifier.classes_ = np.array(several[1]["classes"])
        classifier._describe_each(members, several[1]["target_name"])
        return classifier

    def _extra(self) -> dict[str, Any]:
        return super()._extra() | {"classes": self.classes_.tolist()}

    @classmethod
    def _own_parameters(cls, saved: SavedModel) -> dict[str, Any]:
        likelihood = saved.posterior.model.likelihood
        if not isinstance(likelihood, Bernoulli):
            raise InputError("this file holds no classifier: use SparseGPRegressor.load")
        return {"link": likelihood.link}

    def _restore(self, saved: SavedModel) -> None:
        self.classes_ = np.array(saved.extra.get("classes", [0, 1]))
