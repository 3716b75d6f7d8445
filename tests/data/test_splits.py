import numpy as np
import pytest

from integrand.data.catalogue import SOURCES
from integrand.data.splits import k_folds, paper_split, random_split
from integrand.errors import InputError

SIZES = {
    "boston": (404, 102),
    "boston_as_published": (404, 102),
    "concrete": (824, 206),
    "energy": (614, 154),
    "winered": (1279, 320),
    "yacht": (245, 62),
    "elevators": (13279, 3320),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sizes_of_the_paper(name):
    source = SOURCES[name]
    train, test, inducing = paper_split(source.paper_rows or source.shape[0], 0)
    assert (len(train), len(test)) == SIZES[name]
    assert len(inducing) == 100


@pytest.mark.parametrize(("n_rows", "first"), [(506, [8, 504, 426, 106, 107]), (307, [136, 40, 7, 207, 265])])
def test_first_training_rows_of_the_paper(n_rows, first):
    assert paper_split(n_rows, 0).train[:5].tolist() == first


def test_inducing_rows_of_yacht_repeat_as_in_the_paper():
    repeats = [100 - len(np.unique(paper_split(307, k).inducing)) for k in range(10)]
    assert (min(repeats), max(repeats)) == (15, 22)


@pytest.mark.parametrize("k", [0, 3, 9])
def test_same_stream_as_the_global_seed(k):
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(173 + k)  # noqa: NPY002
        rows = np.arange(307)
        np.random.shuffle(rows)  # noqa: NPY002
        inducing = np.random.randint(0, 245, 100)  # noqa: NPY002
    finally:
        np.random.set_state(state)  # noqa: NPY002
    split = paper_split(307, k)
    np.testing.assert_array_equal(np.concatenate([split.train, split.test]), rows)
    np.testing.assert_array_equal(split.inducing, inducing)


def test_paper_split_leaves_the_global_stream_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    paper_split(100, 0)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_number_of_inducing_rows_does_not_change_the_split():
    few, many = paper_split(50, 1, n_inducing=5), paper_split(50, 1, n_inducing=30)
    np.testing.assert_array_equal(few.train, many.train)
    np.testing.assert_array_equal(few.inducing, many.inducing[:5])
    assert many.inducing.max() < len(many.train)


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
    ("call", "message"),
    [
        (lambda: paper_split(1, 0), "n_rows must be at least 2"),
        (lambda: paper_split(10, -1), "k must be at least 0"),
        (lambda: paper_split(10, 0, n_inducing=-1), "n_inducing"),
        (lambda: paper_split(10.0, 0), "n_rows must be a whole number"),
        (lambda: random_split(10, 0.0, 0), "test_fraction must lie between 0 and 1"),
        (lambda: random_split(10, 20, 0), "try 0.2"),
        (lambda: random_split(10, float("nan"), 0), "test_fraction"),
        (lambda: random_split(10, 0.2, -1), "seed"),
        (lambda: k_folds(10, 1, 0), "folds must be at least 2"),
        (lambda: k_folds(3, 4, 0), "use fewer folds"),
    ],
)
def test_errors_name_the_cause(call, message):
    with pytest.raises(InputError, match=message):
        call()
