# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "gpflow==2.11.2",
#   "tensorflow==2.21.0",
#   "tensorflow-probability==0.25.0",
#   "tf_keras==2.21.0",
#   "numpy==1.26.4",
#   "scipy==1.17.1",
#   # What these bring along, as measured.
#   "absl-py==2.5.1",
#   "astunparse==1.6.3",
#   "attrs==26.1.0",
#   "certifi==2026.10.18",
#   "charset-normalizer==3.5.2",
#   "check-shapes==1.1.1",
#   "cloudpickle==3.1.2",
#   "decorator==5.3.1",
#   "deprecated==1.3.1",
#   "dm-tree==0.1.10",
#   "dropstackframe==0.1.1",
#   "flatbuffers==25.12.19",
#   "gast==0.7.0",
#   "google-pasta==0.2.0",
#   "grpcio==1.85.1",
#   "h5py==3.14.0",
#   "idna==3.20",
#   "keras==3.15.1",
#   "lark==1.3.1",
#   "libclang==18.1.1",
#   "markdown-it-py==4.3.0",
#   "mdurl==0.1.2",
#   "ml-dtypes==0.5.4",
#   "multipledispatch==1.0.0",
#   "namex==0.1.0",
#   "opt-einsum==3.4.0",
#   "optree==0.20.0",
#   "packaging==26.3",
#   "protobuf==7.36.2",
#   "pygments==2.21.0",
#   "requests==2.34.2",
#   "rich==15.0.0",
#   "six==1.17.0",
#   "tabulate==0.10.0",
#   "termcolor==3.3.0",
#   "typing-extensions==4.16.0",
#   "urllib3==2.8.0",
#   "wheel==0.48.0",
#   "wrapt==2.5.2",
# ]
# ///
"""GPflow: SGPR with SciPy's L-BFGS, its HMC helper with TensorFlow Probability's HMC, and SGPMC (u drawn too)."""

import time

import numpy as np
from protocol import Trajectory, in_processes, mixture, picked, point_arrays, serve, stacked, thinned, timed_calls


def _model(job, lengthscale, scale, noise, joint=False):
    """SGPR, or SGPMC with `joint`; the noise is a standard deviation, as the prior of the benchmark wants."""
    import gpflow

    gpflow.config.set_default_jitter(1e-6 if job.jitter is None else job.jitter)
    kernel = gpflow.kernels.SquaredExponential(variance=scale**2, lengthscales=np.array(lengthscale))
    likelihood = gpflow.likelihoods.Gaussian(scale=noise)
    data = (job.X, job.y[:, None])
    if joint:
        return gpflow.models.SGPMC(data, kernel, likelihood, inducing_variable=job.Z.copy())
    return gpflow.models.SGPR(data, kernel, job.Z.copy(), likelihood=likelihood)


def _theta(model):
    kernel = model.kernel
    return kernel.lengthscales.numpy(), np.sqrt(kernel.variance.numpy()), model.likelihood.scale.numpy()


def gradient(job):
    import gpflow
    import tensorflow as tf

    model = _model(job, *job.point())
    variables = model.trainable_variables
    # What `Scipy.minimize` calls at each step: a compiled graph, NumPy in and out.
    by_xla = {"jit_compile": True} if job.options.get("xla") else {}
    call = gpflow.optimizers.Scipy().eval_func(
        model.training_loss_closure(), variables, tf_fun_args=by_xla, compile=True
    )
    x = tf.concat([tf.reshape(v, (-1,)) for v in variables], 0).numpy()
    times = timed_calls(lambda: call(x), job.options)
    return times | {"value": -float(call(x)[0]), "gradient_in": "θ, Z"}, {}


def ml2(job):
    import gpflow
    import tensorflow as tf

    model = _model(job, *job.start())
    variables, trajectory = model.trainable_variables, Trajectory(job)
    best = {"x": None}

    class Watched(gpflow.optimizers.Scipy):
        def eval_func(self, *arguments, **keywords):
            call = super().eval_func(*arguments, **keywords)

            def watched(x):
                loss, slope = call(x)
                if trajectory.improve(-loss):
                    best["x"] = np.array(x)
                return loss, slope

            return watched

    optimiser, options = Watched(), {"maxiter": job.options["steps"], "maxfun": 20_000}
    row = {"notes": []}
    try:
        optimum = optimiser.minimize(model.training_loss_closure(), variables, options=options)
        row |= {"bound": -float(optimum.fun), "stopped": str(optimum.message), "steps": int(optimum.nit)}
    except tf.errors.InvalidArgumentError as error:  # a user would continue with the best point so far
        if best["x"] is None:
            raise
        optimiser.assign_tensors(variables, optimiser.unpack_tensors(variables, tf.constant(best["x"])))
        row |= {"bound": trajectory.best, "stopped": "a factorisation that failed"}
        row["notes"].append(f"its best point so far, for a factorisation failed: {str(error)[:100]}")
    row |= {"seconds": job.seconds(), "trajectory": trajectory.points}
    mean, variance = model.predict_y(job.X_test)
    arrays = point_arrays(*_theta(model), Z=model.inducing_variable.Z.numpy())
    return row, arrays | {"means": mean.numpy().T, "variances": variance.numpy().T}


def _with_priors(job, model):
    """The benchmark's priors. GPflow has the variance of a kernel, so the prior of the scale gets its Jacobian."""
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    def number(x):
        return tf.constant(x, tf.float64)

    shape, rate = job.priors["lengthscale"]
    scale, noise = (
        tfp.distributions.HalfCauchy(number(0.0), number(job.priors[name][0])) for name in ("scale", "noise")
    )
    model.kernel.lengthscales.prior = tfp.distributions.Gamma(number(shape), number(rate))
    model.kernel.variance.prior = tfp.distributions.TransformedDistribution(scale, tfp.bijectors.Square())
    model.likelihood.scale.prior = noise
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def _chains(job, seeds):
    """The chains of one process, one after the other: find the mode, then HMC from it as in GPflow's example."""
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    options = job.options
    tune, draws, chunk = options["tune"], options["draws"], min(options.get("chunk", 50), options["draws"])
    joint = options["method"] == "sgpmc"
    model = _with_priors(job, _model(job, *job.start(), joint=joint))
    gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables, options={"maxiter": 200})
    mode = [v.numpy() for v in model.trainable_variables]
    helper = gpflow.optimizers.SamplingHelper(model.log_posterior_density, model.trainable_parameters)
    hmc = tfp.mcmc.HamiltonianMonteCarlo(helper.target_log_prob_fn, num_leapfrog_steps=10, step_size=0.01)
    kernel = tfp.mcmc.SimpleStepSizeAdaptation(
        hmc, num_adaptation_steps=int(0.8 * tune), target_accept_prob=tf.constant(0.75, tf.float64), adaptation_rate=0.1
    )

    @tf.function
    def go_on(state, results, length, seed):
        # One seed per stretch: a traced function does not see `tf.random.set_seed`.
        return tfp.mcmc.sample_chain(
            length,
            state,
            previous_kernel_results=results,
            kernel=kernel,
            trace_fn=None,
            return_final_kernel_results=True,
            seed=seed,
        )

    @tf.function
    def first(state):
        return kernel.bootstrap_results(state)

    drawn, start = [], time.time()
    for k, seed in enumerate(seeds):
        share = job.deadline(start, k, len(seeds))
        for variable, value in zip(model.trainable_variables, mode, strict=True):
            variable.assign(value)
        state = [tf.identity(v) for v in helper.current_state]
        results, parts, done = first(state), [], -tune
        while done < draws and not (time.time() > share and done >= chunk):
            stretch = go_on(state, results, tf.constant(chunk), tf.constant([seed, done + tune], tf.int32))
            state, results = [s[-1] for s in stretch.all_states], stretch.final_kernel_results
            done += chunk
            if done > 0:
                parts.append(stretch.all_states)
            if time.time() > share and done <= 0:
                return [], 0.0
        unconstrained = [np.concatenate([p[i].numpy() for p in parts]) for i in range(len(state))]
        drawn.append([np.asarray(v) for v in helper.convert_to_constrained_values(unconstrained)])
    return drawn, time.time() - start


def _part(path_and_spawned, seeds):
    from protocol import Job

    return _chains(Job(*path_and_spawned), seeds)


def sample(job):
    chains, row = in_processes(_part, job)
    length = min(len(chain[0]) for chain in chains)
    cut = [np.stack([chain[i][:length] for chain in chains]) for i in range(len(chains[0]))]
    named = _named(job, cut)
    draws = stacked(named["lengthscales"], np.sqrt(named["variance"]), named["noise"])
    row["capped"] = length < job.options["draws"]
    return row, {"draws": draws} | (_mixture(job, draws, named.get("V")) if job.predictive() else {})


def _named(job, values):
    """Draws by parameter, in the order of `trainable_parameters`."""
    joint = job.options["method"] == "sgpmc"
    model = _with_priors(job, _model(job, *job.start(), joint=joint))
    kernel = model.kernel
    names = {
        id(kernel.lengthscales): "lengthscales",
        id(kernel.variance): "variance",
        id(model.likelihood.scale): "noise",
    }
    if joint:
        names[id(model.V)] = "V"
    return {names[id(p)]: v for p, v in zip(model.trainable_parameters, values, strict=True)}


def _mixture(job, draws, V):
    """Means and variances at the test rows for each of some draws."""
    model = _model(job, *job.start(), joint=V is not None)
    places = picked(draws.shape[0] * draws.shape[1], job.predictive())
    predictions = []
    for place, theta in zip(places, thinned(draws, job.predictive()), strict=True):
        model.kernel.lengthscales.assign(theta[:-2])
        model.kernel.variance.assign(theta[-2] ** 2)
        model.likelihood.scale.assign(max(theta[-1], 1.001e-3))
        if V is not None:
            model.V.assign(V.reshape(-1, *V.shape[2:])[place])
        predictions.append([a.numpy()[:, 0] for a in model.predict_y(job.X_test)])
    return mixture(predictions)


if __name__ == "__main__":
    serve(
        {"gradient": gradient, "ml2": ml2, "sample": sample},
        ["gpflow", "tensorflow", "tensorflow-probability", "numpy", "scipy"],
    )
