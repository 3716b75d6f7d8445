"""A hyperposterior known by quadrature (posteriordb gp_pois_regr-gp_regr): jumps and NUTS with Z = X must agree."""

import warnings

import numpy as np
import pytest

from integrand import RBF, Gamma, HalfNormal, Jitter, fit, on_variance
from integrand.data.scaling import Standardiser

X = np.arange(-10.0, 11.0, 2.0)[:, None]
Y = np.array([4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588, 0.802364, 3.92136])
# By 120³-point quadrature: rho (lengthscale), alpha (scale), sigma (noise variance).
MEAN = np.array([6.89343, 2.43810, 1.83169])
SD = np.array([1.28970, 0.79007, 0.50018])


@pytest.fixture(scope="module", params=["default", pytest.param("nuts", marks=pytest.mark.slow)])
def draws(request):
    posterior = fit(
        X,
        Y,
        RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0)),
        noise=on_variance(HalfNormal(1.0)),
        method="sgpr-hmc-fixed-z",
        sampler=request.param,
        Z=X,
        scaler=Standardiser.identity(1),
        jitter=Jitter(0.0, 1e-10),
        target_ess=2_800,
        target_accept=0.8,
        max_draws=6_000,
        seed=1,
    )
    theta = posterior.theta
    return np.stack([theta["lengthscale"][..., 0], theta["scale"], theta["noise"] ** 2], axis=-1)


def test_means_and_sds_agree_with_quadrature(draws):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

    for i, name in enumerate(("rho", "alpha", "sigma")):
        x = np.ascontiguousarray(draws[:, :, i])
        error = float(arviz.mcse(x, method="mean"))
        assert error < 0.02 * SD[i], f"{name}: {error / SD[i]:.3f} of the sd"
        assert abs(x.mean() - MEAN[i]) < 3 * error, f"{name}: z = {(x.mean() - MEAN[i]) / error:.2f}"
        error_sd = float(arviz.mcse(x, method="sd"))
        assert error_sd < 0.02 * SD[i]
        assert abs(x.std() - SD[i]) < 3 * error_sd, f"sd of {name}: z = {(x.std() - SD[i]) / error_sd:.2f}"
        print(name, f"z {(x.mean() - MEAN[i]) / error:+.2f}, sd z {(x.std() - SD[i]) / error_sd:+.2f}, n {x.shape}")
