import jax
import jax.numpy as jnp
import numpy as np
import pytest

from integrand import Dataset, InputError
from integrand.data.checks import checked_matrix
from integrand.data.dataset import block_rows_for

pytestmark = pytest.mark.usefixtures("strict_float64")

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((23, 3)), rng.standard_normal(23)


def summand(rows):
    return {"xy": rows.masked(rows.y) @ rows.X, "count": jnp.sum(rows.masked(jnp.ones(len(rows.y))))}


# ---- sums over rows


@pytest.mark.parametrize("block_rows", [1, 2, 7, 22, 23, 24, 1000])
def test_sum_does_not_depend_on_the_blocks(block_rows):
    data = Dataset.of(X, Y, block_rows)
    for total in (data.sum(summand), jax.jit(lambda data: data.sum(summand))(data)):
        np.testing.assert_allclose(total["xy"], Y @ X, rtol=1e-13)
        assert total["count"] == 23


@pytest.mark.parametrize("block_rows", [1, 2, 7, 22, 23, 24, 1000])
def test_blocks_are_no_longer_than_asked_and_padding_is_short(block_rows):
    data = Dataset.of(X, Y, block_rows)
    blocks, length = data.blocks.y.shape
    assert length <= block_rows
    assert data.n_rows == 23
    assert data.n_padded == blocks * length
    assert data.n_padded - 23 < blocks
    assert (data.blocks.weight is None) is (data.n_padded == 23)


@pytest.mark.parametrize("block_rows", [1, 7, 22, 1000])
def test_arrays_are_the_rows_in_order(block_rows):
    again_X, again_y = Dataset.of(X, Y, block_rows).arrays()
    assert np.array_equal(again_X, X)
    assert np.array_equal(again_y, Y)


@pytest.mark.parametrize("block_rows", [7, 1000])
def test_what_a_pass_keeps_comes_back_with_its_block(block_rows):
    data = Dataset.of(X, Y, block_rows)

    def first(rows):
        return jnp.sum(rows.y), rows.X[:, 0]

    def second(rows, column):
        return jnp.sum((column - rows.X[:, 0]) ** 2), column + 1.0

    total, kept = data.sum_and_keep(first)
    assert float(total) == pytest.approx(Y.sum())
    assert kept.shape == data.blocks.y.shape
    difference, shifted = data.sum_and_keep(second, kept)
    assert difference == 0.0
    assert np.array_equal(shifted, kept + 1.0)
    assert data.sum(lambda rows, a, b: jnp.sum(b - a), kept, shifted) == data.n_padded


def test_padding_does_not_reach_the_sum():
    data = Dataset.of(X, Y, 7)
    assert float(data.sum(lambda rows: jnp.sum(rows.masked(jnp.full(len(rows.y), 3.0))))) == 69.0
    matrix = data.sum(lambda rows: jnp.sum(rows.masked(jnp.ones((2, len(rows.y)))), axis=1))
    assert matrix.tolist() == [23.0, 23.0]


def test_a_dataset_passes_through_jit_without_recompiling():
    traces = []

    @jax.jit
    def total(data):
        traces.append(data)
        return data.sum(lambda rows: jnp.sum(rows.y))

    total(Dataset.of(X, Y, 7))
    total(Dataset.of(X + 1, Y + 1, 7))
    assert len(traces) == 1


def test_float64_without_a_scope_of_the_caller():
    with jax.enable_x64(False):
        data = Dataset.of(X, Y, 7)
        assert data.blocks.X.dtype == data.blocks.y.dtype == data.blocks.weight.dtype == jnp.float64


def test_blocks_fit_the_cache():
    assert block_rows_for(100) * 100 * 8 <= 4 * 2**20
    assert block_rows_for(10**6) == 64
    assert block_rows_for(0) > 0


# ---- input of every kind


@pytest.mark.parametrize(
    "convert",
    [
        lambda a: a.tolist(),
        lambda a: np.asfortranarray(a),
        lambda a: a.astype(np.float32),
        lambda a: jnp.asarray(a),
        lambda a: a.astype(object),
        lambda a: a[::-1][::-1],
    ],
)
def test_kinds_of_arrays(convert):
    again_X, again_y = Dataset.of(convert(X), convert(Y)).arrays()
    assert again_X.dtype == again_y.dtype == jnp.float64
    np.testing.assert_allclose(again_X, X, rtol=1e-6)
    np.testing.assert_allclose(again_y, Y, rtol=1e-6)


def test_integers_and_booleans_become_numbers():
    again_X, again_y = Dataset.of(X > 0, np.arange(23)).arrays()
    assert np.array_equal(again_X, (X > 0).astype(float))
    assert np.array_equal(again_y, np.arange(23.0))


def test_read_only_input_is_neither_refused_nor_changed():
    fixed_X, fixed_y = X.copy(), Y.copy()
    fixed_X.flags.writeable = fixed_y.flags.writeable = False
    Dataset.of(fixed_X, fixed_y, 7)
    assert np.array_equal(fixed_X, X)


def test_later_changes_of_the_input_do_not_reach_the_dataset():
    mine = X.copy()
    data = Dataset.of(mine, Y)
    mine[:] = 0.0
    assert np.array_equal(data.arrays()[0], X)


def test_one_row_and_one_column():
    data = Dataset.of([[2.0]], [3.0])
    assert (data.n_rows, data.n_columns) == (1, 1)
    assert data.sum(lambda rows: rows.y @ rows.X).tolist() == [6.0]


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (X[:, 0], Y, r"X must be two-dimensional \(rows, columns\), but has shape \(23,\): use X.reshape\(-1, 1\)"),
        (X[None], Y, r"X must be two-dimensional .*\(1, 23, 3\)"),
        (3.0, Y, r"X must be two-dimensional .*\(\)"),
        (X, Y[:, None], r"y must be one-dimensional, but has shape \(23, 1\): use y.ravel\(\)"),
        (X, np.column_stack([Y, Y]), r"y must be one-dimensional, but has shape \(23, 2\)$"),
        (X, 1.0, "y must be one-dimensional"),
        (X, Y[:-1], "X has 23 rows and y has 22"),
        (X[:0], Y[:0], r"X is empty: its shape is \(0, 3\)"),
        (X[:, :0], Y, r"X is empty: its shape is \(23, 0\)"),
        ([], [], "X must be two-dimensional"),
        (changed(X, (4, 1), np.nan), Y, "X has 1 NaN or infinite values, the first at row 4, column 1"),
        (changed(X, (4, 1), -np.inf), Y, "X has 1 NaN or infinite values"),
        (X, changed(Y, slice(3, 5), np.nan), "y has 2 NaN or infinite values, the first at row 3"),
        (X, changed(Y, 3, np.inf), "y has 1 NaN or infinite values"),
        (np.full((23, 3), "red"), Y, "X holds values that are not numbers .*encode or drop"),
        (X, ["red"] * 23, "the target holds words, such as 'red'"),
        ([[1.0, None]] * 23, Y, "X has 23 NaN or infinite values"),
        ([[1.0, 2.0], [3.0]], Y[:2], "X holds values that are not numbers"),
        (X + 1j, Y, "X holds complex numbers"),
        (X, Y + 1j, "y holds complex numbers"),
        (None, Y, "X "),
        ({"a": 1}, Y, "X holds values that are not numbers"),
    ],
)
def test_errors_name_the_cause(X, y, message):
    with pytest.raises(InputError, match=message):
        Dataset.of(X, y)


@pytest.mark.parametrize("block_rows", [0, -1])
def test_blocks_of_nothing_are_refused(block_rows):
    with pytest.raises(InputError, match="block_rows must be at least 1"):
        Dataset.of(X, Y, block_rows)


def test_the_name_of_the_matrix_is_in_the_message():
    with pytest.raises(InputError, match="Z has 69 NaN"):
        checked_matrix(np.full((23, 3), np.nan), "Z")
