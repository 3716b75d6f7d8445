"""Which rows train and which test: the paper's seeded splits, random splits and folds."""

import operator
from typing import NamedTuple

import numpy as np

from integrand.errors import InputError

PAPER_SEED = 173
PAPER_TRAIN_FRACTION = 0.8


class Split(NamedTuple):
    """Row numbers for training and for testing."""

    train: np.ndarray
    test: np.ndarray


class PaperSplit(NamedTuple):
    """A split of the paper with its first inducing inputs.

    `inducing` counts within the training rows: the first Z is `X[train][inducing]`. It may repeat rows.
    """

    train: np.ndarray
    test: np.ndarray
    inducing: np.ndarray


def paper_split(n_rows: int, k: int, n_inducing: int = 100) -> PaperSplit:
    """Split k (the paper uses 0..9): seed 173 + k, shuffle, the first `int(0.8 N)` rows train.

    The first Z is drawn with replacement from the same random stream right after the shuffle. The paper's
    runs drop the last row of Yacht before splitting (N = 307).

    Parameters
    ----------
    n_rows
        N, the rows of the whole table in the order of its source file.
    k
        Number of the split.
    n_inducing
        M.
    """
    n_rows = _whole(n_rows, "n_rows", 2)
    k = _whole(k, "k", 0)
    n_inducing = _whole(n_inducing, "n_inducing", 0)
    # Legacy generator on purpose: only it repeats the np.random.seed stream behind the paper's numbers.
    stream = np.random.RandomState(PAPER_SEED + k)
    rows = np.arange(n_rows)
    stream.shuffle(rows)
    n_train = int(PAPER_TRAIN_FRACTION * n_rows)
    inducing = stream.randint(0, n_train, n_inducing)
    return PaperSplit(rows[:n_train], rows[n_train:], inducing)


def random_split(n_rows: int, test_fraction: float, seed: int) -> Split:
    """Random rows for testing, at least one on either side; the same seed gives the same split."""
    n_rows = _whole(n_rows, "n_rows", 2)
    seed = _whole(seed, "seed", 0)
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction must lie between 0 and 1, not {test_fraction}: try 0.2")
    n_test = min(max(round(test_fraction * n_rows), 1), n_rows - 1)
    rows = np.random.default_rng(seed).permutation(n_rows)
    return Split(rows[n_test:], rows[:n_test])


def k_folds(n_rows: int, folds: int, seed: int) -> tuple[Split, ...]:
    """Shuffle and cut into folds whose sizes differ by at most one; each row is tested exactly once."""
    n_rows = _whole(n_rows, "n_rows", 2)
    folds = _whole(folds, "folds", 2)
    seed = _whole(seed, "seed", 0)
    if folds > n_rows:
        raise InputError(f"{folds} folds need at least as many rows, but there are {n_rows}: use fewer folds")
    parts = np.array_split(np.random.default_rng(seed).permutation(n_rows), folds)
    return tuple(Split(np.concatenate(parts[:i] + parts[i + 1 :]), part) for i, part in enumerate(parts))


def _whole(value: int, name: str, least: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, not {value!r}: pass an int") from None
    if whole < least:
        raise InputError(f"{name} must be at least {least}, not {whole}")
    return whole
