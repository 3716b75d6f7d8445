"""Kernels against other ways to the same numbers, and as trees of numbers, priors and open fields."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.gaussian_process.kernels as sk

import integrand
from integrand import (
    RBF,
    Constant,
    Gamma,
    HalfCauchy,
    InputError,
    Linear,
    LogNormal,
    Matern12,
    Matern32,
    Matern52,
    Model,
    Periodic,
    Polynomial,
    RationalQuadratic,
)
from integrand.kernels import Product, Sum
from integrand.priors import bare
from reference import KERNELS, LONG, central_differences, covariance, largest_error, with_arrays

pytestmark = pytest.mark.usefixtures("strict_float64")


def inputs(seed=0, rows=(7, 5), n_columns=3):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.standard_normal((n, n_columns))) for n in rows)


def close(a, b, tolerance=1e-13):
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert np.max(np.abs(a - b)) <= tolerance * max(1.0, np.max(np.abs(b)))


# ---- against the formulas in 80 bits


@jax.jit
def evaluations(kernel, X1, X2):
    return kernel(X1, X2), kernel.gram(X1), kernel.diagonal(X1)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_values_are_those_of_the_formula(kernel):
    kernel, (X1, X2) = with_arrays(kernel), inputs()
    X1 = jnp.concatenate([X1, X1[:2]])  # rows 0 and 7, 1 and 8 coincide
    K, gram, diagonal = evaluations(kernel, X1, X2)
    close(K, covariance(kernel, X1, X2))
    close(gram, covariance(kernel, X1, X1))
    close(diagonal, np.diagonal(covariance(kernel, X1, X1)))
    assert np.array_equal(gram, gram.T)  # also of sums and products
    assert np.linalg.eigvalsh(gram)[0] >= -1e-12 * np.trace(gram)


@pytest.mark.parametrize("name", ["rbf", "periodic", "linear ard", "sum of products"])
def test_plain_numbers_do_as_well_as_arrays(name):
    kernel, (X1, X2) = KERNELS[name], inputs()
    close(kernel(X1, X2), covariance(kernel, X1, X2))
    close(kernel.gram(X1), covariance(kernel, X1, X1))


# tests/contracts holds each kernel's gradient against its own values: one of each kind is held against the formula.
FEW = ("rbf", "matern12", "periodic", "sum of products")
SOME = [pytest.param(k, id=name, marks=() if name in FEW else pytest.mark.slow) for name, k in KERNELS.items()]


@pytest.mark.parametrize("kernel", SOME)
def test_gradient_is_that_of_the_formula(kernel):
    X1, X2 = inputs()
    rng = np.random.default_rng(1)
    cotangent, for_gram, for_diagonal = (rng.standard_normal(shape) for shape in ((7, 5), (7, 7), 7))

    def cross(kernel, X1, X2):
        return jnp.sum(cotangent * kernel(X1, X2))

    def within(kernel, X):
        return jnp.sum(for_gram * kernel.gram(X)) + jnp.sum(for_diagonal * kernel.diagonal(X))

    def cross_reference(at):
        return np.sum(cotangent * covariance(*at))

    def within_reference(at):
        K = covariance(at[0], at[1], at[1])
        return np.sum(for_gram * K) + np.sum(for_diagonal * np.diag(K))

    kernel = with_arrays(kernel)
    gradient = jax.jit(jax.grad(cross, (0, 1, 2)))(kernel, X1, X2)
    assert largest_error(gradient, central_differences(cross_reference, (kernel, X1, X2))) < 1e-8
    gradient = jax.jit(jax.grad(within, (0, 1)))(kernel, X1)
    assert largest_error(gradient, central_differences(within_reference, (kernel, X1))) < 1e-8


KINKED = {name: KERNELS[name] for name in ("matern12", "matern32", "matern52", "sum of products")}


@pytest.mark.parametrize("kernel", KINKED.values(), ids=KINKED)
def test_gradient_where_rows_coincide(kernel):
    """Rounding in a distance of zero must not reach the gradient, which for Matérn 1/2 has 1 / r in it.

    Compiled as a whole: XLA then contracts products and sums, and may do so differently in two places.
    """
    (X,) = inputs(rows=(6,))
    kernel = with_arrays(kernel)
    fields, tree = jax.tree.flatten(kernel)

    def total(fields, Z):
        return jnp.sum(jax.tree.unflatten(tree, fields)(Z, X))

    gradient = jax.jit(jax.grad(total))(fields, X)

    def reference(fields):
        return np.sum(covariance(jax.tree.unflatten(tree, fields), X, X))

    assert largest_error(gradient, central_differences(reference, fields)) < 1e-8


@pytest.mark.parametrize("kernel", SOME)
def test_a_coinciding_row_has_the_variance_as_covariance(kernel):
    (X,) = inputs(rows=(4,))
    X = X * 1e3  # far from the origin, where a·b - ½a² - ½b² rounds
    gram = jax.jit(lambda kernel, X: kernel.gram(X))(with_arrays(kernel), jnp.concatenate([X, X]))
    close(jnp.diagonal(gram[:4, 4:]) / jnp.diagonal(gram)[:4], np.ones(4))


# ---- against scikit-learn at the same hyperparameters

ELL, ONE = np.array([0.8, 1.3, 2.0]), slice(0, 1)
PAIRS = {
    "rbf": (RBF(tuple(ELL), 1.3), 1.69 * sk.RBF(ELL), slice(None)),
    "matern12": (Matern12(tuple(ELL), 1.3), 1.69 * sk.Matern(ELL, nu=0.5), slice(None)),
    "matern32": (Matern32(tuple(ELL), 1.3), 1.69 * sk.Matern(ELL, nu=1.5), slice(None)),
    "matern52": (Matern52(tuple(ELL), 1.3), 1.69 * sk.Matern(ELL, nu=2.5), slice(None)),
    "rq": (RationalQuadratic(0.8, 1.3, 0.6, ard=False), 1.69 * sk.RationalQuadratic(0.8, 0.6), slice(None)),
    "periodic": (Periodic(0.8, 1.3, 2.2), 1.69 * sk.ExpSineSquared(0.8, 2.2), ONE),
    "linear": (Linear(1.0) + Constant(0.7), sk.DotProduct(0.7), slice(None)),
    "polynomial": (Polynomial(3, 0.49, 1.3), 1.69 * sk.DotProduct(0.7) ** 3, slice(None)),
    "sum": (RBF(tuple(ELL), 1.3) + Constant(0.5), 1.69 * sk.RBF(ELL) + sk.ConstantKernel(0.25), slice(None)),
    "product": (RBF(0.9, 1.3) * Periodic(0.8, 1.0, 2.2), 1.69 * sk.RBF(0.9) * sk.ExpSineSquared(0.8, 2.2), ONE),
}


@pytest.mark.parametrize(("ours", "theirs", "columns"), PAIRS.values(), ids=PAIRS)
def test_against_scikit_learn(ours, theirs, columns):
    X1, X2 = (X[:, columns] for X in inputs(seed=2))
    K, gram, diagonal = evaluations(ours, X1, X2)
    close(K, theirs(np.asarray(X1), np.asarray(X2)))
    close(gram, theirs(np.asarray(X1)))
    close(diagonal, theirs.diag(np.asarray(X1)))


def test_active_columns_are_the_columns():
    X1, X2 = inputs()
    close(RBF((0.8, 1.5), 1.1, active=(2, 0))(X1, X2), RBF((0.8, 1.5), 1.1)(X1[:, [2, 0]], X2[:, [2, 0]]))


def test_one_lengthscale_is_equal_lengthscales():
    X1, X2 = inputs()
    close(Matern52(0.7, 1.1, ard=False)(X1, X2), Matern52((0.7, 0.7, 0.7), 1.1)(X1, X2))


def test_sums_and_products_are_entrywise():
    X1, X2 = inputs()
    a, b, c = RBF(0.7, 1.1), Linear(0.4), Matern32(1.2, 0.9)
    close((a + b + c)(X1, X2), a(X1, X2) + b(X1, X2) + c(X1, X2))
    close((a * b * c)(X1, X2), a(X1, X2) * b(X1, X2) * c(X1, X2))
    close(((a + b) * c)(X1, X2), (a * c + b * c)(X1, X2))


# ---- trees of numbers, priors and open fields

DESCRIPTIONS = [
    *KERNELS.values(),
    RBF(),
    RBF(lengthscale=Gamma(2, 1), scale=HalfCauchy(1)),
    Periodic(period=1.0, lengthscale=LogNormal(0, 0.5), active=(1,), name="season") + Linear(ard=True),
    (RBF(name="a") + Matern12(ard=False)) * Polynomial(3, offset=1),
    (RBF() * Linear()).named("trend") + Constant(),
    integrand.RBF(lengthscale=integrand.on_variance(Gamma(2, 1))),
]


@pytest.mark.parametrize("kernel", DESCRIPTIONS, ids=repr)
def test_repr_can_be_read_back(kernel):
    again = eval(repr(kernel), vars(integrand))
    assert again == kernel
    assert hash(again) == hash(kernel)


def test_repr_is_plain():
    assert repr(RBF(Gamma(2, 1), HalfCauchy(1)) + Periodic(period=1, active=(0,))) == (
        "RBF(lengthscale=Gamma(2, 1), scale=HalfCauchy(1)) + Periodic(period=1, active=(0,))"
    )


def test_equality_and_hash():
    assert RBF(1, 2.0) == RBF(1.0, 2)
    assert len({RBF(Gamma(2, 1)), RBF(Gamma(2, 1)), RBF(Gamma(2, 2)), Matern12(Gamma(2, 1))}) == 3
    different = [RBF(), RBF(1.0), RBF(ard=False), RBF(active=(0,)), RBF(name="a"), RBF() + RBF(), RBF() * RBF()]
    assert all((a == b) is (a is b) for a in different for b in different)


@pytest.mark.parametrize("kernel", DESCRIPTIONS, ids=repr)
def test_immutable(kernel):
    field = "parts" if isinstance(kernel, Sum | Product) else "scale"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(kernel, field, 3.0)


def test_sums_and_products_are_flat():
    a, b, c = RBF(), Linear(), Constant()
    assert ((a + b) + c).parts == (a + (b + c)).parts == (a, b, c)
    assert len(((a * b) * c).parts) == len((a * (b * c)).parts) == 3
    assert len(((a + b).named("both") + c).parts) == 2


def paths(kernel, n_columns=2):
    found = {}

    def note(field_info, value):
        found[field_info.path] = field_info.shape
        return value

    kernel.map_fields(note, n_columns, kernel.name or "")
    return found


def test_paths_and_shapes():
    assert paths(RBF()) == {"lengthscale": (2,), "scale": ()}
    assert paths(RBF(ard=False, name="trend")) == {"trend.lengthscale": (), "trend.scale": ()}
    assert paths(Linear(ard=True)) == {"scale": (2,)}
    tree = RBF(name="trend") + (Periodic(active=(1,)) * Linear()) + Constant()
    assert paths(tree) == {
        "trend.lengthscale": (2,),
        "trend.scale": (),
        "1.0.lengthscale": (1,),
        "1.0.scale": (),
        "1.0.period": (),
        "1.1.scale": (),
        "2.scale": (),
    }
    assert "season.0.period" in paths((Periodic() * Linear()).named("season") + RBF())


def scales(kernel):
    """What each scale holds, in whatever units."""
    return [bare(value) for field, value in _fields(kernel) if field == "scale"]


def _fields(kernel):
    found = []
    kernel.map_fields(lambda field_info, value: found.append((field_info.field, value)) or value, 2, "")
    return found


def test_a_product_leaves_one_scale_open():
    prior = HalfCauchy(1)
    assert scales(RBF() * Linear()) == [None, 1.0]
    assert scales(RBF() * Linear(scale=prior)) == [1.0, prior]
    assert scales(RBF(scale=2.0) * Linear()) == [2.0, None]
    assert scales(RBF(scale=2.0) * Linear(scale=3.0)) == [2.0, 3.0]
    assert scales(RBF() * Linear() * Constant()) == [None, 1.0, 1.0]
    assert scales((RBF() + Linear()) * Periodic()) == [None, None, 1.0]
    twice = Linear()
    assert scales(twice * twice) == [None, 1.0]
    assert scales((RBF() * Linear()).named("a") * Periodic()) == [None, 1.0, 1.0]
    assert scales((RBF() * Linear()).named("a") * Periodic(scale=prior)) == [1.0, 1.0, prior]
    assert scales((RBF(scale=prior) * Linear()).named("a") * Periodic()) == [prior, 1.0, 1.0]
    assert Model((RBF() * Linear()).named("a") * (Periodic() * Constant()).named("b"), 2).names.count("b.0.scale") == 0


def test_two_priors_on_the_scales_of_a_product_are_refused():
    with pytest.raises(InputError, match=r"cannot tell the scales .* apart"):
        RBF(scale=HalfCauchy(1)) * Linear(scale=HalfCauchy(2))
    with pytest.raises(InputError, match="cannot tell the scales"):
        RBF(scale=HalfCauchy(1)) * Linear() * Constant(scale=HalfCauchy(2))


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RBF(lengthscale=(1.0, 2.0)).check(3), "lengthscale has 2 values, but takes one for each of 3"),
        (lambda: RBF(lengthscale=(1.0, 2.0), ard=False).check(2), "lengthscale has 2 values, but takes a single"),
        (lambda: RBF(scale=(1.0, 2.0)).check(2), "scale has 2 values, but takes a single"),
        (lambda: (Constant() + Linear(scale=(1.0, 2.0), ard=True)).check(3), "1.scale has 2 values"),
        (lambda: RBF(active=(3,)).check(3), "for column 3, but the data has only columns 0 to 2"),
        (lambda: RBF(active=(-1,)).check(3), "distinct column numbers"),
        (lambda: RBF(active=(1, 1)).check(3), "distinct column numbers"),
        (lambda: RBF(active=()).check(3), "distinct column numbers"),
        (lambda: RBF(lengthscale="long"), "a number or a prior"),
        (lambda: RBF(lengthscale=True), "a number or a prior"),
        (lambda: RBF(lengthscale=[["1"]]), "one number a column"),
        (lambda: RBF(lengthscale=np.ones((2, 2))), "one number a column"),
        (lambda: Polynomial(0), "degree"),
        (lambda: Polynomial(1.5), "degree"),
        (lambda: RBF(name="two words"), "plain identifier"),
        (lambda: RBF(name="noise"), "other than noise, mean"),
        (lambda: (RBF() + Linear()).named("0"), "plain identifier"),
        (lambda: RBF(name="a") + Linear(name="a"), "both called 'a'"),
        (lambda: RBF(name="a") * Linear(name="a"), "both called 'a'"),
    ],
)
def test_errors_name_the_cause(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_only_kernels_combine():
    with pytest.raises(TypeError):
        RBF() + 1.0
    with pytest.raises(integrand.InputError, match=r"RBF\(scale=2.0\)"):
        2.0 * RBF()


def test_the_reference_is_in_80_bits():
    assert covariance(KERNELS["sum of products"], *inputs()).dtype == LONG
