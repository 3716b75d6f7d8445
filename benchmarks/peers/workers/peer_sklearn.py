# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "scikit-learn==1.9.1",
#   "numpy==2.4.6",
#   "scipy==1.17.1",
#   # What these bring along, as measured.
#   "cloudpickle==3.1.2",
#   "joblib==1.6.0",
#   "narwhals==2.28.0",
#   "threadpoolctl==3.8.0",
# ]
# ///
"""scikit-learn: the exact GP, another model than the sparse ones."""

from protocol import Trajectory, point_arrays, serve


def ml2(job):
    import scipy.optimize
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    trajectory, ends = Trajectory(job), []

    def optimiser(objective, theta, bounds):
        """scikit-learn's own optimiser, with its path recorded."""

        def watched(x):
            value, slope = objective(x)
            trajectory.improve(-value)
            return value, slope

        optimum = scipy.optimize.minimize(watched, theta, method="L-BFGS-B", jac=True, bounds=bounds)
        ends.append(optimum)
        return optimum.x, optimum.fun

    lengthscale, scale, noise = job.start()
    kernel = ConstantKernel(scale**2) * RBF(lengthscale) + WhiteKernel(noise**2)
    gp = GaussianProcessRegressor(kernel, alpha=1e-10, optimizer=optimiser).fit(job.X, job.y)
    row = {"seconds": job.seconds(), "bound": gp.log_marginal_likelihood_value_, "trajectory": trajectory.points}
    row |= {"stopped": str(ends[0].message), "steps": int(ends[0].nit)}
    fitted = gp.kernel_
    theta = (fitted.k1.k2.length_scale, fitted.k1.k1.constant_value**0.5, fitted.k2.noise_level**0.5)
    mean, sd = gp.predict(job.X_test, return_std=True)
    return row, point_arrays(*theta) | {"means": mean[None], "variances": sd[None] ** 2}


if __name__ == "__main__":
    serve({"ml2": ml2}, ["scikit-learn", "numpy", "scipy"])
