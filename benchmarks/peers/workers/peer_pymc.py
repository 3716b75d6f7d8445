# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "pymc==5.28.5",
#   "pytensor==2.38.3",
#   "nutpie==0.16.8",
#   "numba==0.65.1",
#   "arviz==0.23.4",
#   "numpy==2.4.6",
#   "scipy==1.17.1",
#   # What these bring along, as measured.
#   "arro3-core==0.9.1",
#   "cachetools==6.2.6",
#   "cloudpickle==3.1.2",
#   "cons==0.4.7",
#   "contourpy==1.3.3",
#   "cycler==0.12.1",
#   "donfig==0.8.1.post1",
#   "etuples==0.3.10",
#   "filelock==4.2.10",
#   "fonttools==4.68.0",
#   "google-crc32c==1.9.0",
#   "h5netcdf==1.8.2",
#   "h5py==3.16.0",
#   "kiwisolver==1.5.1",
#   "llvmlite==0.47.0",
#   "logical-unification==0.4.7",
#   "markdown-it-py==4.3.0",
#   "matplotlib==3.11.2",
#   "mdurl==0.1.2",
#   "minikanren==1.0.5",
#   "multipledispatch==1.0.0",
#   "numcodecs==0.16.6",
#   "obstore==0.12.1",
#   "packaging==26.3",
#   "pandas==3.1.1",
#   "pillow==13.0.0",
#   "platformdirs==4.14.5",
#   "pyarrow==26.0.1",
#   "pygments==2.21.0",
#   "pyparsing==3.3.3",
#   "python-dateutil==4.0.0",
#   "pyyaml==6.0.3",
#   "rich==15.0.0",
#   "threadpoolctl==3.8.0",
#   "toolz==1.2.0",
#   "typing-extensions==4.16.0",
#   "tzdata==2026.6",
#   "xarray-einstats==0.9.1",
#   "xarray==2026.9.0",
#   "zarr==3.1.6",
# ]
# ///
"""PyMC: `gp.MarginalApprox(approx="VFE")`, with Z fixed as it is meant to be, by its own NUTS or by nutpie."""

import time

import numpy as np
from protocol import mixture, serve, stacked, thinned, timed_calls


def _model(job, with_Z=False):
    import pymc as pm

    D = job.X.shape[1]
    shape, rate = job.priors["lengthscale"]
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", alpha=shape, beta=rate, shape=D)
        scale = pm.HalfCauchy("scale", beta=job.priors["scale"][0])
        noise = pm.HalfCauchy("noise", beta=job.priors["noise"][0])
        Z = pm.Flat("Z", shape=job.Z.shape, initval=job.Z) if with_Z else job.Z
        gp = pm.gp.MarginalApprox(approx="VFE", cov_func=scale**2 * pm.gp.cov.ExpQuad(D, ls=lengthscale))
        gp.marginal_likelihood("y", X=job.X, Xu=Z, y=job.y, sigma=noise, jitter=job.jitter or 1e-6)
    return model, gp


def _point(job, with_Z):
    """The benchmark's point in the coordinates that PyMC samples: logs of positive numbers."""
    lengthscale, scale, noise = job.point()
    point = {"lengthscale_log__": np.log(lengthscale), "scale_log__": np.log(scale), "noise_log__": np.log(noise)}
    return point | ({"Z": job.Z} if with_Z else {})


def gradient(job):
    import pytensor
    from pymc.blocking import DictToArrayBijection

    with_Z, mode = job.options.get("with_Z", False), job.options.get("mode")
    model, _ = _model(job, with_Z)
    point = _point(job, with_Z)
    # The function that its samplers call at each step.
    start = time.perf_counter()
    density = model.logp_dlogp_function(ravel_inputs=True, initial_point=point, mode=mode)
    density.set_extra_values({})
    x = DictToArrayBijection.map({v.name: np.asarray(point[v.name]) for v in density._grad_vars})
    compiled = time.perf_counter() - start
    times = timed_calls(lambda: density(x), job.options)
    times["first"] += compiled
    bound = model.replace_rvs_by_values(model.potentials)
    value = float(model.compile_fn(bound, inputs=model.value_vars, on_unused_input="ignore")(point)[0])
    notes = [f"linker {pytensor.compile.mode.get_mode(mode).linker.__class__.__name__}"]
    if mode is None:
        notes.append(f"C compiler: {'yes' if pytensor.config.cxx else 'none'}")
        notes.append(f"blas flags: {pytensor.config.blas__ldflags or 'none (NumPy does the products)'}")
    return times | {"value": value, "gradient_in": "θ, Z" if with_Z else "θ", "notes": notes}, {}


def sample(job):
    model, gp = _model(job)
    nutpie = job.options["method"] == "nutpie"
    posterior, sampling, divergences = (_by_nutpie if nutpie else _by_pymc)(job, model)
    seconds = job.seconds()
    draws = stacked(*(posterior[name].values for name in ("lengthscale", "scale", "noise")))
    row = {
        "seconds": seconds,
        "sampling_seconds": sampling,
        "tune": job.options["tune"],
        "capped": draws.shape[1] < job.options["draws"],
        "divergences": divergences,
    }
    arrays = {"draws": draws}
    if job.predictive():
        arrays |= _mixture(job, model, gp, draws)
    return row, arrays


def _by_pymc(job, model):
    import pymc as pm

    o, start = job.options, time.time()
    in_chain = dict.fromkeys(range(o.get("chains", 4)), 0)

    def callback(trace, draw):
        """Interrupt at the end of the budget, which keeps the draws so far; two chains run at a time."""
        in_chain[draw.chain] += 1
        if job.over():
            raise KeyboardInterrupt

    late = TimeoutError(f"tuning did not end within the budget of {o['cap']} s")
    try:
        with model:
            trace = pm.sample(
                draws=o["draws"],
                tune=o["tune"],
                chains=o.get("chains", 4),
                cores=job.cores,
                random_seed=job.seed,
                progressbar=False,
                compute_convergence_checks=False,
                callback=callback,
            )
    except ValueError as error:  # its error for a trace without draws
        raise late if job.over() else error from error
    if not [c for c, n in in_chain.items() if n >= o["tune"] + 4]:
        raise late
    spent = trace.posterior.attrs.get("sampling_time", time.time() - start)
    return trace.posterior, float(spent), int(trace.sample_stats["diverging"].sum())


def _by_nutpie(job, model):
    import nutpie

    o = job.options
    compiled = nutpie.compile_pymc_model(model)
    start = time.time()
    sampler = nutpie.sample(
        compiled,
        draws=o["draws"],
        tune=o["tune"],
        chains=o.get("chains", 4),
        cores=job.cores,
        seed=job.seed,
        progress_bar=False,
        save_warmup=False,
        blocking=False,
    )
    try:
        trace = sampler.wait(timeout=max(1.0, o["cap"] - job.seconds()))
    except TimeoutError:
        trace = sampler.abort()
    trace = sampler.inspect() if trace is None else trace
    # An aborted run has NaN where nothing was drawn: keep the chains and the length with most draws, as PyMC does.
    lengths = (~np.isnan(trace.posterior["noise"].values)).sum(axis=1)
    length = max(lengths, key=lambda n: n * np.sum(lengths >= n))
    if length < 4:
        raise TimeoutError(f"tuning did not end within the budget of {o['cap']} s")
    complete = trace.posterior.isel(chain=lengths >= length, draw=slice(0, length))
    return complete, time.time() - start, int(trace.sample_stats["diverging"].sum())


def _mixture(job, model, gp, draws):
    """Means and variances at the test rows for each of some draws, by PyMC's own conditional, compiled once."""
    with model:
        outputs = list(gp._predict_at(job.X_test, diag=True, pred_noise=True))
    call = model.compile_fn(model.replace_rvs_by_values(outputs), inputs=model.value_vars, on_unused_input="ignore")
    predictions = []
    for theta in thinned(draws, job.predictive()):
        point = {"lengthscale_log__": theta[:-2], "scale_log__": theta[-2], "noise_log__": theta[-1]}
        predictions.append(call({name: np.log(value) for name, value in point.items()}))
    return mixture(predictions)


if __name__ == "__main__":
    serve({"gradient": gradient, "sample": sample}, ["pymc", "pytensor", "nutpie", "numba", "numpy", "scipy"])
