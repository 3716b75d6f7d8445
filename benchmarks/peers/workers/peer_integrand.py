"""This library: the compiled program that its samplers call, `ml2`, `sgpr-hmc-fixed-z` and the default `sgpr-hmc`."""

from protocol import Trajectory, point_arrays, serve, stacked, timed_calls


def _jitter(job):
    from integrand.linalg import Jitter

    return Jitter() if job.jitter is None else Jitter(relative=0.0, absolute=job.jitter)


def gradient(job):
    from integrand.compilation import one_blas_thread
    from integrand.data.dataset import Dataset, block_rows_for
    from integrand.kernels import RBF
    from integrand.model import Model
    from integrand.targets import CollapsedTarget

    model = Model(RBF(), job.X.shape[1], priors="paper")
    target = CollapsedTarget(model, Dataset.of(job.X, job.y, block_rows_for(len(job.Z))), _jitter(job))
    lengthscale, scale, noise = job.point()
    phi = model.unconstrained({"lengthscale": lengthscale, "scale": scale, "noise": noise})
    with one_blas_thread(target.threads(len(job.Z)) == 1):
        times = timed_calls(lambda: target.evaluate(phi, job.Z), job.options)
        value = target.evaluate(phi, job.Z).log_likelihood
    return times | {"value": value, "gradient_in": "θ, Z"}, {}


def _fit(job, method, **settings):
    """Fit by the public function. The data are standardised already, so the scaler changes nothing."""
    import warnings

    import integrand
    from integrand.data.scaling import Standardiser
    from integrand.errors import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)  # the row holds the numbers
    scaler = Standardiser.identity(job.X.shape[1])
    return integrand.fit(
        integrand.ArrayRows(job.X, job.y, scaler=scaler),
        method=method,
        jitter=_jitter(job),
        seed=job.seed,
        n_inducing=len(job.Z),
        **settings,
    )


def _predictions(job, posterior):
    mixture = posterior.predict(job.X_test, include_noise=True).mixture()
    return {"means": mixture.means, "variances": mixture.variances}


def ml2(job):
    from integrand.targets import CollapsedTarget

    trajectory = Trajectory(job)
    evaluate = CollapsedTarget.evaluate

    def watched(self, phi, Z):
        evaluation = evaluate(self, phi, Z)
        trajectory.improve(evaluation.log_likelihood)
        return evaluation

    CollapsedTarget.evaluate = watched
    posterior = _fit(job, "ml2", Z=job.Z, priors="paper", steps=job.options["steps"])
    seconds = job.seconds()
    theta = posterior.theta_optimum
    row = {
        "seconds": seconds,
        "bound": trajectory.best,
        "trajectory": trajectory.points,
        "notes": list(posterior.notes),
    }
    row["stopped"] = posterior.notes[-1]
    return row, point_arrays(**theta, Z=posterior.Z) | _predictions(job, posterior)


def sample(job):
    from integrand.infer.default_sampler import DefaultSampler
    from integrand.methods.problem import Settings

    # The whole product chooses its first Z; otherwise it has the Z of the other packages.
    given = {} if job.options.get("own_Z") else {"Z": job.Z}
    given["predictive_draws"] = max(job.predictive(), 1)  # where nothing is predicted, nothing is prepared
    given |= {"chains": job.options["chains"], "max_minutes": job.options["cap"] / 60.0}
    posterior = _fit(job, job.options["method"], priors=job.options["priors"], **given)
    seconds, spent = job.seconds(), dict(posterior.seconds)
    theta = posterior.theta
    draws = stacked(theta["lengthscale"], theta["scale"], theta["noise"])
    row = {
        "seconds": seconds,
        "sampling_seconds": spent.get("final", 0.0),
        "tune": DefaultSampler().warmup(draws.shape[2], Settings().warmup // 2),  # after the pilot run
        "reached": posterior.verdict.convergence.reached(Settings().target_ess),
        "verdict": str(posterior.verdict),
        "spent": spent,
        "gradients": posterior.counts["gradients"],
        "divergences": int(posterior.chains.diverging.sum()),
    }
    return row, {"draws": draws} | (_predictions(job, posterior) if job.predictive() else {})


if __name__ == "__main__":
    serve(
        {"gradient": gradient, "ml2": ml2, "sample": sample}, ["integrand", "jax", "jaxlib", "numpy", "scipy", "nutpie"]
    )
