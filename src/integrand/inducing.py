"""Where the inducing inputs start: candidates without duplicates, of which the bound chooses."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.errors import InputError
from integrand.gp import GP
from integrand.precision import in_float64

# Greedy selection and k-means look at no more rows than this: their cost grows with N, their use does not.
_MOST_ROWS = 20_000


def distinct_rows(X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "K D"]:
    """The rows of X without repetitions, in the order of their first appearance."""
    _, first = np.unique(X, axis=0, return_index=True)
    return X[np.sort(first)]


def random_subset(rng: np.random.Generator, X: Float[np.ndarray, "N D"], m: int) -> Float[np.ndarray, "M D"]:
    """`m` distinct rows of X, drawn without replacement."""
    rows = _enough_rows(X, m)
    return rows[rng.choice(len(rows), m, replace=False)]


def k_means(
    rng: np.random.Generator, X: Float[np.ndarray, "N D"], m: int, levels: Mapping[int, Sequence[str]] | None = None
) -> Float[np.ndarray, "M D"]:
    """Centres of `m` clusters of X. In a column with codes of `levels` a centre has the code of most of its cluster."""
    from scipy.cluster.vq import kmeans2  # takes its time, and a given Z needs none

    rows = _thinned(rng, _enough_rows(X, m), m)
    if levels:  # a column of zeros and ones for each level in the place of its codes
        numbers = [i for i in range(rows.shape[1]) if i not in levels]
        indicators = [(rows[:, [i]] == np.arange(len(of_column))).astype(float) for i, of_column in levels.items()]
        wide = k_means(rng, np.concatenate([rows[:, numbers], *indicators], axis=1), m)
        centres, first = np.empty((m, rows.shape[1])), len(numbers)
        centres[:, numbers] = wide[:, :first]
        for i, of_column in levels.items():
            centres[:, i] = np.argmax(wide[:, first : first + len(of_column)], axis=1)
            first += len(of_column)
        return centres
    start = rows[rng.choice(len(rows), m, replace=False)]  # rows, so that no cluster starts empty
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty", UserWarning)
        centres, _ = kmeans2(rows, start, iter=10, minit="matrix")
    return centres


@in_float64
def greedy_variance(rng: np.random.Generator, X: Float[np.ndarray, "N D"], m: int, gp: GP) -> Float[np.ndarray, "M D"]:
    """`m` rows of X, each the one that the rows before it explain least: pivots of a Cholesky factor of k(X, X)."""
    rows = _thinned(rng, _enough_rows(X, m), m)
    return rows[np.asarray(_pivots(gp, jnp.asarray(rows), m))]


@partial(jax.jit, static_argnames="m")
def _pivots(gp: GP, X: Array, m: int) -> Array:
    def step(i, state):
        C, left, chosen = state
        pivot = jnp.argmax(left)
        row = gp.kernel(X[pivot][None], X)[0] - C[:, pivot] @ C
        row = row / jnp.sqrt(jnp.maximum(left[pivot], 1e-300))
        left = jnp.maximum(left - row**2, 0.0).at[pivot].set(-1.0)  # never chosen again
        # A pivot taken before has left = -1: keep it out whatever rounding says.
        left = jnp.where(state[1] < 0.0, -1.0, left)
        return C.at[i].set(row), left, chosen.at[i].set(pivot)

    start = (jnp.zeros((m, len(X)), X.dtype), gp.kernel.diagonal(X), jnp.zeros(m, int))
    return jax.lax.fori_loop(0, m, step, start)[2]


def candidates(
    rng: np.random.Generator, X: Float[np.ndarray, "N D"], m: int, gp: GP
) -> dict[str, Float[np.ndarray, "M D"]]:
    """Three ways to start. Greedy selection wins once M is near the kernel's effective rank, others far below it."""
    return {
        "random subset": random_subset(rng, X, m),
        "k-means": k_means(rng, X, m, {int(i): names or () for i, names in gp.kernel.category_levels().items()}),
        "greedy variance": greedy_variance(rng, X, m, gp),
    }


def _enough_rows(X: np.ndarray, m: int) -> np.ndarray:
    if m < 1:
        raise InputError(f"the number of inducing points must be at least 1, not {m}")
    rows = distinct_rows(X)
    if m > len(rows):
        raise InputError(
            f"{m} inducing points were asked for, but the data has only {len(rows)} distinct rows: ask for fewer"
        )
    return rows


def _thinned(rng: np.random.Generator, rows: np.ndarray, m: int) -> np.ndarray:
    most = max(_MOST_ROWS, 4 * m)
    return rows if len(rows) <= most else rows[rng.choice(len(rows), most, replace=False)]
