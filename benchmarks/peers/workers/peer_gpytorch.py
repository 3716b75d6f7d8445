# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   # On machines without a GPU the CPU build of torch 2.13.0 is the same code and a smaller download.
#   "torch==2.13.0",
#   "gpytorch==1.15.2",
#   "linear_operator==0.6.1",
#   "pyro-ppl==1.9.2",
#   "numpy==2.4.6",
#   "scipy==1.17.1",
#   # What these bring along, as measured.
#   "cloudpickle==3.1.2",
#   "filelock==4.2.10",
#   "fsspec==2026.9.0",
#   "jinja2==3.1.6",
#   "joblib==1.6.0",
#   "markupsafe==3.0.4",
#   "mpmath==1.3.0",
#   "narwhals==2.28.0",
#   "networkx==3.6.1",
#   "opt-einsum==3.4.0",
#   "pyro-api==0.1.2",
#   "scikit-learn==1.9.1",
#   "sympy==1.14.0",
#   "threadpoolctl==3.8.0",
#   "tqdm==4.70.1",
#   "typing-extensions==4.16.0",
# ]
# ///
"""GPyTorch: SGPR (`InducingPointKernel`) with Adam, and Pyro's NUTS on the exact GP."""

import contextlib
import warnings

import numpy as np
from protocol import Trajectory, in_processes, mixture, point_arrays, serve, stacked, thinned, timed_calls


def _sgpr(job, lengthscale, scale, noise):
    """Model and likelihood as in GPyTorch's SGPR example, in float64, with its own constraints and jitter."""
    import gpytorch
    import torch

    torch.set_default_dtype(torch.float64)
    X, y = torch.as_tensor(job.X), torch.as_tensor(job.y)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1]))
            Z = torch.as_tensor(job.Z).clone()
            self.covar_module = gpytorch.kernels.InducingPointKernel(self.base, Z, likelihood)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = SGPR()
    model.base.base_kernel.lengthscale = torch.as_tensor(lengthscale)
    model.base.outputscale = scale**2
    likelihood.noise = noise**2
    return model, likelihood, X, y


def _loss(model, likelihood, X, y):
    """A function that gives -bound / N and leaves the gradient in the parameters, as a training loop does."""
    import gpytorch

    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    likelihood.train()

    def call():
        model.zero_grad()
        loss = -mll(model(X), y)
        loss.backward()
        return loss

    return call


def _threads(job):
    import torch

    torch.set_num_threads(job.cores)


def gradient(job):
    _threads(job)
    model, likelihood, X, y = _sgpr(job, *job.point())
    call = _loss(model, likelihood, X, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # each once, so that timed calls write nothing
        times = timed_calls(call, job.options)
        value = -call().item() * len(y)
    notes = sorted({str(w.message) for w in caught if "jitter" in str(w.message)})
    return times | {"value": value, "gradient_in": "θ, Z", "notes": notes}, {}


def ml2(job):
    import gpytorch
    import torch

    _threads(job)
    warnings.simplefilter("ignore")
    model, likelihood, X, y = _sgpr(job, *job.start())
    call, trajectory = _loss(model, likelihood, X, y), Trajectory(job)
    adam = torch.optim.Adam(model.parameters(), lr=job.options["rate"])
    bound, notes, steps, stopped = -np.inf, [], job.options["steps"], "all its steps"
    good = model.state_dict()
    for step in range(steps + 1):
        try:
            value = -call().item() * len(y)
            if not np.isfinite(value):
                raise FloatingPointError("the bound is not finite")
        except Exception as error:  # a factorisation failed: a user's loop would end with the point before
            stopped = "a factorisation that failed"
            notes.append(f"step {step}: {type(error).__name__}: {str(error)[:200]}")
            model.load_state_dict(good)
            break
        bound = value
        trajectory.add(bound)
        good = {name: value.clone() for name, value in model.state_dict().items()}
        if step == steps:
            break
        adam.step()
    row = {"seconds": job.seconds(), "bound": bound, "trajectory": trajectory.points, "notes": notes}
    row |= {"stopped": stopped, "steps": step}
    base = model.base
    theta = (
        base.base_kernel.lengthscale.detach().numpy()[0],
        base.outputscale.item() ** 0.5,
        likelihood.noise.item() ** 0.5,
    )
    arrays = point_arrays(*theta, Z=model.covar_module.inducing_points.detach().numpy())
    model.eval()
    likelihood.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var(False):
        predicted = likelihood(model(torch.as_tensor(job.X_test)))
        arrays |= {"means": predicted.mean.numpy()[None], "variances": predicted.variance.numpy()[None]}
    return row, arrays


def _exact(job):
    """The exact GP with the benchmark's priors, as in GPyTorch's example of fully Bayesian regression."""
    import gpytorch
    import torch
    from gpytorch.constraints import Positive
    from gpytorch.priors import GammaPrior, HalfCauchyPrior

    torch.set_default_dtype(torch.float64)
    X, y = torch.as_tensor(job.X), torch.as_tensor(job.y)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=Positive())

    class Exact(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            rbf = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1], lengthscale_constraint=Positive())
            self.covar_module = gpytorch.kernels.ScaleKernel(rbf, outputscale_constraint=Positive())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, D = Exact(), X.shape[1]
    shape, rate = job.priors["lengthscale"]
    prior = GammaPrior(torch.full((1, D), shape), torch.full((1, D), rate))
    model.covar_module.base_kernel.register_prior("lengthscale_prior", prior, "lengthscale")
    scale, noise = (HalfCauchyPrior(torch.tensor(job.priors[name][0])) for name in ("scale", "noise"))
    model.covar_module.register_prior(
        "scale_prior", scale, lambda m: m.outputscale.sqrt(), lambda m, value: m._set_outputscale(value**2)
    )
    likelihood.noise_covar.register_prior(
        "noise_prior", noise, lambda m: m.noise.sqrt(), lambda m, value: m._set_noise(value.reshape(1) ** 2)
    )
    return model, likelihood, X, y


# Draws of a chain that can be judged: one whose budget ends after its first goes on for so many.
_LEAST = 4


class _Enough(Exception):
    """The budget is used up."""


def _part(path_and_spawned, seeds):
    """The chains of one process, one after the other: their draws and seconds."""
    import time

    import gpytorch
    import pyro
    import torch
    from linear_operator.utils.errors import NanError, NotPSDError
    from protocol import Job
    from pyro.infer import MCMC, NUTS
    from pyro.ops.integrator import register_exception_handler

    # With this a failed factorisation is a divergence; without it the run would end.
    register_exception_handler("not_psd", lambda error: isinstance(error, (NotPSDError, NanError)))
    job = Job(*path_and_spawned)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, _, X, y = _exact(job)

    def pyro_model(x, y):
        sampled = model.pyro_sample_from_prior()
        pyro.sample("obs", sampled.likelihood(sampled(x)), obs=y)

    chains, start = [], time.time()
    for k, seed in enumerate(seeds):
        pyro.set_rng_seed(seed)
        kernel, drawn = NUTS(pyro_model), []
        share = job.deadline(start, k, len(seeds))

        def keep(kernel, samples, stage, i, drawn=drawn, share=share):
            if stage == "Sample":
                drawn.append({name: kernel.transforms[name].inv(value).numpy() for name, value in samples.items()})
            if time.time() > share and not 0 < len(drawn) < _LEAST:
                raise _Enough

        mcmc = MCMC(kernel, job.options["draws"], job.options["tune"], hook_fn=keep, disable_progbar=True, num_chains=1)
        # Without this, log determinants are random estimates where there are more than 800 rows.
        with contextlib.suppress(_Enough), gpytorch.settings.fast_computations(False, False, False):
            mcmc.run(X, y)
        if drawn:
            chains.append(drawn)
    return chains, time.time() - start


def sample(job):
    chains, row = in_processes(_part, job)
    length = min(len(chain) for chain in chains)

    def column(ending):
        name = next(n for n in chains[0][0] if n.endswith(ending))
        return np.array([[np.squeeze(draw[name]) for draw in chain[:length]] for chain in chains])

    lengthscale = column("lengthscale_prior").reshape(len(chains), length, -1)
    draws = stacked(lengthscale, column("scale_prior"), column("noise_prior"))
    row["capped"] = length < job.options["draws"]
    return row, {"draws": draws} | (_mixture(job, draws) if job.predictive() else {})


def _mixture(job, draws):
    import gpytorch
    import torch

    model, likelihood, _, _ = _exact(job)
    predictions = []
    for theta in thinned(draws, job.predictive()):
        model.train()  # clears the cache of the draw before
        model.covar_module.base_kernel.lengthscale = torch.as_tensor(theta[:-2])
        model.covar_module.outputscale = theta[-2] ** 2
        likelihood.noise = theta[-1] ** 2
        model.eval()
        likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
            y = likelihood(model(torch.as_tensor(job.X_test)))
            predictions.append((y.mean.numpy(), y.variance.numpy()))
    return mixture(predictions)


if __name__ == "__main__":
    serve(
        {"gradient": gradient, "ml2": ml2, "sample": sample},
        ["gpytorch", "torch", "linear_operator", "pyro-ppl", "numpy"],
    )
