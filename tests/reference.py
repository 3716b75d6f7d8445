"""Second ways to the same numbers, in 80-bit arithmetic and without JAX; and the kernels that the tests go through."""

import jax
import jax.numpy as jnp
import numpy as np

from integrand import RBF, Constant, Linear, Matern12, Matern32, Matern52, Periodic, Polynomial, RationalQuadratic

LONG = np.longdouble

# Every kernel, sum and product that the contracts are checked for; all for three columns, all fields numbers.
KERNELS = {
    "rbf": RBF(lengthscale=(0.8, 1.3, 2.0), scale=1.3),
    "rbf one lengthscale": RBF(lengthscale=0.9, scale=0.7, ard=False),
    "rbf active": RBF(lengthscale=(0.8, 1.5), scale=1.1, active=(2, 0)),
    "matern12": Matern12(lengthscale=(0.8, 1.3, 2.0), scale=1.3),
    "matern32": Matern32(lengthscale=(0.8, 1.3, 2.0), scale=1.3),
    "matern52": Matern52(lengthscale=(0.8, 1.3, 2.0), scale=1.3),
    "rational quadratic": RationalQuadratic(lengthscale=(0.8, 1.3, 2.0), scale=1.3, alpha=0.7),
    "periodic": Periodic(lengthscale=(0.8, 1.3, 2.0), scale=1.3, period=2.5),
    "linear": Linear(scale=0.7),
    "linear ard": Linear(scale=(0.7, 1.4, 0.3), ard=True),
    "polynomial": Polynomial(offset=0.8, scale=0.6),
    "cubic": Polynomial(3, offset=1.2, scale=0.4, active=(0, 1)),
    "constant": Constant(scale=1.6),
    "sum": RBF(lengthscale=(0.8, 1.3, 2.0), scale=1.3) + Linear(scale=0.7) + Constant(scale=0.5),
    "product": Periodic(lengthscale=1.1, scale=0.9, period=1.7, active=(1,)) * RBF(lengthscale=2.0, scale=1.0),
    "sum of products": (Matern32(lengthscale=0.8, scale=1.2, active=(0,)) * Linear(scale=1.0)).named("growth")
    + RationalQuadratic(lengthscale=1.4, scale=0.8, alpha=1.5, ard=False),
    "product of sums": (RBF(lengthscale=1.1, scale=0.8) + Constant(scale=0.4))
    * (Linear(scale=1.0) + Matern52(1.3, 1.0)),
}


def with_arrays(kernel, n_columns=3):
    """The kernel with JAX arrays in its fields, one entry per column where a field has one per column."""
    return kernel.map_fields(lambda slot, value: jnp.broadcast_to(jnp.asarray(value, float), slot.shape), n_columns)


def long(value):
    return np.asarray(np.asarray(value, np.float64), LONG)


def _distance2(kernel, X1, X2):
    d = (X1[:, None, :] - X2[None, :, :]) / long(kernel.lengthscale)
    return np.sum(d**2, axis=2)


def _matern(polynomial, root):
    def covariance(kernel, X1, X2):
        r = np.sqrt(LONG(root) * _distance2(kernel, X1, X2))
        return polynomial(r) * np.exp(-r)

    return covariance


def _rational_quadratic(kernel, X1, X2):
    alpha = long(kernel.alpha)
    return (1 + _distance2(kernel, X1, X2) / (2 * alpha)) ** (-alpha)


def _periodic(kernel, X1, X2):
    pi = LONG("3.14159265358979323846264338327950288")
    sines = np.sin(pi * (X1[:, None, :] - X2[None, :, :]) / long(kernel.period))
    return np.exp(-2 * np.sum((sines / long(kernel.lengthscale)) ** 2, axis=2))


# k / scale² by name of the class; Linear, whose scale may be a vector, is apart.
_SHAPES = {
    "RBF": lambda k, X1, X2: np.exp(-_distance2(k, X1, X2) / 2),
    "Matern12": _matern(lambda r: 1, 1),
    "Matern32": _matern(lambda r: 1 + r, 3),
    "Matern52": _matern(lambda r: 1 + r + r**2 / 3, 5),
    "RationalQuadratic": _rational_quadratic,
    "Periodic": _periodic,
    "Polynomial": lambda k, X1, X2: (X1 @ X2.T + long(k.offset)) ** k.degree,
    "Constant": lambda k, X1, X2: np.ones((len(X1), len(X2)), LONG),
}


def covariance(kernel, X1, X2):
    """k(X1, X2) from the formula in each kernel's docstring, in 80 bits."""
    X1, X2 = long(X1), long(X2)
    kind = type(kernel).__name__
    if kind == "Sum":
        return sum(covariance(part, X1, X2) for part in kernel.parts)
    if kind == "Product":
        return np.prod([covariance(part, X1, X2) for part in kernel.parts], axis=0)
    if kernel.active is not None:
        X1, X2 = X1[:, list(kernel.active)], X2[:, list(kernel.active)]
    if kind == "Linear":
        return (X1 * long(kernel.scale) ** 2) @ X2.T
    return long(kernel.scale) ** 2 * _SHAPES[kind](kernel, X1, X2)


def cholesky(K):
    L = np.zeros_like(K)
    for j in range(len(K)):
        column = K[j:, j] - L[j:, :j] @ L[j, :j]
        L[j:, j] = column / np.sqrt(column[0])
    return L


def solve_lower(L, B):
    """L⁻¹ B."""
    X = np.zeros_like(B)
    for i in range(len(L)):
        X[i] = (B[i] - L[i, :i] @ X[:i]) / L[i, i]
    return X


def solve_upper(L, B):
    """L⁻ᵀ B."""
    return solve_lower(L[::-1, ::-1].T, B[::-1])[::-1]


def jittered(kernel, Z, jitter):
    K = covariance(kernel, Z, Z)
    variances = np.diag(K)
    return K + np.diag(LONG(jitter.relative) * np.maximum(variances, variances.mean() / 10**6) + LONG(jitter.absolute))


def _log_normal(r, C):
    """log N(r; 0, C)."""
    L = cholesky(C)
    half_log_2pi = np.log(8 * np.arctan(LONG(1))) / 2
    return -np.sum(solve_lower(L, r) ** 2) / 2 - np.sum(np.log(np.diag(L))) - len(r) * half_log_2pi


def _projected(gp, Z, X, jitter):
    """Q = k(X, Z) Kmm⁻¹ k(Z, X)."""
    V = solve_lower(cholesky(jittered(gp.kernel, Z, jitter)), covariance(gp.kernel, Z, X))
    return V.T @ V


def naive_exact(gp, X, y):
    """log N(y; mean, K + σ²I)."""
    eye = np.eye(len(X), dtype=LONG)
    return _log_normal(long(y) - long(gp.mean), covariance(gp.kernel, X, X) + long(gp.noise) ** 2 * eye)


def naive_bound(gp, Z, X, y, jitter, bound="titsias"):
    """log N(y; mean, Q + σ²I) - tr(K - Q) / 2σ², with N x N matrices; tight: - ½ log |I + diag(K - Q) / σ²|."""
    Q, s = _projected(gp, Z, X, jitter), long(gp.noise) ** 2
    left = np.diag(covariance(gp.kernel, X, X)) - np.diag(Q)
    penalty = np.sum(left) / s if bound == "titsias" else np.sum(np.log((s + left) / s))
    return _log_normal(long(y) - long(gp.mean), Q + s * np.eye(len(X), dtype=LONG)) - penalty / 2


def naive_upper(gp, Z, X, y, jitter):
    """Titsias (2014): the determinant of Q + σ²I, the quadratic form of Q + (σ² + tr(K - Q)) I."""
    Q, s = _projected(gp, Z, X, jitter), long(gp.noise) ** 2
    r, eye = long(y) - long(gp.mean), np.eye(len(X), dtype=LONG)
    loose = s + np.trace(covariance(gp.kernel, X, X)) - np.trace(Q)
    tight, wide = cholesky(Q + s * eye), cholesky(Q + loose * eye)
    half_log_2pi = np.log(8 * np.arctan(LONG(1))) / 2
    return -np.sum(np.log(np.diag(tight))) - np.sum(solve_lower(wide, r) ** 2) / 2 - len(r) * half_log_2pi


def central_differences(function, point, step=2.0**-20):
    """Gradient of a function of a pytree of float64 arrays that answers in 80 bits."""
    leaves, tree = jax.tree.flatten(point)
    leaves = [np.array(leaf, np.float64) for leaf in leaves]
    gradient = [np.zeros_like(leaf) for leaf in leaves]
    for leaf, partial in zip(leaves, gradient, strict=True):
        for index in np.ndindex(leaf.shape):
            here = leaf[index]
            leaf[index] = above = here + step
            value_above = function(jax.tree.unflatten(tree, leaves))
            leaf[index] = below = here - step
            value_below = function(jax.tree.unflatten(tree, leaves))
            leaf[index] = here
            partial[index] = (value_above - value_below) / (LONG(above) - LONG(below))
    return jax.tree.unflatten(tree, gradient)


def largest_error(gradient, reference):
    """Largest deviation between two pytrees of arrays, relative to the largest entry of the second."""
    pairs = list(zip(jax.tree.leaves(gradient), jax.tree.leaves(reference), strict=True))
    size = max(np.max(np.abs(np.asarray(b))) for _, b in pairs)
    return float(max(np.max(np.abs(long(a) - np.asarray(b, LONG))) for a, b in pairs) / size)


def rbf_bound_and_gradient(gp, Z, X, y, jitter, bound="titsias"):
    """Bound of the squared-exponential kernel and its gradient in θ (by name) and Z, in 80 bits.

    Differentiates log N(r; 0, S) - tr(K - Q) / 2s with S = Q + sI and α = S⁻¹r in place of the library's b and G:
    ∂/∂Q = ½(ααᵀ - S⁻¹) + ½ diag(ω), and A S⁻¹ = B⁻¹A / s. ω = 1/s, and 1/(s + k̃) for the tight bound.
    """
    Z, X, r = long(Z), long(X), long(y) - long(gp.mean)
    ell, scale, s = long(gp.kernel.lengthscale), long(gp.kernel.scale), long(gp.noise) ** 2
    N, eye = len(X), np.eye(len(Z), dtype=LONG)
    K, Kzz = covariance(gp.kernel, Z, X), covariance(gp.kernel, Z, Z)
    L = cholesky(jittered(gp.kernel, Z, jitter))
    A = solve_lower(L, K)
    W = A @ A.T
    LB = cholesky(eye + W / s)
    c = solve_lower(LB, A @ r) / s
    left = scale**2 - np.sum(A**2, axis=0)
    penalty, d_penalty, omega = np.sum(left) / s, -np.sum(left) / s**2, np.full(N, 1 / s)
    if bound == "tight":
        penalty, omega = np.sum(np.log(1 + left / s)), 1 / (s + left)
        d_penalty = np.sum(omega) - N / s
    log_2pis = np.log(8 * np.arctan(LONG(1)) * s)
    value = -N * log_2pis / 2 - np.sum(np.log(np.diag(LB))) - (r @ r / s - c @ c + penalty) / 2

    Bi = solve_upper(LB, solve_lower(LB, eye))
    alpha = (r - A.T @ solve_upper(LB, c)) / s
    Aa = A @ alpha
    weighed = A * omega - Bi @ A / s
    dK = solve_upper(L, Aa[:, None] * alpha[None, :] + weighed)
    inner = solve_upper(L, Aa[:, None] * Aa[None, :] + weighed @ A.T)
    dKmm = -solve_upper(L, inner.T).T / 2
    dKmm = (dKmm + dKmm.T) / 2
    ds = (alpha @ alpha - (N - np.sum(Bi * W) / s) / s - d_penalty) / 2

    T, Tzz = dK * K, dKmm * Kzz
    dZ, d_ell = np.zeros_like(Z), np.zeros_like(ell)
    for d in range(Z.shape[1]):
        to_rows, to_Z = X[None, :, d] - Z[:, d, None], Z[None, :, d] - Z[:, d, None]
        dZ[:, d] = (np.sum(T * to_rows, axis=1) + 2 * np.sum(Tzz * to_Z, axis=1)) / ell[d] ** 2
        d_ell[d] = (np.sum(T * to_rows**2) + np.sum(Tzz * to_Z**2)) / ell[d] ** 3
    in_variance = np.sum(T) + np.sum(Tzz) + scale**2 * (LONG(jitter.relative) * np.trace(dKmm) - np.sum(omega) / 2)
    theta = {
        "lengthscale": d_ell,
        "scale": 2 * in_variance / scale,
        "noise": 2 * long(gp.noise) * ds,
        "mean": np.sum(alpha),
    }
    return value, theta, dZ
