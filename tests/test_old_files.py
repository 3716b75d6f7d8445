"""Run directories and model files that an earlier version left: they resume, and they predict the same."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import integrand
from integrand.storage.run_directory import RunDirectory

FIXTURES = Path(__file__).resolve().parent / "fixtures"
with zipfile.ZipFile(FIXTURES / "runs.zip") as archive:
    RUNS = json.loads(archive.read("runs.json"))
NEW = np.array([[0.5, 90.0], [3.0, 100.0], [7.5, 120.0]])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "run-sgpr-hmc-in-the-final-draws" else ()) for n in RUNS]
)
def test_a_run_of_an_earlier_version_goes_on(name, tmp_path):
    """Its settings have their old names and its jitter is beside them; the draws on disk stay the first ones."""
    with zipfile.ZipFile(FIXTURES / "runs.zip") as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / name
    with RunDirectory.open(folder) as run:
        start, header = run.load("warm_start")[0], run.header
        drawn = run.load("draws_000")[0]["x"] if run.has("draws_000") else np.zeros((2, 0, 99))
    assert {"tune", "grow", "sample_rows"} < set(header["settings"])
    with pytest.warns(integrand.ConvergenceWarning):  # ESS cannot reach 1000
        posterior = integrand.resume(folder)
    assert posterior.method == header["method"]
    assert posterior.model.columns == ("t", "mass")
    assert posterior.jitter == integrand.Jitter(**header["jitter"])
    n, p = drawn.shape[1], posterior.model.n_theta
    assert n < posterior.chains.n_draws == RUNS[name]["draws"]
    np.testing.assert_array_equal(posterior.chains.x[:, :n], drawn[:, :, :p])
    np.testing.assert_array_equal(posterior.optimum, start["phi"])
    y, sd = posterior.predict(NEW, include_noise=True), np.array(RUNS[name]["sd"])
    assert np.all(np.abs(y.mean - RUNS[name]["mean"]) < 0.5 * sd)  # processors round differently
    assert np.all(np.abs(np.log(y.sd / sd)) < 0.5)


def test_a_model_file_of_format_2_predicts_the_same():
    expected = json.loads((FIXTURES / "model-format-2.json").read_text())
    posterior = integrand.load_model(FIXTURES / "model-format-2.integrand").posterior
    of_y, of_f = (posterior.predict(np.array(expected["X"]), include_noise=noise) for noise in (True, False))
    for found, name in ((of_y.mean, "mean"), (of_y.sd, "sd_y"), (of_f.sd, "sd_f")):
        np.testing.assert_allclose(found, expected[name], rtol=1e-9, err_msg=name)
    density = of_y.log_density(np.full(3, 7.0))
    np.testing.assert_allclose(density, expected["log_density_at_7"], rtol=1e-9)
    for name, value in expected["theta"].items():
        np.testing.assert_allclose(posterior.theta_original[name][0, 0], value, rtol=1e-12)
