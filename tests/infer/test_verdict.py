"""What is said of draws: whether they can be trusted, and why not."""

import numpy as np
import pytest

from integrand.errors import NotConvergedError
from integrand.infer.base import Chains, Plan, keep_going
from integrand.infer.convergence import r_hat
from integrand.infer.coordinates import Coordinates
from integrand.infer.nuts import NUTS
from integrand.infer.verdict import optimised, verdict
from known_posteriors import FunctionTarget

NAMES = ("lengthscale[age]", "scale", "noise")

# The codes that scripts may rely on: a new one is added here, none is renamed.
CODES = {
    "budget",
    "chains-disagree",
    "depth",
    "divergences",
    "e-bfmi",
    "ess-bulk",
    "ess-tail",
    "interrupted",
    "no-draws",
    "one-chain",
    "r-hat",
    "rejections",
    "stuck-chain",
}


def chains_of(x, seed=0, **others):
    """Draws with statistics as a healthy sampler gives them, unless told otherwise."""
    rng = np.random.default_rng(seed)
    shape = x.shape[:2]
    statistics = {
        "log_density": rng.standard_normal(shape),
        "energy": rng.standard_normal(shape),
        "acceptance": np.full(shape, 0.8),
        "n_steps": np.full(shape, 7),
        "depth": np.full(shape, 3),
        "diverging": np.zeros(shape, bool),
        "step_size": np.full(shape, 0.5),
    }
    return Chains(x, **(statistics | others))


def independent(n=400, seed=1):
    return np.random.default_rng(seed).standard_normal((4, n, 3))


def judge(chains, **keywords):
    return verdict(chains, NAMES, **({"target_ess": 400.0} | keywords))


def bimodal():
    x = independent()
    x[1, :, 1] += 5.0
    return chains_of(x)


def stuck():
    x = independent()
    x[2] = 0.3
    return chains_of(x)


def walk():
    """A random walk: every chain moves, none mixes."""
    return chains_of(np.cumsum(0.1 * independent(), axis=1))


def diverging(share):
    draws = np.zeros((4, 400), bool)
    draws.flat[: int(share * draws.size)] = True
    return chains_of(independent(), diverging=draws)


def independence_draws(divergences):
    """Of independence MH: one draw in sixteen has a trajectory."""
    steps = np.zeros((4, 400), int)
    steps.flat[::16] = 3
    draws = np.zeros((4, 400), bool)
    draws.flat[: 16 * divergences : 16] = True
    return chains_of(independent(), diverging=draws, n_steps=steps)


def sluggish_energy():
    return chains_of(independent(), energy=np.cumsum(independent()[:, :, 0], axis=1))


CASES = {
    "bimodal": (bimodal, {}, {"chains-disagree", "r-hat", "ess-bulk"}, False),
    "stuck": (stuck, {}, {"stuck-chain", "r-hat"}, False),
    "random walk": (walk, {}, {"r-hat", "ess-bulk", "ess-tail"}, False),
    "few": (lambda: chains_of(independent(3)), {}, {"no-draws"}, False),
    "short": (lambda: chains_of(independent(40)), {}, {"ess-bulk", "ess-tail"}, False),
    "many divergences": (lambda: diverging(0.02), {}, {"divergences"}, False),
    "one divergence": (lambda: diverging(1 / 1600), {}, {"divergences"}, True),
    "one of few trajectories": (lambda: independence_draws(1), {}, {"divergences"}, True),
    "two of few trajectories": (lambda: independence_draws(2), {}, {"divergences"}, True),
    "five of few trajectories": (lambda: independence_draws(5), {}, {"divergences"}, False),
    "energy": (sluggish_energy, {}, {"e-bfmi"}, False),
    "rejections": (lambda: chains_of(independent()), {"rejections": 600, "evaluations": 10_000}, {"rejections"}, False),
    "few rejections": (lambda: chains_of(independent()), {"rejections": 400, "evaluations": 10_000}, set(), True),
    "interrupted": (lambda: chains_of(independent()), {"ended": "interrupted"}, {"interrupted"}, False),
    "budget": (lambda: chains_of(independent()), {"ended": "budget"}, {"budget"}, True),
    "deep": (lambda: chains_of(independent(), depth=np.full((4, 400), 8)), {}, {"depth"}, True),
    "one chain": (lambda: chains_of(np.concatenate(independent())[None]), {}, {"one-chain"}, True),
    "healthy": (lambda: chains_of(independent()), {}, set(), True),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict(case):
    chains, keywords, codes, ok = CASES[case]
    found = judge(chains(), **keywords)
    assert codes <= set(found.codes)
    assert found.ok == ok
    if ok:
        assert set(found.codes) == codes
        found.raise_if_bad()
    else:
        with pytest.raises(NotConvergedError, match="Not to be trusted"):
            found.raise_if_bad()
    for finding in found.findings:
        assert finding.sentence.endswith(".")
        assert finding.sentence in str(found)
        assert finding.remedy in str(found)


def test_codes_are_those_that_are_promised():
    found = {code for make, keywords, _, _ in CASES.values() for code in judge(make(), **keywords).codes}
    assert found == CODES


def test_a_healthy_verdict_says_the_numbers():
    found = judge(chains_of(independent()))
    assert str(found).startswith("Converged: R-hat at most 1.0")
    assert "0 divergences" in str(found)


def test_the_hyperparameter_and_the_chain_are_named():
    disagree = next(f for f in judge(bimodal()).findings if f.code == "chains-disagree")
    assert "scale" in disagree.sentence
    assert "chain 1 " in disagree.sentence
    assert "noise" not in disagree.sentence
    mixing = next(f for f in judge(bimodal()).findings if f.code == "r-hat")
    assert "scale (" in mixing.sentence
    assert "noise" not in mixing.sentence
    assert any("Chain 2 never moved" in f.sentence for f in judge(stuck()).findings)


@pytest.mark.parametrize("ended", ["interrupted", "budget"])
def test_too_few_draws_still_say_why_there_are_no_more(ended):
    found = judge(chains_of(independent(2)), ended=ended)
    assert found.codes == ("no-draws", ended)
    assert not found.ok


def test_no_draws_at_all():
    found = judge(chains_of(np.zeros((4, 0, 3))), ended="interrupted")
    assert not found.ok
    assert "0 draws" in str(found)


def test_one_is_singular():
    assert str(optimised([], ["noise"], 0, 1)) == "Optimised: the optimiser took 1 step."
    assert "Each chain has only 1 draw." in str(judge(chains_of(independent(n=1))))


def test_target_ess_is_the_callers():
    chains = chains_of(independent(200, seed=2))
    assert not judge(chains, target_ess=1000.0).ok
    assert judge(chains, target_ess=200.0).ok


# --- what a sampler gives on targets that are known to be hard


def by_nuts(log_density, starts, draws):
    """Draws that begin at these points."""
    n = starts.shape[1]
    target, plan = FunctionTarget(log_density, dimension=n), Plan(warmup=100, draws=draws, seed=(0,))
    return NUTS().run(target, starts, Coordinates.identity(n), plan, keep_going).chains


def test_neals_funnel_is_not_trusted():
    def funnel(x):
        v, z = x[0], x[1:]
        value = -(v**2) / 18.0 - 0.5 * len(z) * v - 0.5 * float(z @ z) * np.exp(-v)
        return float(value), np.concatenate(
            [[-v / 9.0 - 0.5 * len(z) + 0.5 * float(z @ z) * np.exp(-v)], -z * np.exp(-v)]
        )

    starts = np.random.default_rng(0).standard_normal((4, 7))
    chains = by_nuts(funnel, starts, 150)
    found = verdict(chains, [f"x{i}" for i in range(7)], target_ess=50.0)
    assert not found.ok
    serious = {f.code for f in found.findings if f.serious}
    assert serious & {"e-bfmi", "divergences", "r-hat", "ess-bulk", "ess-tail"}


def test_two_far_modes_are_not_trusted():
    def two(x):
        """An equal mixture of N(-6, 1) and N(6, 1) in the second coordinate; the others are standard normal."""
        a, b = -0.5 * (x[1] - 6.0) ** 2, -0.5 * (x[1] + 6.0) ** 2
        weight = 1.0 / (1.0 + np.exp(np.clip(b - a, -700, 700)))
        gradient = -x
        gradient[1] = -weight * (x[1] - 6.0) - (1.0 - weight) * (x[1] + 6.0)
        return float(np.logaddexp(a, b) - 0.5 * (x[0] ** 2 + x[2] ** 2)), gradient

    starts = np.array([[0.0, 6.0, 0.0], [0.0, 6.5, 0.0], [0.0, -6.0, 0.0], [0.0, 5.5, 0.0]])
    chains = by_nuts(two, starts, 200)
    found = judge(chains)
    assert not found.ok
    disagree = next(f for f in found.findings if f.code == "chains-disagree")
    assert "scale" in disagree.sentence
    assert "chain 2 " in disagree.sentence


@pytest.mark.parametrize(("wanted", "text"), [(1.059, "1.059"), (1.0104, "1.0104"), (1.01004, "1.01004")])
def test_an_r_hat_above_its_limit_does_not_look_like_it(wanted, text):
    low, high, x = 0.0, 2.0, independent()
    first = x[0, :, 0].copy()
    while high - low > 1e-9:  # the first chain is moved aside until R-hat is what is wanted
        x[0, :, 0] = first + 0.5 * (low + high)
        low, high = (low, 0.5 * (low + high)) if r_hat(x)[0] > wanted else (0.5 * (low + high), high)
    sentence = next(f.sentence for f in judge(chains_of(x)).findings if f.code == "r-hat")
    assert f"lengthscale[age] ({text})" in sentence
