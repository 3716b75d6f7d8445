# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "gpjax==1.0.0",
#   "jax==0.10.2",
#   "jaxlib==0.10.2",
#   "numpyro==0.22.0",
#   "numpy==2.4.6",
#   "scipy==1.17.1",
#   # What these bring along, as measured.
#   "absl-py==2.5.1",
#   "beartype==0.23.1",
#   "equinox==0.13.8",
#   "jaxtyping==0.3.11",
#   "lineax==0.1.1",
#   "markdown-it-py==4.3.0",
#   "mdurl==0.1.2",
#   "ml-dtypes==0.6.0",
#   "multipledispatch==1.0.0",
#   "opt-einsum==3.4.0",
#   "optax==0.2.8",
#   "paramax==0.0.5",
#   "pygments==2.21.0",
#   "rich==15.0.0",
#   "tqdm==4.70.1",
#   "typing-extensions==4.16.0",
#   "wadler-lindig==0.1.8",
# ]
# ///
"""GPJax: the collapsed ELBO, its gradient under jit as `fit_scipy` takes it, and its optimisers."""

import sys

import numpy as np
from protocol import Trajectory, point_arrays, serve, timed_calls


def _family(job, lengthscale, scale, noise):
    import gpjax as gpx
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    kernel = gpx.kernels.RBF(lengthscale=jnp.asarray(lengthscale), variance=jnp.asarray(scale**2))
    jitter = 1e-6 if job.jitter is None else job.jitter
    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Zero(), kernel=kernel, jitter=jitter)
    model = prior * gpx.likelihoods.Gaussian(obs_stddev=jnp.asarray(noise))
    q = gpx.variational_families.CollapsedVariationalGaussian(model=model, inducing_inputs=jnp.asarray(job.Z))
    return q, gpx.Dataset(X=jnp.asarray(job.X), y=jnp.asarray(job.y)[:, None])


def _loss(q, data):
    import gpjax as gpx

    return -gpx.objectives.collapsed_elbo(q, data)


def gradient(job):
    import equinox as eqx
    import jax
    from jax.flatten_util import ravel_pytree

    q, data = _family(job, *job.point())
    arrays, static = eqx.partition(q, eqx.is_array)
    x, unravel = ravel_pytree(arrays)

    # The wrapper of `fit_scipy`, word for word.
    @jax.jit
    def wrapper(x):
        value, slopes = jax.value_and_grad(lambda p: _loss(eqx.combine(p, static), data))(unravel(x))
        return value, ravel_pytree(slopes)[0]

    x = np.asarray(x)
    times = timed_calls(lambda: jax.block_until_ready(wrapper(x)), job.options)
    return times | {"value": -float(wrapper(x)[0]), "gradient_in": "θ, Z"}, {}


def _by_scipy(job, q, data):
    """Its default optimiser, with the bounds on its path."""
    import gpjax as gpx

    trajectory, ends = Trajectory(job), []
    module = sys.modules["gpjax.fit"]
    minimise = module.minimize

    def watched(fun, **keywords):
        def call(x):
            value, slope = fun(x)
            trajectory.improve(-value)
            return value, slope

        ends.append(minimise(fun=call, **keywords))
        return ends[0]

    module.minimize = watched
    fitted, _ = gpx.fit_scipy(model=q, objective=_loss, train_data=data, max_iters=job.options["steps"], verbose=False)
    row = {"bound": -float(ends[0].fun), "stopped": str(ends[0].message), "steps": int(ends[0].nit)}
    return fitted, row | {"trajectory": trajectory.points}


def _by_lbfgs(job, q, data):
    """Optax's L-BFGS in one compiled loop, so that only its end is known."""
    import gpjax as gpx

    fitted, loss = gpx.fit_lbfgs(model=q, objective=_loss, train_data=data, max_iters=job.options["steps"])
    trajectory = Trajectory(job)
    trajectory.add(-float(loss))
    return fitted, {"bound": -float(loss), "stopped": "not told", "trajectory": trajectory.points}


_OPTIMISERS = {"scipy": _by_scipy, "lbfgs": _by_lbfgs}


def ml2(job):
    from gpjax.parameters import val

    q, data = _family(job, *job.start())
    fitted, row = _OPTIMISERS[job.options.get("optimiser", "scipy")](job, q, data)
    row["seconds"] = job.seconds()
    kernel, likelihood = fitted.model.prior.kernel, fitted.model.likelihood
    theta = (val(kernel.lengthscale), np.sqrt(val(kernel.variance)), val(likelihood.obs_stddev))
    predicted = likelihood.predict(fitted.condition(data)(np.asarray(job.X_test), covariance="diagonal"))
    arrays = point_arrays(*theta, Z=val(fitted.inducing_inputs))
    mean, variance = np.asarray(predicted.mean), np.asarray(predicted.variance)
    return row, arrays | {"means": mean.reshape(1, -1), "variances": variance.reshape(1, -1)}


if __name__ == "__main__":
    serve({"gradient": gradient, "ml2": ml2}, ["gpjax", "jax", "jaxlib", "numpy", "scipy"])
