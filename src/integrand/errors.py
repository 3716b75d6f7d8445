"""What can go wrong, as types. Every message names the cause and what to try."""


class IntegrandError(Exception):
    """Base of every error that this library raises on purpose."""


class InputError(IntegrandError, ValueError):
    """Data, a kernel, a prior or a setting that cannot be used as given."""


class DataSourceError(IntegrandError):
    """A named data set that is unknown, missing, unreachable or not what it should be."""


class NumericalError(IntegrandError, ArithmeticError):
    """A computation that could not be carried out in double precision."""


class NotConvergedError(IntegrandError):
    """Strict mode: the sampler ended without a posterior one can trust."""


class RunDirectoryError(IntegrandError):
    """A run directory that is locked, foreign, newer than this library, or damaged."""


class ModelFileError(IntegrandError):
    """A model file that is damaged, foreign or newer than this library, or that cannot be written."""


class DistributedError(IntegrandError):
    """Processes that should fit together cannot join, or one of them was lost."""


class ConvergenceWarning(UserWarning):
    """The draws cannot be trusted yet; the message is the verdict."""
