"""The splits of `compare` and `demo`: every row is tested once, and the seed decides."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from integrand.cli.app import app
from integrand.cli.compare import _parts, answer_of, k_folds, random_split
from integrand.errors import InputError


@pytest.mark.parametrize(("n_rows", "fraction", "n_test"), [(10, 0.2, 2), (3, 0.01, 1), (3, 0.99, 2), (2, 0.5, 1)])
def test_random_split_covers_each_row_once(n_rows, fraction, n_test):
    train, test = random_split(n_rows, fraction, seed=4)
    assert sorted([*train, *test]) == list(range(n_rows))
    assert len(test) == n_test


def test_seeds_decide():
    np.testing.assert_array_equal(random_split(100, 0.3, 1).test, random_split(100, 0.3, 1).test)
    assert random_split(100, 0.3, 1).test.tolist() != random_split(100, 0.3, 2).test.tolist()
    assert k_folds(100, 5, 1)[0].test.tolist() != k_folds(100, 5, 2)[0].test.tolist()


@pytest.mark.parametrize(("n_rows", "folds"), [(10, 2), (11, 3), (5, 5)])
def test_folds_test_each_row_once(n_rows, folds):
    splits = k_folds(n_rows, folds, seed=0)
    assert len(splits) == folds
    assert sorted(np.concatenate([split.test for split in splits])) == list(range(n_rows))
    for train, test in splits:
        assert sorted([*train, *test]) == list(range(n_rows))
    sizes = [len(split.test) for split in splits]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("folds", "seed", "message"),
    [(1, 0, "folds must be at least 2"), (4, 0, "use fewer folds"), (2, -1, "seed must be at least 0")],
)
def test_errors_name_the_cause(folds, seed, message):
    with pytest.raises(InputError, match=message):
        k_folds(3, folds, seed)


def scored(**means):
    """Scores of 100 rows with these means of -log density; differences between methods are certain."""
    noise = np.random.default_rng(0).standard_normal(100)
    return {name.replace("_", "-"): {"nlpd": mean + noise, "se": noise**2} for name, mean in means.items()}


@pytest.mark.parametrize(
    ("means", "sentence"),
    [
        ({"ml2": 1.0, "map": 0.5, "sgpr_hmc": 0.9}, "Optimise: map predicts better than sgpr-hmc by 0.400 nats"),
        ({"ml2": 1.0, "map": 0.9, "sgpr_hmc": 0.5}, "Integrate: sgpr-hmc predicts better than map by 0.400 nats"),
        ({"sgpr_hmc": 1.0, "ml2": 0.9, "map": 1.2}, "Optimise: ml2 predicts better than sgpr-hmc by 0.100 nats"),
        ({"ml2": 1.0, "map": 0.9}, "Best: map predicts better than ml2 by 0.100 nats"),
        ({"ml2": 1.0, "map": 1.0}, "No clear difference: "),
    ],
)
def test_the_best_method_is_named(means, sentence):
    scores = scored(**means)
    assert answer_of(list(scores), scores).startswith(sentence)


def test_a_list_of_kernels_is_cut_at_commas_outside_of_parentheses():
    text = "rbf, rbf(active=(0,1), ard=False) + linear(scale=gamma(2, 1)),periodic*rbf ,"
    assert _parts(text) == ["rbf", "rbf(active=(0,1), ard=False) + linear(scale=gamma(2, 1))", "periodic*rbf"]


def compare(*arguments):
    return CliRunner().invoke(app, ["compare", "t.csv", "--target", "y", *arguments])


@pytest.mark.slow
def test_kernels_and_priors_are_ranked_by_leave_one_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, 50)
    pd.DataFrame({"x": x, "y": np.sin(2 * x) + 0.2 * rng.standard_normal(50)}).to_csv("t.csv", index=False)
    few = ["--inducing", "10", "--target-ess", "20"]
    facts = json.loads(compare("--kernels", "linear, rbf", "--json", *few).stdout)
    assert facts["best"] == "rbf"
    assert list(facts["models"]) == ["rbf", "linear"]
    assert facts["models"]["linear"]["difference"] < -10.0
    assert facts["answer"].startswith("rbf predicts best")
    done = compare("--priors", "paper, pooled", *few)
    assert "paper" in done.stdout.splitlines()[1] + done.stdout.splitlines()[2]
    for wrong, message in (
        (["--kernels", "rbf"], "two different models"),
        (["--kernels", "rbf, linear", "--methods", "ml2"], "draws no hyperparameters"),
        (["--kernels", "rbf, linear", "--methods", "ml2,map"], "one method"),
        (["--kernels", "rbf, curve"], "curve"),
    ):
        result = compare(*wrong)
        assert result.exit_code == 2
        assert message in result.output
