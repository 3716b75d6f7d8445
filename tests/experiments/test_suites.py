"""Suites: what they name exists, and what they share is run once."""

import pytest

from experiments.catalogue import SOURCES
from experiments.runner import arm_names, named_arm, tasks_of
from experiments.suites import PROTOCOLS, SUITES, chosen, protocol_arm, split_numbers
from experiments.tables import TABLES
from integrand import METHODS, InputError
from integrand.methods.problem import Settings
from integrand.priors import DEFAULT, PRESETS


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_everything_a_suite_names_exists(suite):
    assert suite.name in TABLES
    assert len({arm.name for arm in suite.arms}) == len({arm.key for arm in suite.arms}) == len(suite.arms)
    for arm in suite.arms:
        assert arm.method in METHODS
        assert arm.priors in PRESETS
        Settings(**arm.settings)
        assert named_arm(suite, arm.key) == arm.name
    for name in suite.paper_arms:
        assert name in [arm.name for arm in suite.arms]
    if suite.kind == "regression":
        assert set(suite.datasets) <= set(SOURCES)


def paths(name, protocol="default"):
    suite = SUITES[name]
    return {t.path for t in tasks_of(suite, protocol, suite.datasets, arm_names(suite, protocol), suite.splits)}


def test_suites_share_what_they_have_in_common():
    assert paths("uci") & paths("ablation")
    assert len(paths("priors") & paths("uci")) == 6 * 10 * 2  # SGPR, and SGPR + HMC under the default preset
    assert not paths("uci") & paths("runtime")  # timed fits stand alone
    assert not paths("uci") & paths("uci", "paper")


def test_the_paper_s_protocol_has_its_priors_and_no_restarts():
    arm = protocol_arm(SUITES["uci"].arms[1], "paper")
    assert arm.priors == "paper"
    assert not arm.settings
    with pytest.raises(InputError, match="no schedule"):
        arm_names(SUITES["priors"], "paper")
    assert DEFAULT in PRESETS
    assert PROTOCOLS == ("default", "paper")


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-9", tuple(range(10))), ("4", (4,)), ("0,2,5-7", (0, 2, 5, 6, 7)), ("1,1", (1,))]
)
def test_split_numbers(text, numbers):
    assert split_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "-2", "0-x"])
def test_split_numbers_refuses(text):
    with pytest.raises(InputError, match="--splits"):
        split_numbers(text)


def test_chosen_refuses_what_is_not_there():
    assert chosen("", ("a", "b"), "data set") == ("a", "b")
    assert chosen("b", ("a", "b"), "data set") == ("b",)
    with pytest.raises(InputError, match="choose from a, b"):
        chosen("c", ("a", "b"), "data set")
