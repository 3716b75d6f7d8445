"""`vi-collapsed` and `gpr-vi`: what they say of a climb that was cut off, and how they go on after it."""

import re

import numpy as np
import pytest

import integrand
import known_posteriors as known
from integrand import RBF, ArrayRows, ConvergenceWarning, Gamma, HalfNormal, NotConvergedError, on_variance
from integrand.data.scaling import Standardiser
from integrand.progress import Silent

# They share the climb and what is around it.
METHODS = ("vi-collapsed", pytest.param("gpr-vi", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))  # of the shape of most tests of fits, so that programs are shared
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(40)


def fit(data, method, **options):
    return integrand.fit(*data, **({"method": method, "n_inducing": 8, "seed": 1} | options))


class Interrupting(Silent):
    """Presses Ctrl-C at the third report of the bound."""

    left = 3

    def update(self, done, total, text=""):
        self.left -= text.startswith("bound")
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", METHODS)
def test_the_end_of_the_climb_is_reached_and_its_history_is_in_time(method, data):
    posterior = fit(data, method)
    assert not {"not-converged", "budget", "interrupted"} & set(posterior.verdict.codes)
    points = [p for p in posterior.history if p.phase == "optimise"]
    assert len(points) > 5
    seconds = [p.seconds for p in points]
    assert seconds == sorted(set(seconds))  # each later than the one before
    bounds = [p.bound for p in points]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("method", METHODS)
def test_too_few_steps_are_told(method, data):
    with pytest.warns(ConvergenceWarning, match="stopped after 2 steps"):
        posterior = fit(data, method, steps=2)
    assert "not-converged" in posterior.verdict.codes
    with pytest.raises(NotConvergedError, match="stopped after 2 steps"):
        fit(data, method, steps=2, strict=True)


@pytest.mark.parametrize("method", METHODS)
def test_minutes_and_interrupts_end_the_climb_and_it_goes_on(method, data, tmp_path):
    whole = fit(data, method)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        cut = fit(data, method, progress=Interrupting(), run_dir=tmp_path / "run")
    assert "interrupted" in cut.verdict.codes
    with pytest.warns(ConvergenceWarning, match="minutes used up"):
        once = integrand.resume(tmp_path / "run", max_minutes=1e-6)
    bounds = [[p.bound for p in one.history if p.phase == "optimise"] for one in (cut, once)]
    assert len(bounds[1]) == 1
    assert bounds[1][0] == pytest.approx(bounds[0][-1], abs=1e-6)  # from the best point of the climb before
    resumed = integrand.resume(tmp_path / "run")
    assert resumed.verdict.codes == whole.verdict.codes
    np.testing.assert_allclose(resumed.chains.x, whole.chains.x, atol=0.02)


@pytest.mark.slow
def test_gpr_vi_bounds_the_evidence():
    """Below log p(y), and not by much: the posterior is nearly Gaussian in the logarithms."""
    kernel = RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0))
    model = {"kernel": kernel, "noise": on_variance(HalfNormal(1.0))}
    rows = ArrayRows(known.X[:, None], known.Y, scaler=Standardiser.identity(1))
    posterior = integrand.fit(rows, method="gpr-vi", seed=1, **model)
    told = re.search(r"is (\S+) ± (\S+) nats", " ".join(posterior.notes))
    assert told is not None
    elbo, error = float(told[1]), float(told[2])
    assert error < 0.05
    assert elbo < known.GP_LOG_EVIDENCE + 3.0 * error + 0.01  # told to two digits
    assert elbo > known.GP_LOG_EVIDENCE - 0.3
