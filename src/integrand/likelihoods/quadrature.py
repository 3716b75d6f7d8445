"""Integrals against a Gaussian f that stay accurate however wide it is, and the numbers behind them."""

import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from integrand.linalg import AnyArray

Value = Float[AnyArray, "..."] | float


Numbers = np.ndarray | float


LOG_TWO_PI = math.log(2.0 * math.pi)


# Of the NumPy rules, unless fewer will do.
DIGITS = 12.0


# Fewest nodes that JAX's rules need for a relative error of 1e-7 at any width (see the tests).
NODES = 48


# log Φ bends around the first, where the zeros of Φ next to the real line are, as far from it as the second; right of
# the third it is 0.
_TURN, _TURN_WIDTH, _FLAT = -1.9, 2.8, 9.0


# Standard deviations either side that count, and how far from the bend nodes are as good as equally spaced.
_REACH, _FAR = 8.0, 2.0


# A rate of exp(60) is no count any more; beyond, exp goes on along its tangent so that gradients stay numbers.
LARGEST_LOG_RATE = 60.0


def two_steps(y: Numbers, below_one: Numbers) -> np.ndarray:
    """A distribution function with steps at 0 and 1."""
    return np.where(np.asarray(y) < 0, 0.0, np.where(np.asarray(y) < 1, below_one, 1.0))


def log_normal(difference: Numbers, variance: Numbers) -> Numbers:
    """Log N(difference; 0, variance)."""
    return -0.5 * (np.square(difference) / variance + np.log(variance) + LOG_TWO_PI)


def log_sum(terms: Iterable[Numbers]) -> Numbers:
    """Log Σ exp(term), holding one term at a time."""
    largest, total = -1e300, 0.0
    for term in terms:
        new = np.maximum(largest, term)
        total = total * np.exp(largest - new) + np.exp(term - new)
        largest = new
    with np.errstate(divide="ignore"):
        return largest + np.log(total)


def over_f(shape: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> Numbers:
    """P(f < log G), G ~ Gamma(shape), by a Gauss–Hermite rule for f ~ N(mean, sd²)."""
    nodes, weights = HERMITE if sd.any() else ((0.0,), (1.0,))
    with np.errstate(over="ignore"):
        return sum(w * special.gammaincc(shape, np.exp(mean + sd * x)) for x, w in zip(nodes, weights, strict=True))


def over_log_gamma(shape: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> Numbers:
    """P(f < log G), by the trapezoidal rule for d = log G - log shape, of density ∝ exp(-shape (e^d - 1 - d))."""
    left, right = decay_range(shape)
    count = node_count(left + right, bandwidth(shape) + 7.5 / sd)
    step, z = (left + right) / (count - 1), (np.log(shape) - mean) / sd
    total, mass = np.zeros(shape.shape), np.zeros(shape.shape)
    for i in range(count):
        d = i * step - left
        weight = np.exp(-shape * exp_remainder(d))
        total, mass = total + weight * special.ndtr(z + d / sd), mass + weight
    return total / mass


def tame_exp(x: Value) -> Float[Array, "..."]:
    """exp(x), and its tangent beyond `LARGEST_LOG_RATE`."""
    x = jnp.asarray(x)
    below = jnp.minimum(x, LARGEST_LOG_RATE)
    return jnp.exp(below) * (1.0 + x - below)


def probit_rule(mean: Float[Array, "..."], sd: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Nodes z and weights, along a new last axis, with E log Φ(x) = Σ weight log Φ(mean + sd z) for x ~ N(mean, sd²).

    z = c + D asinh((e/D) sinh t) at equally spaced t: around the bend of log Φ, z = c, as fine as that is narrow (e is
    its width over sd), and equally spaced from D on. No derivative passes through the nodes: the sum is differentiated.
    """
    mean, sd = jax.lax.stop_gradient((mean[..., None], sd[..., None]))
    c, right = (jnp.clip((x - mean) / sd, -_REACH, _REACH) for x in (_TURN, _FLAT))
    right, ratio = jnp.maximum(right, 1.0 - _REACH), jnp.minimum(_TURN_WIDTH / (_FAR * sd), 1.0)
    low, high = (jnp.arcsinh(jnp.sinh((z - c) / _FAR) / ratio) for z in (-_REACH, right))
    step = (high - low) / (NODES - 1)
    t = low + step * np.arange(float(NODES))
    scaled = ratio * jnp.sinh(t)
    z = c + _FAR * jnp.arcsinh(scaled)
    slope = _FAR * ratio * jnp.cosh(t) / jnp.sqrt(1.0 + jnp.square(scaled))
    return z, step * slope * jnp.exp(-0.5 * jnp.square(z)) / math.sqrt(2.0 * math.pi)


# Rules of integration. The trapezoidal rule with step 2π/b is as exact as the integrand has no frequencies beyond b.


def exp_remainder(d: Numbers) -> np.ndarray:
    """e^d - 1 - d, without cancellation."""
    series = np.square(d) * (0.5 + d * (1 / 6 + d * (1 / 24 + d * (1 / 120 + d / 720))))
    return np.where(np.abs(d) < 1e-2, series, np.expm1(d) - d)


def decay_range(a: Numbers, digits: float = DIGITS) -> tuple[Numbers, Numbers]:
    """How far left and right of 0 the function exp(-a (e^d - 1 - d)) counts, at least."""
    nats = 3.0 * digits
    # For d > 0 we have e^-d - 1 + d > d²/(2 + d), and e^d - 1 - d > d²/2.
    left = (nats + np.sqrt(nats**2 + 8.0 * nats * a)) / (2.0 * a)
    far = np.log1p(nats / a)
    return left, np.minimum(np.sqrt(2.0 * nats / a), np.log1p(nats / a + 1.5 * far + 1.0))


def bandwidth(a: Numbers, digits: float = DIGITS) -> Numbers:
    """Frequency b beyond which exp(-a (e^d - 1 - d)) has nothing, to this many digits: where |Γ(a + ib)| ≪ Γ(a)."""
    return np.hypot(5.0 / 3.0 * digits, 2.165 * np.sqrt(digits * a))


def node_count(length: Numbers, bandwidth: Numbers) -> int:
    """Nodes for the longest of all."""
    return 2 + int(np.max(length * bandwidth, initial=0.0) / (2.0 * math.pi))


def logistic_rule() -> tuple[np.ndarray, np.ndarray]:
    """Scales ψ and weights with logistic(f) = Σ weight Φ(f/ψ), from Kolmogorov's density and its theta twin."""
    step = 0.12
    scales = np.exp(np.arange(-1.0, 2.3, step))
    k, n = scales / 2, np.arange(1, 20)[:, None]
    exponents = ((2 * n - 1) * math.pi / k) ** 2 / 8
    small = math.sqrt(2 * math.pi) / k**2 * np.sum((2 * exponents - 1) * np.exp(-exponents), axis=0)
    large = 8 * k * np.sum((-1.0) ** (n + 1) * n**2 * np.exp(-2 * (n * k) ** 2), axis=0)
    weights = k * np.where(k > 1, large, small)
    return scales, weights / weights.sum()


def hermite_rule(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Hermite nodes and weights of a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


HERMITE = hermite_rule(16)


LOGISTIC_SCALES, LOGISTIC_WEIGHTS = logistic_rule()
