"""What sampling methods share: starts, pilots, final chains until they converge, and what of it is on disk."""

import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import integrand
from benchmarks.truth import exact_likelihood, quadrature, random_set
from integrand import RBF, ConvergenceWarning, Dataset
from integrand.data.scaling import Standardiser
from integrand.infer.base import Chains, Run, Snapshot
from integrand.infer.blackjax_kernels import BlackJaxKernel
from integrand.infer.coordinates import Coordinates
from integrand.infer.default_sampler import DefaultSampler
from integrand.infer.delayed_acceptance import DelayedAcceptance
from integrand.infer.independence_mh import IndependenceMH
from integrand.infer.nuts import NUTS
from integrand.infer.stopping import StoppingRule
from integrand.methods import sampling
from integrand.methods.problem import FitContext, Problem, Settings
from integrand.methods.sampling import (
    ConvergenceMonitor,
    dispersed_starts,
    draw_pilot,
    implausible,
    sampler_for,
    with_little_noise,
)
from integrand.model import Model
from integrand.progress import Silent
from integrand.storage.run_directory import RunDirectory
from integrand.storage.run_store import RunStore
from known_posteriors import FunctionTarget

SHORT = {
    "n_inducing": 8,
    "chains": 2,
    "warmup": 40,
    "round_draws": 30,
    "max_draws": 40,
    "target_ess": 1e6,
    "predictive_draws": 10,
    "seed": 1,
}
METHODS = ["sgpr-hmc-fixed-z", pytest.param("gpr-hmc", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(40)


def on_disk(path):
    """Coordinates and chains of scouting, coordinates of rounds, and draws."""
    with RunDirectory.open(path) as run:
        saved = RunStore(run)
        return saved.scouted(), [coordinates for _, coordinates in saved.rounds()], saved.draws()


def quietly(function, *arguments, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return function(*arguments, **settings)


def fitted(data, **settings):
    return quietly(integrand.fit, *data, **(SHORT | settings))


class Interrupts(Silent):
    """Ctrl-C in a phase, after so many draws."""

    def __init__(self, where: str = "scouting", after: int = 50):
        self.at, self.where, self.after = "", where, after

    def phase(self, name: str) -> None:
        self.at = name

    def update(self, done: int, total: int, text: str = "") -> None:
        if self.at == self.where and done >= self.after:
            raise KeyboardInterrupt


# --- which sampler


@pytest.mark.parametrize(
    ("name", "fast_values", "nuisances", "sampler"),
    [
        ("default", True, 0, DefaultSampler()),
        ("default", False, 0, NUTS()),
        ("default", True, 3, NUTS()),
        ("nuts", True, 0, NUTS()),
        ("nested", True, 0, NUTS()),
        ("slice", True, 0, BlackJaxKernel("slice")),
    ],
)
def test_the_sampler_of_the_settings(name, fast_values, nuisances, sampler):
    target = FunctionTarget(lambda x: (0.0, x), dimension=2 + nuisances, n_theta=2)
    target.fast_values = fast_values
    assert sampler_for(Settings(sampler=name), target) == sampler


def by_independence_mh(posterior) -> bool:
    """Draws of independence proposals have no energy."""
    return bool(np.isnan(posterior.chains.energy).all())


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("sgpr-hmc-fixed-z", marks=pytest.mark.slow), "gpr-hmc"])
def test_independence_mh_and_nuts_draw_from_the_same_posterior(method, data):
    settings = {"method": method, "target_ess": 400.0, "max_draws": 5_000, "chains": 4}
    one, other = (fitted(data, sampler=sampler, **settings) for sampler in ("default", "nuts"))
    assert by_independence_mh(one)
    assert not by_independence_mh(other)
    for p in (one, other):
        assert p.verdict is not None
        assert p.verdict.ok, str(p.verdict)
    a, b = (p.chains.x.reshape(-1, p.chains.x.shape[2]) for p in (one, other))
    errors = np.sqrt(sum(x.var(axis=0) / p.verdict.convergence.ess_bulk for x, p in ((a, one), (b, other))))
    assert np.max(np.abs(a.mean(axis=0) - b.mean(axis=0)) / errors) < 4.5
    np.testing.assert_allclose(a.std(axis=0), b.std(axis=0), rtol=0.35)
    assert one.counts["values"] > one.chains.x[:, :, 0].size
    assert one.counts["gradients"] < other.counts["gradients"]


@pytest.mark.parametrize("method", ["sgpr-hmc", pytest.param("gpr-hmc", marks=pytest.mark.slow)])
def test_nuts_draws_where_few_proposals_are_accepted(method, data, monkeypatch):
    monkeypatch.setattr(sampling, "DefaultSampler", lambda: DefaultSampler(min_accepted=1.1))
    posterior = fitted(data, method=method)
    assert np.isfinite(posterior.chains.energy).all()
    assert any("NUTS made the final draws" in note for note in posterior.notes)


@pytest.mark.slow
def test_progress_goes_on_from_warm_up_to_draws(data):
    class Noted(Silent):
        def __init__(self):
            self.at, self.seen = "", []

        def phase(self, name):
            self.at = name

        def update(self, done, total, text=""):
            if self.at == "final draws":
                self.seen.append((done, text))

    noted = Noted()
    fitted(data, progress=noted, max_draws=200)
    done = [d for d, _ in noted.seen]
    assert done == sorted(done)
    drawing = [not text.startswith("warm-up") for _, text in noted.seen]
    assert drawing == sorted(drawing)
    assert drawing[-1]


# --- scouting: short chains before the final ones, for methods without rounds


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_ended_after_scouting_goes_on_from_there(method, data, tmp_path):
    first = fitted(data, method=method, run_dir=tmp_path / "run")
    scouted, _, _ = on_disk(tmp_path / "run")
    assert scouted is not None
    assert scouted[0].warp is not None
    assert scouted[1].x.shape == (2, 30, 4)
    for path in (tmp_path / "run").glob("draws_*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = quietly(integrand.resume, tmp_path / "run")
    np.testing.assert_array_equal(again.chains.x, first.chains.x)
    assert again.counts["gradients"] < first.counts["gradients"]  # nothing was scouted a second time


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_while_scouting_keeps_the_draws(method, data, tmp_path, monkeypatch):
    two_stages = DefaultSampler(proposals=IndependenceMH(well_accepted=2.0))
    monkeypatch.setattr(sampling, "DefaultSampler", lambda: two_stages)
    # As many draws are warm-up, of which nothing is kept.
    settings = {"round_draws": 1_000, "max_draws": 5_000, "progress": Interrupts(after=1_010)}
    posterior = fitted(data, method=method, run_dir=tmp_path / "run", **settings)
    assert posterior.verdict is not None
    assert "interrupted" in posterior.verdict.codes
    assert 2 <= posterior.chains.n_draws < 1_000
    scouted, _, drawn = on_disk(tmp_path / "run")
    assert scouted is None
    assert drawn is not None
    np.testing.assert_array_equal(drawn.x, posterior.chains.x)
    more = quietly(integrand.resume, tmp_path / "run", max_draws=posterior.chains.n_draws + 5)
    np.testing.assert_array_equal(more.chains.x[:, : drawn.n_draws], drawn.x)


@pytest.mark.slow
def test_other_samplers_do_not_scout(data, tmp_path):
    posterior = fitted(data, method="gpr-hmc", sampler="hmc", run_dir=tmp_path / "run")
    assert posterior.chains.n_draws == 40
    assert on_disk(tmp_path / "run")[0] is None


@pytest.mark.slow
def test_rounds_leave_warped_coordinates_on_disk(data, tmp_path):
    fitted(data, run_dir=tmp_path / "run")
    scouted, coordinates_of_each, _ = on_disk(tmp_path / "run")
    assert scouted is None
    assert all(coordinates.warp is not None for coordinates in coordinates_of_each)
    assert coordinates_of_each


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_scouting_draws_stand_in_where_the_final_chains_never_got_to_one(method, data, tmp_path):
    posterior = fitted(data, method=method, run_dir=tmp_path / "run", progress=Interrupts("final draws", 0))
    scouted, _, drawn = on_disk(tmp_path / "run")
    assert scouted is not None
    assert drawn is None
    np.testing.assert_array_equal(posterior.chains.x, scouted[1].x)
    late = quietly(integrand.resume, tmp_path / "run", max_minutes=1e-9)  # no time for more
    np.testing.assert_array_equal(late.chains.x, scouted[1].x)
    other = quietly(integrand.resume, tmp_path / "run", chains=3, max_minutes=10.0)
    assert other.chains.x.shape == (3, 40, 4)


def test_one_draw_a_round_is_enough_to_go_on(data):
    assert fitted(data, method="gpr-hmc", round_draws=1).chains.n_draws == 40


@pytest.mark.parametrize(
    ("change", "sampler"),
    [
        pytest.param({"sampler": "hmc"}, BlackJaxKernel, marks=pytest.mark.slow),
        ({"sampler": "default", "subsample": True, "subsample_rows": 20}, None),
    ],
    ids=["hmc", "many rows"],
)
def test_samplers_that_cannot_warp_get_affine_coordinates(change, sampler, data, tmp_path, monkeypatch):
    """Rounds by NUTS, ended before the final draws, gone on with by another sampler."""
    fitted(data, run_dir=tmp_path / "run", sampler="nuts", progress=Interrupts("final draws", 0))
    coordinates_of_each = on_disk(tmp_path / "run")[1]
    assert all(coordinates.warp is not None for coordinates in coordinates_of_each)
    seen, kind = [], sampler or DelayedAcceptance
    run = kind.run

    def spy(self, target, starts, coordinates, plan, callback):
        seen.append(coordinates)
        return run(self, target, starts, coordinates, plan, callback)

    monkeypatch.setattr(kind, "run", spy)
    posterior = quietly(integrand.resume, tmp_path / "run", **change)
    assert posterior.chains.n_draws == 40
    assert seen
    assert all(coordinates.warp is None for coordinates in seen)


# --- starts and pilots


def context_of(**settings) -> FitContext:
    """The record of a fit that has no rows worth the name."""
    X = np.linspace(-1.0, 1.0, 5)[:, None]
    problem = Problem(Model(RBF(), 1), Dataset.of(X, X[:, 0]), Standardiser.identity(1), Settings(**settings))
    return FitContext(problem, RunStore(None), Silent())


def walled(at: float) -> FunctionTarget:
    """A standard normal in two dimensions that ends, in the first, at some distance."""
    return FunctionTarget(
        lambda x: (-0.5 * float(x @ x), -x) if abs(x[0]) < at else (-np.inf, np.zeros(2)), dimension=2
    )


def test_starts_are_wider_than_the_posterior_and_the_seed_decides():
    target, white = walled(np.inf), Coordinates.identity(2)
    starts = dispersed_starts(context_of(chains=400), target, white, (1, 0))
    assert starts.shape == (400, 2)
    np.testing.assert_allclose(starts.std(axis=0), 1.5, rtol=0.15)
    np.testing.assert_array_equal(starts, dispersed_starts(context_of(chains=400), target, white, (1, 0)))
    assert not np.isin(starts, dispersed_starts(context_of(chains=400), target, white, (1, 1))).any()
    assert not np.isin(starts, dispersed_starts(context_of(chains=400, seed=1), target, white, (1, 0))).any()


@pytest.mark.parametrize("wall", [0.5, 1e-5])
def test_starts_without_a_density_are_moved_towards_the_centre(wall):
    starts = dispersed_starts(context_of(chains=50), walled(wall), Coordinates.identity(2), (3,))
    assert np.abs(starts[:, 0]).max() < wall


@pytest.mark.parametrize(
    ("value", "wrong"), [(-115.0, False), (-125.0, True), (np.nan, True), (-np.inf, True), (np.inf, True)]
)
def test_a_start_a_hundred_nats_below_the_mode_is_implausible(value, wrong):
    assert implausible(value, 0.0, 2) == wrong


@pytest.mark.parametrize(("divergences", "raised"), [(0, False), (1, True), (30, True)])
def test_target_acceptance_is_raised_where_a_pilot_diverges(divergences, raised):
    """One of sixty trajectories is more than a hundredth."""

    class Diverging(NUTS):
        def pilot(self, target, starts, coordinates, plan, callback):
            zero = np.zeros((2, 30))
            diverging = np.arange(60).reshape(2, 30) < divergences
            ones = zero.astype(int) + 1
            return Run(Chains(np.zeros((2, 30, 2)), zero, zero, zero, ones, ones, diverging, zero + 1.0))

    context = context_of(chains=2, round_draws=30)
    draw_pilot(context, walled(np.inf), Diverging(), Coordinates.identity(2), 1)
    assert context.target_accept == (0.9 if raised else 0.7)
    assert bool(context.notes) == raised
    assert all("of round 2 diverged: target_accept was raised to 0.9" in note for note in context.notes)


def test_every_second_point_has_little_noise_and_short_lengthscales():
    model = Model(RBF() + RBF(), 2)
    points = np.tile(model.start(), (4, 1))
    moved = with_little_noise(model, points)
    np.testing.assert_array_equal(moved[1::2], points[1::2])
    changed = {p.name: (moved - points)[::2, p.start : p.start + p.size] for p in model.parameters}
    np.testing.assert_allclose(changed["noise"], -3.0)
    for name, change in changed.items():
        if name.endswith("lengthscale"):
            np.testing.assert_allclose(change[0], -1.0)
            np.testing.assert_allclose(change[1], -2.0)
        elif name != "noise":
            np.testing.assert_array_equal(change, 0.0)


@pytest.mark.slow
def test_two_explanations_are_found_and_drawn_in_proportion():
    """Much noise around a smooth function, or little noise: chains, proposals and quadrature agree."""
    X, y, preset = random_set(793)
    grid = quadrature(exact_likelihood(X, y), Model(RBF(), 1, priors=preset))
    at, _, mass = grid.valley(2)
    posterior = quietly(integrand.fit, X, y, RBF(), method="gpr-hmc", priors=preset, seed=1)
    drawn = (posterior.chains.x[:, :, 2] < at).mean()
    assert 0.02 < mass < 0.25
    assert abs(drawn - mass) < 0.06
    assert posterior.evidence is not None
    assert abs(posterior.evidence[0] - grid.log_evidence) < 6.0 * posterior.evidence[1] + 0.02
    assert not posterior.evidence_is_bound


# --- the monitor of final chains


def chains_of(x) -> Chains:
    zero = np.zeros(x.shape[:2])
    return Chains(x, x[:, :, 0], zero, zero, zero.astype(int), zero.astype(int), zero.astype(bool), zero)


def monitor(save=lambda chains: None, before=None, target_ess=np.inf, over_time=lambda: False):
    rule = StoppingRule(1, target_ess)
    return ConvergenceMonitor(before, rule, 0, save=save, over_time=over_time, progress=Silent())


def normal_draws(n, seed=0) -> Chains:
    return chains_of(np.random.default_rng(seed).standard_normal((4, n, 1)))


@pytest.mark.parametrize(("seconds", "saved"), [(0.0, [6, 12, 18, 24, 30, 36, 42, 48, 54, 60, 66]), (1.0, [6, 60])])
def test_saving_takes_little_of_the_time(monkeypatch, seconds, saved):
    """Every five seconds; where a save takes one, it has to wait for fifty."""
    now, found = [0.0], []

    def save(chains):
        now[0] += seconds
        found.append(at)

    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=lambda: now[0]))
    final = monitor(save)
    for at in range(0, 70, 6):
        assert final(Snapshot(chains_of(np.zeros((2, 10, 1))), 10, float(at))) is None
    assert found == saved


def test_chains_that_go_on_with_a_clock_of_their_own_are_saved_as_often():
    found = []
    final = monitor(lambda _: found.append(at))
    for at in (0, 6, 58, 60, 2, 4, 6, 10):
        final(Snapshot(chains_of(np.zeros((2, 10, 1))), 10, float(at)))
    assert found == [6, 58, 4, 10]


def test_how_many_draws_are_kept_does_not_depend_on_when_they_are_seen():
    draws = normal_draws(900)
    kept = []
    for every in (1, 13, 100, 450, 900):
        final, n, keep = monitor(target_ess=1_500.0), 0, None
        while keep is None:
            n += every
            keep = final(Snapshot(draws.first(n), n, 0.0))
        kept.append(keep)
    assert len(set(kept)) == 1
    assert 375 <= kept[0] < 900


def test_draws_on_disk_count_but_are_not_among_those_to_keep():
    draws = normal_draws(900)
    before, later = draws.first(300), Chains(*(a[:, 300:] for a in draws))
    whole = monitor(target_ess=1_500.0)(Snapshot(draws, 900, 0.0))
    assert monitor(target_ess=1_500.0, before=before)(Snapshot(later, 600, 0.0)) == whole - 300


def test_when_the_time_is_up_all_draws_are_kept():
    assert monitor(over_time=lambda: True)(Snapshot(normal_draws(7), 7, 0.0)) == 7
