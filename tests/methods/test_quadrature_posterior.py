"""A hyperposterior known by quadrature (posteriordb gp_pois_regr-gp_regr), which fits at Z = X must agree with."""

import warnings

import numpy as np
import pytest

import known_posteriors as known
from integrand import RBF, Gamma, HalfNormal, Jitter, fit, on_variance
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows

X = known.X[:, None]


@pytest.fixture(scope="module", params=["default", pytest.param("nuts", marks=pytest.mark.slow)])
def draws(request):
    posterior = fit(
        ArrayRows(X, known.Y, scaler=Standardiser.identity(1)),
        kernel=RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0)),
        noise=on_variance(HalfNormal(1.0)),
        method="sgpr-hmc-fixed-z",
        sampler=request.param,
        Z=X,
        jitter=Jitter(0.0, 1e-10),
        target_ess=2_800,
        target_accept=0.8,
        max_draws=6_000,
        seed=1,
    )
    theta = posterior.theta
    return np.stack([theta["lengthscale"][..., 0], theta["scale"], theta["noise"] ** 2], axis=-1)


@pytest.mark.slow
def test_means_and_sds_agree_with_quadrature(draws):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

    for i, name in enumerate(("rho", "alpha", "sigma")):
        x, mean, sd = np.ascontiguousarray(draws[:, :, i]), known.GP_MEAN[i], known.GP_SD[i]
        error, error_sd = (float(arviz.mcse(x, method=method)) for method in ("mean", "sd"))
        assert error < 0.02 * sd, f"{name}: {error / sd:.3f} of the sd"
        assert error_sd < 0.02 * sd
        assert abs(x.mean() - mean) < 3 * error, f"{name}: z = {(x.mean() - mean) / error:.2f}"
        assert abs(x.std() - sd) < 3 * error_sd, f"sd of {name}: z = {(x.std() - sd) / error_sd:.2f}"
        print(name, f"z {(x.mean() - mean) / error:+.2f}, sd z {(x.std() - sd) / error_sd:+.2f}, n {x.shape}")
