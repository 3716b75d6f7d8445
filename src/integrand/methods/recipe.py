"""Everything that determines a fit, how a run directory keeps it, and carrying it out in one process or in many."""

import dataclasses
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from integrand.data.dataset import Dataset
from integrand.data.disk import RowsOnDisk, rows_from
from integrand.data.scaling import Standardiser
from integrand.description import describe_model, model_from
from integrand.distributed.together import Together
from integrand.errors import ConvergenceWarning, InputError, RunDirectoryError
from integrand.linalg import Jitter
from integrand.methods.origin import InMemory, OnDisk, Origin
from integrand.methods.problem import Problem, Settings
from integrand.methods.table import METHODS
from integrand.model import Model
from integrand.posterior.modelfile import load_model, save_model
from integrand.posterior.posterior import Posterior
from integrand.posterior.storage import RunDirectory
from integrand.progress import Bars, Progress, Silent
from integrand.room import make_room
from integrand.targets import CollapsedTarget


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Settings by name; an unknown one is refused."""
    known = sorted(f.name for f in dataclasses.fields(Settings))
    for name in values:
        if name not in known:
            raise InputError(f"there is no setting {name!r}: choose from {', '.join(known)}")
    return Settings(**values)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A method, a model in standardised units, settings and rows."""

    method: str
    model: Model
    scaler: Standardiser
    settings: Settings
    jitter: Jitter
    origin: Origin
    Z: np.ndarray | None  # inducing inputs to start from, standardised

    def check(self, on_disk: bool) -> None:
        """Refuse what the method cannot do with these rows."""
        method = METHODS[self.method]
        method.check(self.method, self.settings, self.model.likelihood, self.origin.n_rows, on_disk)
        if not isinstance(self.origin, InMemory):
            method.check_large(self.method, self.settings)

    def header(self) -> dict[str, Any]:
        """All but the arrays, as JSON."""
        return {
            "method": self.method,
            "model": describe_model(self.model),
            "settings": dataclasses.asdict(self.settings),
            "jitter": self.jitter._asdict(),
        } | self.origin.header()

    def save(self, run: RunDirectory) -> None:
        """Keep the arrays."""
        arrays = self.origin.arrays() | dataclasses.asdict(self.scaler)
        run.save("data", arrays if self.Z is None else arrays | {"Z": self.Z})

    @classmethod
    def load(cls, run: RunDirectory, origin_of: Callable[[dict[str, Any], dict[str, np.ndarray]], Origin]) -> "Recipe":
        """What `header` and `save` kept; `origin_of` opens the rows again."""
        arrays, _ = run.load("data")
        try:
            header = run.header
            model, settings = model_from(header["model"]), settings_from(header["settings"])
            scaler = Standardiser(arrays["x_mean"], arrays["x_sd"], float(arrays["y_mean"]), float(arrays["y_sd"]))
            origin, Z = origin_of(header, arrays), arrays.get("Z")
            return cls(header["method"], model, scaler, settings, Jitter(**header["jitter"]), origin, Z)
        except (KeyError, TypeError) as error:
            raise RunDirectoryError(f"{run.path} does not describe a fit that this version knows: {error}") from error

    @classmethod
    def told(cls, header: dict[str, Any], scaler: dict[str, Any], n_inducing: int, origin: Origin) -> "Recipe":
        """What rank 0 told of its recipe; where Z starts is for rank 0 alone to know."""
        settings = dataclasses.replace(settings_from(header["settings"]), n_inducing=n_inducing)
        model, jitter = model_from(header["model"]), Jitter(**header["jitter"])
        return cls(header["method"], model, Standardiser(**scaler), settings, jitter, origin, None)

    @property
    def n_inducing(self) -> int:
        """M that was asked for."""
        return self.settings.n_inducing if self.Z is None else len(self.Z)

    def carry_out(self, run: RunDirectory | None, strict: bool, progress: bool | Progress) -> Posterior:
        """Standardise and run the method; the run directory is released whatever happens."""
        listener = (Bars() if progress else Silent()) if isinstance(progress, bool) else progress
        make_room()
        try:
            posterior = self._alone(run, listener) if self.origin.ranks is None else self._among(run, listener)
        finally:
            listener.close()
            if run is not None:
                run.close()
        if posterior.verdict is not None:
            if strict:
                posterior.verdict.raise_if_bad()
            elif not posterior.verdict.ok:
                warnings.warn(str(posterior.verdict), ConvergenceWarning, stacklevel=_callers_level())
        return posterior

    def _datasets(self) -> tuple[Dataset, Dataset | None]:
        s = self.settings
        sampled = METHODS[self.method].collapsed and s.samples(self.origin.n_rows)
        wanted = s.sample_rows if sampled else self.origin.n_rows
        return self.origin.datasets(self.scaler, self.n_inducing, wanted, s.seed)

    def _alone(self, run: RunDirectory | None, listener: Progress) -> Posterior:
        data, sample = self._datasets()
        return self._fitted(data, sample, run, listener)

    def _fitted(self, data: Dataset, sample: Dataset | None, run: RunDirectory | None, listener: Progress) -> Posterior:
        problem = Problem(
            self.model, data, self.scaler, self.settings, self.jitter, listener, run, Z=self.Z, sample=sample
        )
        return METHODS[self.method].fit(problem)

    def _among(self, run: RunDirectory | None, listener: Progress) -> Posterior:
        """Rank 0 fits, the others do with it what touches rows, and all get the posterior."""
        ranks = self.origin.ranks
        assert ranks is not None
        together = Together(ranks, self.model.n_theta, self.n_inducing, self.model.n_columns)
        data, sample = self._datasets()
        assert data.spread is not None
        together.spread = data.spread
        if not ranks.leads:
            return _read(together.follow(tasks(self.model, data, self.jitter)))
        data = dataclasses.replace(data, spread=dataclasses.replace(data.spread, together=together))
        together.keep_company()
        try:
            posterior = self._fitted(data, sample, run, listener)
            together.end(_written(posterior))
            return posterior
        except BaseException as error:
            together.end(error=error)
            raise


def tasks(model: Model, data: Dataset, jitter: Jitter) -> dict[str, Callable[[np.ndarray, np.ndarray], Any]]:
    """What a process that follows can be asked to do."""
    target = CollapsedTarget(model, data, jitter)
    return {"evaluate": target.evaluate, "factored": target.factored}


def _callers_level() -> int:
    """The `stacklevel` with which a warning names the line that called this library."""
    package, frame, level = str(Path(__file__).parents[1]), sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def _written(posterior: Posterior) -> bytes:
    """A posterior as the bytes of a model file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "posterior"
        save_model(posterior, file)
        return file.read_bytes()


def _read(content: bytes) -> Posterior:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "posterior"
        file.write_bytes(content)
        return load_model(file).posterior


def opened(run: RunDirectory, rows: RowsOnDisk | None = None) -> Recipe:
    """The recipe of a run; its rows are found where they were, or given."""

    def origin(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Origin:
        if "rows" not in header:
            return InMemory(arrays["X"], arrays["y"])
        found = rows_from(header["rows"]) if rows is None else rows
        return OnDisk(found, header["total"], arrays["sample"], header["memory"])

    return Recipe.load(run, origin)
