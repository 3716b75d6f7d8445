"""A Gaussian fitted to a density: exact for Gaussians, a lower bound otherwise, and a tail index that tells."""

import numpy as np
import pytest

from integrand.infer.coordinates import Coordinates
from integrand.infer.gaussian_vi import fit_gaussian, white_draws

MEAN = np.array([1.0, -2.0, 0.5])
ROOT = np.array([[1.0, 0.0, 0.0], [0.8, 0.5, 0.0], [-0.3, 0.2, 2.0]])
PRECISION = np.linalg.inv(ROOT @ ROOT.T)
LOG_NORMALISER = 1.5 * np.log(2 * np.pi) + np.linalg.slogdet(ROOT)[1]
START = Coordinates(np.zeros(3), np.eye(3))


def gaussian(xs, nuisance):
    """log N(x; MEAN, ROOT ROOTᵀ) without its normaliser, minus a parabola in the nuisance."""
    off = xs - MEAN
    values = -0.5 * np.einsum("si,ij,sj->s", off, PRECISION, off) - np.sum((nuisance - 3.0) ** 2)
    return values, -off @ PRECISION, -2.0 * (nuisance - 3.0)


def test_draws_are_white():
    draws = white_draws(50, 4, 0)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(draws.T @ draws / len(draws), np.eye(4), atol=1e-12)


def test_a_gaussian_is_found_with_its_normaliser():
    fitted = fit_gaussian(gaussian, START, np.zeros(2))
    np.testing.assert_allclose(fitted.mean, MEAN, atol=1e-4)
    np.testing.assert_allclose(fitted.factor @ fitted.factor.T, ROOT @ ROOT.T, atol=1e-3)
    np.testing.assert_allclose(fitted.nuisance, 3.0, atol=1e-4)
    assert fitted.elbo == pytest.approx(LOG_NORMALISER, abs=1e-3)
    assert fitted.pareto_k < 0.5


def test_diagonal_has_the_conditional_scales_and_a_lower_bound():
    full, diagonal = (fit_gaussian(gaussian, START, np.zeros(2), diagonal=d) for d in (False, True))
    covariance = diagonal.factor @ diagonal.factor.T
    np.testing.assert_allclose(covariance, np.diag(1.0 / np.diagonal(PRECISION)), atol=1e-3)
    assert diagonal.elbo < full.elbo - 0.1


def test_the_bound_stays_below_the_evidence_and_heavy_tails_are_told():
    def student(xs, nuisance):  # a Student-t with 1.5 degrees of freedom, normalised
        q = 1.0 + xs**2 / 1.5
        from math import lgamma, log, pi

        constant = lgamma(1.25) - lgamma(0.75) - 0.5 * log(1.5 * pi)
        return constant - 1.25 * np.log(q[:, 0]), -2.5 * xs / 1.5 / q, np.zeros(0)

    fitted = fit_gaussian(student, Coordinates(np.zeros(1), np.eye(1)), np.zeros(0))
    assert fitted.elbo < -2 * fitted.elbo_error
    assert fitted.pareto_k > 0.7


def test_a_step_into_nowhere_is_not_the_end():
    def walled(xs, nuisance):
        values, gradients, d = gaussian(xs, nuisance)
        return np.where(np.abs(xs).max(axis=1) > 60.0, -np.inf, values), gradients, d

    fitted = fit_gaussian(walled, Coordinates(np.zeros(3), 10.0 * np.eye(3)), np.zeros(2))
    np.testing.assert_allclose(fitted.mean, MEAN, atol=1e-3)


def test_what_was_cut_off_says_so_and_can_be_gone_on_with():
    curved = Coordinates(np.zeros(3), 10.0 * np.eye(3))
    whole = fit_gaussian(gaussian, curved, np.zeros(2))
    assert whole.converged
    assert whole.ended == ""
    short = fit_gaussian(gaussian, curved, np.zeros(2), max_steps=2)
    assert not short.converged
    assert "2 steps" in short.message
    seen = []

    def callback(unknowns, bound):
        seen.append(bound)
        return "enough" if len(seen) == 4 else ""

    cut = fit_gaussian(gaussian, curved, np.zeros(2), callback=callback)
    assert (cut.converged, cut.ended, len(seen)) == (False, "enough", 4)
    assert seen == sorted(seen)

    def press(unknowns, bound):
        raise KeyboardInterrupt

    assert fit_gaussian(gaussian, curved, np.zeros(2), callback=press).ended == "interrupted"
    on = fit_gaussian(gaussian, curved, np.zeros(2), first=cut.unknowns)
    np.testing.assert_allclose(on.mean, MEAN, atol=1e-4)
    first = []
    fit_gaussian(gaussian, curved, np.zeros(2), first=cut.unknowns, callback=lambda v, bound: first.append(bound) or "")
    assert first[0] == pytest.approx(seen[-1])
