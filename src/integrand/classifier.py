"""`SparseGPClassifier`: two classes, with hyperparameters and latent function integrated out."""

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from integrand.errors import InputError
from integrand.estimator_base import (
    ClassifierMixin,
    SparseGP,
    check_classification_targets,
    check_is_fitted,
    type_of_target,
)
from integrand.kernels.base import Kernel
from integrand.likelihoods import Bernoulli
from integrand.posterior.modelfile import SavedModel
from integrand.presets import DEFAULT


class SparseGPClassifier(ClassifierMixin, SparseGP):
    """Sparse Gaussian process classification of two classes: P(y = 1 | f) = Φ(f), or the logistic function.

    Inducing values and hyperparameters are drawn together (`joint-hmc`, Hensman et al. 2015), so probabilities are
    averages over what the data leave open. For more classes wrap it in `sklearn.multiclass.OneVsRestClassifier`.

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
        `probit` or `logit`.
    priors : str
        Preset of the priors that the kernel leaves open: `paper`, `scaled` or `pooled`.
    mean
        Level of the latent function: a number or a prior.
    sampler : str
        Of `joint-hmc`: `default` (`nuts`), `nuts`, `hmc` or `sghmc`.
    chains, target_ess, max_draws, max_minutes, target_accept, steps, settings, strict, progress, random_state, run_dir
        As in `SparseGPRegressor`.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        The labels; probabilities are in their order.
    posterior_, diagnostics_, n_inducing_, feature_ranges_, n_features_in_, feature_names_in_
        As in `SparseGPRegressor`.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_inducing: int = 100,
        method: str = "joint-hmc",
        link: str = "probit",
        priors: str = DEFAULT,
        mean: Any = 0.0,
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
        """Fit to X (n_rows, n_features) and labels y (n_rows,) of two kinds."""
        target_name = getattr(y, "name", None)
        rows, y = self._checked(X, y=y, reset=True)
        try:
            check_classification_targets(y)
        except ValueError as error:
            raise InputError(f"{error} For numbers use SparseGPRegressor.") from error
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            kind = type_of_target(y, input_name="y", raise_unknown=True)
            some = ", ".join(map(str, self.classes_[:3])) + (", ..." if len(self.classes_) > 3 else "")
            if len(self.classes_) == 1:
                raise InputError(f"y has one class ({some}) only: there is nothing to tell apart")
            raise InputError(
                f"Only binary classification is supported. The type of the target is {kind} ({some}): wrap this "
                "classifier in sklearn.multiclass.OneVsRestClassifier for more classes"
            )
        self._fit(rows, codes.astype(float), target_name, likelihood=Bernoulli(self.link))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, shape (n_rows, 2), averaged over all draws."""
        one = np.clip(self.predict_distribution(X).mean, 0.0, 1.0)
        return np.column_stack([1.0 - one, one])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row."""
        check_is_fitted(self)
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]

    def __sklearn_tags__(self) -> Any:
        """Two classes only."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _extra(self) -> dict[str, Any]:
        return super()._extra() | {"classes": self.classes_.tolist()}

    @classmethod
    def _from_saved(cls, saved: SavedModel) -> dict[str, Any]:
        likelihood = saved.posterior.model.likelihood
        if not isinstance(likelihood, Bernoulli):
            raise InputError("this file holds no classifier: use SparseGPRegressor.load")
        return {"link": likelihood.link}

    def _take_over(self, saved: SavedModel) -> None:
        self.classes_ = np.array(saved.extra.get("classes", [0, 1]))
