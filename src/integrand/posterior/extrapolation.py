"""Which rows lie so far outside the training data that a prediction there is mostly the prior."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from integrand.kernels.base import Kernel, LeafKernel, Product, Sum

# A smaller share of rows than this is no warning.
LEAST_SHARE = 0.01


def reach(kernel: Kernel, n_columns: int) -> Float[np.ndarray, " D"]:
    """How far beyond the data each column can be followed: a lengthscale; infinite for lines and cycles.

    A sum goes as far as its longest part that sees the column, a product as far as its shortest factor.
    """
    return np.nan_to_num(_reach(kernel, n_columns), nan=math.inf, posinf=math.inf)


def _reach(kernel: Kernel, n_columns: int) -> np.ndarray:
    """The same with NaN in columns that the kernel does not see."""
    if isinstance(kernel, Sum | Product):
        pick = np.fmax if isinstance(kernel, Sum) else np.fmin  # both pass over NaN
        return pick.reduce([_reach(part, n_columns) for part in kernel.parts])
    distances = np.full(n_columns, math.nan)
    columns = list(kernel.active_columns(n_columns)) if isinstance(kernel, LeafKernel) else list(range(n_columns))
    follows = hasattr(kernel, "period") or not hasattr(kernel, "lengthscale")
    distances[columns] = math.inf if follows else np.asarray(kernel.lengthscale)  # pyright: ignore[reportAttributeAccessIssue]
    return distances


def beyond(
    X: Float[np.ndarray, "T D"], ranges: Float[np.ndarray, "D 2"], distances: Float[np.ndarray, " D"]
) -> Float[np.ndarray, "T D"]:
    """How many reaches each value lies outside the range of its column; 0 inside, or where all can be followed."""
    outside = np.maximum(np.maximum(ranges[:, 0] - X, X - ranges[:, 1]), 0.0)
    return np.where(outside > 0, outside, 0.0) / distances


def outside_text(far: Bool[np.ndarray, "T D"], names: Sequence[str]) -> str:
    """What to say of rows that lie far outside in some column; "" if they are fewer than one in a hundred."""
    rows, columns = np.any(far, axis=1), np.sum(far, axis=0)
    if rows.mean() < LEAST_SHARE:
        return ""
    worst = [name for count, name in sorted(zip(columns.tolist(), names, strict=True), reverse=True)[:3] if count]
    return (
        f"{int(rows.sum())} of {len(far)} rows ({rows.mean():.0%}) are more than a lengthscale outside the training "
        f"data (in {', '.join(worst)}): predictions there are mostly the prior"
    )
