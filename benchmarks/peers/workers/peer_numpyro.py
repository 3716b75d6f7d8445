# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "numpyro==0.22.0",
#   "jax==0.10.2",
#   "jaxlib==0.10.2",
#   "numpy==2.4.6",
#   "scipy==1.17.1",
#   # What these bring along, as measured.
#   "ml-dtypes==0.6.0",
#   "multipledispatch==1.0.0",
#   "opt-einsum==3.4.0",
#   "tqdm==4.70.1",
# ]
# ///
"""NumPyro with the bound written naively: triangular solves, autodiff, its NUTS."""

import math
import time

import numpy as np
from protocol import serve, stacked, timed_calls


def _prepared(job):
    import jax
    import numpyro

    numpyro.enable_x64()
    numpyro.set_host_device_count(job.options.get("chains", 1))  # parallel chains, one device each
    return jax


def _bound(lengthscale, scale, noise, Z, X, y, jitter):
    """The collapsed bound, naively."""
    import jax.numpy as jnp
    from jax.scipy.linalg import solve_triangular

    def k(a, b):
        a, b = a / lengthscale, b / lengthscale
        squares = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1)[None, :] - 2.0 * a @ b.T
        return scale**2 * jnp.exp(-0.5 * squares)

    s = noise**2
    L = jnp.linalg.cholesky(k(Z, Z) + jitter * jnp.eye(len(Z)))
    A = solve_triangular(L, k(Z, X), lower=True)
    LB = jnp.linalg.cholesky(jnp.eye(len(Z)) + A @ A.T / s)
    c = solve_triangular(LB, A @ y, lower=True) / s
    trace = len(X) * scale**2 - jnp.sum(A**2)
    log_normaliser = -0.5 * len(X) * jnp.log(2.0 * math.pi * s) - jnp.sum(jnp.log(jnp.diagonal(LB)))
    return log_normaliser - 0.5 * (y @ y) / s + 0.5 * c @ c - 0.5 * trace / s


def gradient(job):
    jax = _prepared(job)
    import jax.numpy as jnp

    lengthscale, scale, noise = map(jnp.asarray, job.point())
    X, y, Z = jnp.asarray(job.X), jnp.asarray(job.y), jnp.asarray(job.Z)
    call = jax.jit(jax.value_and_grad(lambda *theta_Z: _bound(*theta_Z, X, y, job.jitter), (0, 1, 2, 3)))
    times = timed_calls(lambda: jax.block_until_ready(call(lengthscale, scale, noise, Z)), job.options)
    return times | {"value": float(call(lengthscale, scale, noise, Z)[0]), "gradient_in": "θ, Z"}, {}


def sample(job):
    """Its NUTS in blocks of steps with parallel chains, so that the budget can end it; `MCMC` cannot be ended."""
    jax = _prepared(job)
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS

    X, y, Z = jnp.asarray(job.X), jnp.asarray(job.y), jnp.asarray(job.Z)
    shape, rate = job.priors["lengthscale"]

    def model():
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(shape, rate).expand([X.shape[1]]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfCauchy(job.priors["scale"][0]))
        noise = numpyro.sample("noise", dist.HalfCauchy(job.priors["noise"][0]))
        numpyro.factor("bound", _bound(lengthscale, scale, noise, Z, X, y, job.jitter or 1e-6))

    tune, draws = job.options["tune"], job.options["draws"]
    length = math.gcd(50, tune, draws)
    kernel, start = NUTS(model), time.time()

    def step(state, _):
        state = kernel.sample(state, (), {})  # adapts during the first `tune` of them
        return state, (state.z, state.diverging)

    # As `MCMC` maps its chains, but compiled once for all blocks.
    begin = jax.pmap(lambda key: kernel.init(key, tune, None, (), {}))
    block = jax.pmap(lambda state: jax.lax.scan(step, state, None, length=length))
    state = begin(jax.random.split(jax.random.PRNGKey(job.seed), job.options.get("chains", 4)))
    done, parts = -tune, []
    while done < draws and not (job.over() and parts):
        state, stretch = block(state)
        stretch = jax.tree.map(np.asarray, stretch)  # waits for it
        done += length
        if done > 0:
            parts.append(stretch)
        elif job.over():
            raise TimeoutError(f"tuning did not end within the budget of {job.options['cap']} s")
    row = {"seconds": job.seconds(), "sampling_seconds": time.time() - start, "tune": tune, "capped": done < draws}
    z, diverging = jax.tree.map(lambda *values: np.concatenate(values, axis=1), *parts)
    row["divergences"] = int(diverging.sum())
    named = jax.vmap(jax.vmap(kernel.postprocess_fn((), {})))(z)
    drawn = stacked(*(np.asarray(named[name]) for name in ("lengthscale", "scale", "noise")))
    return row, {"draws": drawn}


if __name__ == "__main__":
    serve({"gradient": gradient, "sample": sample}, ["numpyro", "jax", "jaxlib", "numpy", "scipy"])
