"""`fit`, which standardises the data and runs a method of the table, and `resume`."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from integrand.data.dataset import Dataset, block_rows_for, checked_rows
from integrand.data.scaling import Standardiser
from integrand.description import describe_model, model_from
from integrand.errors import ConvergenceWarning, InputError, RunDirectoryError
from integrand.kernels import RBF
from integrand.kernels.base import Kernel
from integrand.likelihoods import LIKELIHOODS, Gaussian, Likelihood
from integrand.linalg import Jitter
from integrand.methods.problem import Problem, Settings
from integrand.methods.table import METHODS
from integrand.model import Model
from integrand.posterior.posterior import Posterior
from integrand.posterior.storage import RUN, RunDirectory
from integrand.presets import DEFAULT
from integrand.progress import Bars, Progress, Silent
from integrand.room import make_room


def fit(
    X: Any,
    y: Any,
    kernel: Kernel | None = None,
    *,
    method: str = "sgpr-hmc",
    noise: Any = None,
    mean: Any = 0.0,
    priors: str = DEFAULT,
    likelihood: str | Likelihood = "gaussian",
    columns: Sequence[str] | None = None,
    scaler: Standardiser | None = None,
    Z: Any = None,
    jitter: Jitter = Jitter(),
    run_dir: str | Path | None = None,
    record: Mapping[str, Any] | None = None,
    strict: bool = False,
    progress: bool | Progress = False,
    **settings: Any,
) -> Posterior:
    """Fit a GP to X (N, D) and y (N,), in their own units, and return the posterior.

    Parameters
    ----------
    kernel, noise, mean, priors
        See `Model`; the default kernel is RBF with one lengthscale a column. Priors speak of standardised data.
    method
        One of `METHODS`: `sgpr-hmc` integrates over the hyperparameters, `ml2` optimises them.
    likelihood
        Of y given f: `gaussian`, `student-t`, `bernoulli` (y is 0 or 1), `poisson` (counts), or an object such as
        `StudentT(df=7)`. All but the first need a method that does not collapse u, such as `joint-hmc` or `svgp`.
    columns
        Names of the columns of X.
    scaler
        How to standardise; by default mean and standard deviation of these rows.
    Z
        Inducing inputs to start from, in the units of X; by default the best of several candidates.
    run_dir
        A directory that keeps the state of the fit, so that `resume` can go on after a crash.
    record
        Anything JSON can hold, kept in the run directory beside the fit.
    strict
        Raise NotConvergedError if the verdict is bad.
    progress
        True for progress bars on standard error.
    settings
        Fields of `Settings`: n_inducing, chains, target_ess, max_draws, max_minutes, seed, ...
    """
    X, y = checked_rows(X, y)
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}: choose from {', '.join(METHODS)}")
    chosen, observed = _settings(settings), _likelihood(likelihood)
    observed.check_y(y)
    METHODS[method].check(method, chosen, observed, len(y), run_dir is not None)
    scaler = Standardiser.fit(X, y) if scaler is None else scaler
    if not observed.standardises_y:
        scaler = dataclasses.replace(scaler, y_mean=0.0, y_sd=1.0)
    if not 1e-100 < scaler.y_sd < 1e100:  # its square is a variance
        raise InputError(f"the standard deviation of y is {scaler.y_sd:.1e}: give y in other units")
    model = Model(RBF() if kernel is None else kernel, columns or X.shape[1], noise, mean, priors, observed)
    if model.n_columns != X.shape[1]:
        raise InputError(f"{model.n_columns} column names were given for {X.shape[1]} columns")
    if METHODS[method].draws:
        if model.n_theta == 0:
            raise InputError(
                "every hyperparameter is a fixed number, so there is nothing to integrate over: use a prior"
            )
        if np.ptp(y) == 0.0 and observed.largest == 1.0:
            raise InputError(f"y is {y[0]:g} in all rows, one class only: there is nothing to tell apart")
        if np.ptp(y) == 0.0 and observed.standardises_y:
            where = "the one sample there is" if len(y) == 1 else f"all {len(y)} rows"
            advice = " (`map` predicts it)" if isinstance(observed, Gaussian) else ""
            raise InputError(f"y is {y[0]:g} in {where}: there is no noise or signal to learn from a constant{advice}")
    start = None if Z is None else scaler.transform_X(np.asarray(Z, float))
    recipe = _Recipe(method, model, scaler, chosen, jitter, X, y, start)
    if run_dir is None:
        return recipe.carry_out(None, strict, progress)
    run = _new_run(Path(run_dir), recipe.header() | {"record": dict(record or {})})
    try:
        recipe.save(run)
    except BaseException:
        run.close()
        raise
    return recipe.carry_out(run, strict, progress)


def resume(
    run_dir: str | Path, *, strict: bool = False, progress: bool | Progress = False, **changes: Any
) -> Posterior:
    """Go on with a fit from its run directory; `changes` are settings such as max_minutes or target_ess."""
    run = RunDirectory.open(Path(run_dir))
    try:
        recipe = _Recipe.load(run)
        recipe = dataclasses.replace(recipe, settings=_settings(dataclasses.asdict(recipe.settings) | changes))
        METHODS[recipe.method].check(recipe.method, recipe.settings, recipe.model.likelihood, len(recipe.y), True)
    except BaseException:
        run.close()
        raise
    return recipe.carry_out(run, strict, progress)


def _new_run(path: Path, header: Mapping[str, Any]) -> RunDirectory:
    """A directory for a new fit; one that was killed before its data were kept is as good as empty."""
    if (path / RUN).exists() and not (path / "data.npz").exists():
        with RunDirectory.open(path):  # refuses if it is being written at this moment
            (path / RUN).unlink(missing_ok=True)
    return RunDirectory.create(path, header)


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """Everything that determines a fit, and how to keep it in a run directory."""

    method: str
    model: Model
    scaler: Standardiser
    settings: Settings
    jitter: Jitter
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray | None

    def header(self) -> dict[str, Any]:
        """All but the arrays, as JSON."""
        return {
            "method": self.method,
            "model": describe_model(self.model),
            "settings": dataclasses.asdict(self.settings),
            "jitter": self.jitter._asdict(),
        }

    def save(self, run: RunDirectory) -> None:
        """Keep the arrays."""
        arrays = {"X": self.X, "y": self.y, **dataclasses.asdict(self.scaler)}
        run.save("data", arrays if self.Z is None else arrays | {"Z": self.Z})

    @classmethod
    def load(cls, run: RunDirectory) -> "_Recipe":
        """What `header` and `save` kept."""
        arrays, _ = run.load("data")
        try:
            header = run.header
            X, y, Z = arrays.pop("X"), arrays.pop("y"), arrays.pop("Z", None)
            model, settings = model_from(header["model"]), _settings(header["settings"])
            scaler = Standardiser(arrays["x_mean"], arrays["x_sd"], float(arrays["y_mean"]), float(arrays["y_sd"]))
            return cls(header["method"], model, scaler, settings, Jitter(**header["jitter"]), X, y, Z)
        except (KeyError, TypeError) as error:
            raise RunDirectoryError(f"{run.path} does not describe a fit that this version knows: {error}") from error

    def carry_out(self, run: RunDirectory | None, strict: bool, progress: bool | Progress) -> Posterior:
        """Standardise and run the method; the run directory is released whatever happens."""
        listener = (Bars() if progress else Silent()) if isinstance(progress, bool) else progress
        make_room()
        try:
            rows = block_rows_for(self.settings.n_inducing)
            data = Dataset.of(self.scaler.transform_X(self.X), self.scaler.transform_y(self.y), rows)
            problem = Problem(self.model, data, self.scaler, self.settings, self.jitter, listener, run, Z=self.Z)
            posterior = METHODS[self.method].fit(problem)
        finally:
            listener.close()
            if run is not None:
                run.close()
        if posterior.verdict is not None:
            if strict:
                posterior.verdict.raise_if_bad()
            elif not posterior.verdict.ok:
                warnings.warn(str(posterior.verdict), ConvergenceWarning, stacklevel=3)
        return posterior


def _likelihood(value: Any) -> Likelihood:
    if isinstance(value, Likelihood):
        return value
    if value is None:
        return Gaussian()
    if value not in LIKELIHOODS:
        raise InputError(f"there is no likelihood {value!r}: choose from {', '.join(LIKELIHOODS)}")
    return LIKELIHOODS[value]()


def _settings(values: Mapping[str, Any]) -> Settings:
    known = sorted(f.name for f in dataclasses.fields(Settings))
    for name in values:
        if name not in known:
            raise InputError(f"there is no setting {name!r}: choose from {', '.join(known)}")
    return Settings(**values)
