"""What can go wrong, as types. Every message names the cause and what to try."""

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType


class IntegrandError(Exception):
    """Base of every error that this library raises on purpose."""


class InputError(IntegrandError, ValueError):
    """Data, a kernel, a prior or a setting that cannot be used as given."""


class MissingPackageError(IntegrandError, ImportError):
    """A package of one of the extras that is not installed."""


class UnregisteredError(InputError):
    """A kernel, prior or likelihood that is not registered: files cannot hold it, or this session cannot read it."""


class DataSourceError(IntegrandError):
    """A named data set that is unknown, missing, unreachable or not what it should be."""


class NumericalError(IntegrandError, ArithmeticError):
    """A computation that could not be carried out in double precision."""


class NotConvergedError(IntegrandError):
    """Strict mode: the sampler ended without a posterior one can trust."""


class UnreliableWeightsError(IntegrandError):
    """Draws whose importance weights say that they cannot stand for those of another posterior (k-hat above 0.7)."""


class RunDirectoryError(IntegrandError):
    """A run directory that is locked, foreign, newer than this library, or damaged."""


class ModelFileError(IntegrandError):
    """A model file that is damaged, foreign or newer than this library, or that cannot be written."""


class DistributedError(IntegrandError):
    """Processes that should fit together cannot join, or one of them was lost."""


class PriorWarning(UserWarning):
    """A number or a prior that the user chose lies where the data cannot speak."""


class ConvergenceWarning(UserWarning):
    """The draws cannot be trusted yet; the message is the verdict."""


class KnownNoiseWarning(UserWarning):
    """The fit knew the noise of each row, and rows come without it: spreads and densities leave it out."""


class ExtrapolationWarning(UserWarning):
    """Rows to predict lie far outside the training data, where predictions are mostly the prior."""


class UnknownCategoryWarning(UserWarning):
    """Rows to predict are of a category that the training data do not have: predictions there are the prior."""


def callers_level() -> int:
    """The `stacklevel` with which a warning names the line that called this library."""
    package, frame, level, last = str(Path(__file__).parent), sys._getframe(1), 1, 1
    while frame.f_back is not None:
        frame, level = frame.f_back, level + 1
        if frame.f_code.co_filename.startswith(package):
            last = level
    return last + 1


def counted(n: int, noun: str) -> str:
    """A number and its noun for a sentence: `1 draw`, `2 draws`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def need(package: str, extra: str, user: str) -> None:
    """Raise `MissingPackageError` if a package is not installed; it is not imported.

    Parameters
    ----------
    package
        Name to import.
    extra
        The extra of `integrand` that installs it.
    user
        What needs it: the start of the error's sentence.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(f"{user} needs the package {package}: pip install 'integrand[{extra}]'")


def import_quietly(package: str) -> ModuleType:
    """Import a package that brings ArviZ, or ArviZ itself, without its daily announcement.

    The first import of a day writes a file with the date. Of two processes that do so at the same moment, one fails:
    the other has moved the file. A second try finds it there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(package)
        except FileNotFoundError:
            return importlib.import_module(package)
