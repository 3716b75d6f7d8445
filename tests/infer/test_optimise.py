import numpy as np
import pytest

from integrand.infer.modes import find_modes, membership
from integrand.infer.optimise import Adam, Curvature, maximise_adam, maximise_lbfgs

MATRIX = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])
TOP = np.array([1.0, -2.0, 0.5])


def quadratic(x):
    d = x - TOP
    return -0.5 * float(d @ MATRIX @ d) + 7.0, -MATRIX @ d


def rosenbrock(x):
    a, b = x
    value = -((1 - a) ** 2) - 100 * (b - a**2) ** 2
    return float(value), np.array([2 * (1 - a) + 400 * a * (b - a**2), -200 * (b - a**2)])


def walled(f, broken):
    """`f`, but with a failure (of the given kind) in the half-space behind its top."""

    def g(x):
        value, gradient = f(x)
        if x[0] <= TOP[0] + 0.3:
            return value, gradient
        return {"-inf": -np.inf, "nan": np.nan, "nan gradient": value}[broken], (
            np.full_like(x, np.nan) if broken == "nan gradient" else np.zeros_like(x)
        )

    return g


def assert_never_worse(history):
    assert np.all(np.diff(history) >= 0)


def test_lbfgs_on_a_quadratic():
    optimum = maximise_lbfgs(quadratic, np.zeros(3))
    np.testing.assert_allclose(optimum.x, TOP, atol=1e-4)
    assert optimum.value == pytest.approx(7.0, abs=1e-8)
    assert optimum.converged
    assert optimum.failures == 0
    assert optimum.evaluations == len(optimum.history) >= optimum.steps > 1
    assert_never_worse(optimum.history)


def test_lbfgs_on_rosenbrocks_valley():
    optimum = maximise_lbfgs(rosenbrock, np.array([-1.2, 1.0]), tolerance=1e-14)
    np.testing.assert_allclose(optimum.x, [1.0, 1.0], atol=1e-5)
    assert_never_worse(optimum.history)


def test_lbfgs_stops_after_its_steps():
    optimum = maximise_lbfgs(rosenbrock, np.array([-1.2, 1.0]), max_steps=5)
    assert optimum.steps == 5
    assert not optimum.converged
    assert "5 steps" in optimum.message


def test_adam_on_a_quadratic():
    optimum = maximise_adam(quadratic, np.zeros(3), max_steps=1500, rate=0.02)
    np.testing.assert_allclose(optimum.x, TOP, atol=1e-4)
    assert optimum.steps == optimum.evaluations == 1500
    assert_never_worse(optimum.history)


def test_adam_is_optax_adam():
    import jax
    import optax

    with jax.enable_x64(True):
        rule = optax.adam(0.03)
        x = np.array([2.0, -1.0, 4.0])
        ours, theirs, state = Adam(3, 0.03), x.copy(), rule.init(x)
        for _ in range(30):
            x = ours.step(x, quadratic(x)[1])
            update, state = rule.update(-quadratic(theirs)[1], state)
            theirs = np.asarray(optax.apply_updates(theirs, update))
    np.testing.assert_allclose(x, theirs, rtol=1e-9)


@pytest.mark.parametrize("broken", ["-inf", "nan", "nan gradient"])
@pytest.mark.parametrize("steepness", [1.0, 300.0])
def test_lbfgs_is_not_stopped_by_failures(broken, steepness):
    def f(x):  # so flat far away that the first steps go too far
        value, gradient = quadratic(x)
        return steepness * value, steepness * gradient

    optimum = maximise_lbfgs(walled(f, broken), np.array([-6.0, 3.0, 0.0]))
    np.testing.assert_allclose(optimum.x, TOP, atol=1e-3)
    assert_never_worse(optimum.history)


@pytest.mark.parametrize("broken", ["-inf", "nan", "nan gradient"])
def test_lbfgs_meets_failures_and_keeps_the_best_point(broken):
    """The top lies behind the wall: every way up ends in a failure."""

    def f(x):
        return 4.0 * x[0] - (x[1] - 1.0) ** 2, np.array([4.0, -2.0 * (x[1] - 1.0)])

    g = walled(f, broken)
    optimum = maximise_lbfgs(g, np.array([-3.0, 0.0]))
    assert optimum.failures > 0
    assert optimum.value > f(np.array([-3.0, 0.0]))[0] + 4.0
    assert optimum.x[0] <= TOP[0] + 0.3
    assert optimum.value == g(optimum.x)[0]
    assert_never_worse(optimum.history)


@pytest.mark.parametrize("broken", ["-inf", "nan", "nan gradient"])
def test_adam_meets_failures_and_goes_on(broken):
    """Momentum carries it past the top and through the wall; it comes back and still finds the top."""
    optimum = maximise_adam(walled(quadratic, broken), np.array([-6.0, 3.0, 0.0]), max_steps=800, rate=0.6)
    assert optimum.failures > 0
    assert optimum.evaluations == 800
    np.testing.assert_allclose(optimum.x, TOP, atol=1e-2)
    assert optimum.value == quadratic(optimum.x)[0]
    assert_never_worse(optimum.history)


@pytest.mark.parametrize("maximise", [maximise_lbfgs, maximise_adam])
def test_nowhere_finite(maximise):
    start = np.array([0.5, 2.0])
    optimum = maximise(lambda x: (np.nan, np.zeros(2)), start, max_steps=20)
    assert optimum.value == -np.inf
    assert optimum.failures == optimum.evaluations > 0
    np.testing.assert_array_equal(optimum.x, start)


@pytest.mark.parametrize("maximise", [maximise_lbfgs, maximise_adam])
def test_the_callers_point_is_not_changed(maximise):
    start = np.zeros(3)
    maximise(quadratic, start, max_steps=10)
    np.testing.assert_array_equal(start, 0.0)


@pytest.mark.parametrize("maximise", [maximise_lbfgs, maximise_adam])
def test_errors_of_the_function_reach_the_caller(maximise):
    def f(x):
        raise ZeroDivisionError("in the function")

    with pytest.raises(ZeroDivisionError):
        maximise(f, np.zeros(2), max_steps=3)


# --- curvature


def learned(matrix, n_pairs=60, seed=0):
    """Curvature from random steps on a quadratic."""
    rng, curvature = np.random.default_rng(seed), Curvature(n_pairs)
    for step in rng.standard_normal((n_pairs, len(matrix))):
        curvature.add(step, matrix @ step)
    return curvature


def test_curvature_becomes_that_of_a_quadratic():
    gradient = np.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose(learned(MATRIX).direction(gradient), np.linalg.solve(MATRIX, gradient), rtol=1e-3)


def test_held_coordinates_stay_and_the_others_take_their_own_newton_step():
    gradient = np.array([0.3, -1.0, 2.0])
    step = learned(MATRIX).direction(gradient, held=1)
    assert step[0] == 0.0
    np.testing.assert_allclose(step[1:], np.linalg.solve(MATRIX[1:, 1:], gradient[1:]), rtol=1e-3)


@pytest.mark.parametrize("held", [0, 1, 2])
def test_a_direction_goes_uphill_before_anything_is_learned(held):
    step = Curvature().direction(np.array([5.0, -7.0, 3.0]), held)
    assert np.all(step[:held] == 0.0)
    assert step @ np.array([5.0, -7.0, 3.0]) > 0.0


def test_a_pair_without_curvature_teaches_nothing():
    curvature = Curvature()
    curvature.add(np.array([1.0, 0.0]), np.array([-1.0, 0.0]))
    curvature.add(np.array([1.0, 0.0]), np.array([0.0, 3.0]))
    assert not curvature


def test_held_coordinates_in_a_whole_run():
    optimum = maximise_lbfgs(quadratic, np.array([3.0, 0.0, 0.0]), held=1, curvature=learned(MATRIX))
    assert optimum.x[0] == 3.0
    assert np.abs(quadratic(optimum.x)[1][1:]).max() < 1e-4
    assert optimum.evaluations <= 5  # Newton's step is nearly right at once


def badly_scaled(n=60):
    scales = np.logspace(-2.0, 2.0, n)

    def f(x):
        u = scales * x - 1.0
        return -float(np.sum(np.log1p(u**2))), -2.0 * scales * u / (1.0 + u**2)

    return f, scales


def test_curvature_of_one_run_shortens_the_next():
    f, scales = badly_scaled()
    start = 0.8 / scales
    curvature = Curvature()
    first = maximise_lbfgs(f, start, curvature=curvature, tolerance=1e-12)
    again = maximise_lbfgs(f, start, curvature=curvature, tolerance=1e-12)
    assert first.value > -1e-6
    assert again.value > -1e-6
    assert again.evaluations < first.evaluations


def test_it_ends_when_many_steps_gain_little():
    whole = maximise_lbfgs(rosenbrock, np.array([-1.2, 1.0]), tolerance=0.0)
    short = maximise_lbfgs(rosenbrock, np.array([-1.2, 1.0]), tolerance=0.0, enough=(3, 0.5))
    assert short.converged
    assert "the last 3 gained 0.5 at most" in short.message
    assert short.steps < whole.steps
    assert short.value > -5.0  # from -24.2


def test_curvature_goes_through_a_file_and_a_copy_learns_on_its_own():
    gradient = np.array([0.3, -1.0, 2.0])
    curvature = learned(MATRIX, 5)
    wanted = curvature.direction(gradient)
    np.testing.assert_array_equal(Curvature.of(curvature.arrays()).direction(gradient), wanted)
    copy = curvature.copied()
    copy.add(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 1.0]))
    np.testing.assert_array_equal(curvature.direction(gradient), wanted)
    assert not np.array_equal(copy.direction(gradient), wanted)
    assert not Curvature.of(Curvature().arrays())


# ---- the search for modes

P = 3


def three_modes(x):
    """Normal densities of masses 0.6, 0.4 and e⁻²⁰."""
    centres, sds = np.array([[0.0] * P, [7.0] * P, [-9.0] * P]), np.array([1.0, 0.8, 1.0])
    logs = np.log([0.6, 0.4, np.exp(-20.0)]) - P * np.log(sds) - 0.5 * P * np.log(2.0 * np.pi)
    logs = logs - 0.5 * np.sum((x - centres) ** 2, axis=1) / sds**2
    value = np.logaddexp.reduce(logs)
    return float(value), np.exp(logs - value) @ (-(x - centres) / sds[:, None] ** 2)


STARTS = np.random.default_rng(0).uniform(-10.0, 10.0, (24, P))


def test_optima_with_mass_are_found():
    modes = find_modes(three_modes, list(STARTS), [np.full(P, 0.3)])
    np.testing.assert_allclose([m.coordinates.centre for m in modes], [[0.0] * P, [7.0] * P], atol=1e-2)
    np.testing.assert_allclose(np.exp([m.log_mass for m in modes]), [0.6, 0.4], rtol=0.02)
    np.testing.assert_allclose(modes[1].coordinates.covariance, 0.64 * np.eye(P), atol=0.01)
    np.testing.assert_array_equal(membership(modes, np.array([[0.5] * P, [6.5] * P])), [0, 1])


def test_ascents_are_short():
    calls = []

    def counted(x):
        calls.append(1)
        return three_modes(x)

    find_modes(counted, list(STARTS), [np.full(P, 0.3)])
    assert len(calls) < 24 * 20


def test_points_without_a_density_are_left_out():
    assert find_modes(lambda x: (np.nan, x), list(STARTS[:3])) == ()


def test_a_search_ends_when_the_time_is_up():
    modes = find_modes(three_modes, list(STARTS), [np.full(P, 0.3)], lambda: True)
    assert len(modes) == 1


def test_ctrl_c_ends_the_search():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_modes(interrupted, list(STARTS[:1]))
