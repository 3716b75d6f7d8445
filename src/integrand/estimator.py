"""`SparseGPRegressor`: everything behind the contract of scikit-learn."""

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from integrand.errors import InputError
from integrand.estimator_base import RegressorMixin, SparseGP, check_is_fitted, seed_of
from integrand.kernels.base import Kernel
from integrand.likelihoods import Bernoulli
from integrand.posterior.modelfile import SavedModel
from integrand.presets import DEFAULT


class SparseGPRegressor(RegressorMixin, SparseGP):
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
        Preset of the priors that the kernel leaves open: `paper`, `scaled` or `pooled`.
    likelihood : str or Likelihood
        Of y given f: `gaussian`, or, with methods that do not collapse u (`joint-hmc`, `svgp`, ...), `student-t` or
        `poisson`. For classes use `SparseGPClassifier`.
    sampler : str
        Of the hyperparameters: `default` (the method's own), `nuts`, `hmc`, `mala`, `metropolis`, `slice` or `nested`.
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
        Whether the draws can be trusted, in words by `print`; None for methods that only optimise θ.
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
        priors: str = DEFAULT,
        noise: Any = None,
        mean: Any = 0.0,
        likelihood: Any = "gaussian",
        sampler: str = "default",
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
        self.likelihood = likelihood
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
        self._fit(rows, y, target_name, noise=self.noise, likelihood=self.likelihood)
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

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = None, joint: bool = True, include_noise: bool = True
    ) -> np.ndarray:
        """Draws at the rows of X, shape (n_rows, n_samples).

        With `joint=True` a column is one draw of all rows together (a function, plus noise if that is included), which
        needs a matrix of n_rows x n_rows; with `joint=False` each row is drawn on its own.
        """
        predictive = self.predict_distribution(X, include_noise)
        rng = np.random.default_rng(seed_of(random_state))
        return (predictive.sample_joint if joint else predictive.sample)(rng, n_samples).T

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log density of each y at its row of X under the mixture, in nats and the units of y; shape (n_rows,)."""
        check_is_fitted(self)
        X, y = self._checked(X, y=y, y_numeric=True)
        return self.posterior_.predict(X, include_noise=True).log_density(np.asarray(y, float))

    @classmethod
    def _from_saved(cls, saved: SavedModel) -> dict[str, Any]:
        model = saved.posterior.model
        if isinstance(model.likelihood, Bernoulli):
            raise InputError("this file holds a classifier: use SparseGPClassifier.load")
        noise = {"noise": model.noise} if model.likelihood.has_noise else {}
        return {"likelihood": model.likelihood, **noise}
