"""What holds for every registered kernel, the skeleton of docs/extending among them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import integrand
from integrand import RBF, Gamma, InputError, LogNormal, Matern32, Model, Periodic, UnregisteredError, parse_kernel
from integrand.cli.options import import_modules
from integrand.kernels import LeafKernel, StationaryKernel, kernel_named, registered_kernels
from integrand.kernels.registry import describe_kernel, register_kernel, restore_kernel
from integrand.precision import float64_scope
from integrand.priors import PRESETS, number_text, on_variance
from integrand.registry import Registry

SKELETON = Path(__file__).parents[2] / "docs" / "extending" / "kernel.py"


def skeleton():
    spec = importlib.util.spec_from_file_location("extending_kernel", SKELETON)
    module = importlib.util.module_from_spec(spec)
    sys.modules["extending_kernel"] = module
    spec.loader.exec_module(module)
    return module.Cauchy


Cauchy = skeleton()
KERNELS = registered_kernels()
OF_COLUMNS = [name for name in KERNELS if name != "Categorical"]  # of any number of columns, that hold numbers


def made(kernel, /, **fields):
    """A kernel of this class; one of categories sees codes 0 ... 3 in its column."""
    of_codes = {"active": (1,), "levels": ("a", "b", "c", "d")} if kernel == "Categorical" else {}
    return KERNELS[kernel](**(of_codes | fields))


def with_numbers(kernel, convert=float):
    """The kernel with another number between 0.5 and 1.3 in each entry of each field, for three columns."""
    numbers = iter(np.linspace(0.5, 1.3, 40))

    def number(field_info, value):
        return convert(
            np.array([next(numbers) for _ in range(field_info.shape[0])]) if field_info.shape else next(numbers)
        )

    return kernel.map_fields(number, 3)


def as_tuple(value):
    return tuple(map(float, value)) if np.ndim(value) else float(value)


def inputs(name=None):
    rng = np.random.default_rng(0)
    X1, X2 = rng.standard_normal((7, 3)), rng.standard_normal((5, 3))
    if name == "Categorical":
        X1[:, 1], X2[:, 1] = np.arange(7) % 4, (0, 3, 1, 2, 4)  # the last one is unknown
    return jnp.asarray(np.concatenate([X1, X1[:2]])), jnp.asarray(X2)  # rows 0 and 7, 1 and 8 of X1 coincide


@pytest.fixture(autouse=True)
def float64():
    with float64_scope(), jax.numpy_dtype_promotion("strict"):
        yield


def close(a, b, tolerance=1e-13):
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert np.max(np.abs(a - b)) <= tolerance * max(1.0, np.max(np.abs(b)))


# ---- a covariance function


@pytest.mark.parametrize("name", KERNELS)
def test_symmetric_and_positive_semidefinite(name):
    kernel, (X1, X2) = with_numbers(made(name), jnp.asarray), inputs(name)
    evaluate = jax.jit(lambda k: (k(X1, X2), k(X2, X1), k.gram(X1), k(X1, X1), k.diagonal(X1)))
    K, transposed, gram, by_call, diagonal = evaluate(kernel)
    assert K.dtype == gram.dtype == diagonal.dtype == jnp.float64
    assert K.shape == (9, 5)
    close(transposed, K.T)
    close(gram, by_call)
    close(diagonal, np.diagonal(gram))
    close(gram[:2], gram[7:])
    assert np.array_equal(gram, gram.T)
    assert np.linalg.eigvalsh(gram)[0] >= -1e-12 * np.trace(gram)


@pytest.mark.parametrize("name", [name for name, cls in KERNELS.items() if issubclass(cls, StationaryKernel)])
def test_stationary_kernels_only_know_differences(name):
    kernel, (X1, X2) = with_numbers(KERNELS[name](), jnp.asarray), inputs()
    evaluate = jax.jit(lambda k, X1, X2: (k(X1, X2), k.gram(X1), k.diagonal(X1)))
    (K, gram, diagonal), shift = evaluate(kernel, X1, X2), np.array([3.0, -1.0, 0.5])
    moved, gram_moved, _ = evaluate(kernel, X1 + shift, X2 + shift)
    close(moved, K, 1e-12)
    close(gram_moved, gram, 1e-12)
    close(diagonal, np.full(len(X1), kernel.scale**2))
    assert np.all(np.abs(K) <= kernel.scale**2 * (1 + 1e-12))


@pytest.mark.parametrize("name", KERNELS)
def test_gradients(name):
    """∂/∂fields and ∂/∂X of sums with random weights, against central differences."""
    kernel, (X1, X2) = with_numbers(made(name), jnp.asarray), inputs(name)
    X1, rng = X1[:7], np.random.default_rng(1)
    cross, square, line = (jnp.asarray(rng.standard_normal(shape)) for shape in ((7, 5), (7, 7), 7))
    fields, tree = jax.tree.flatten((kernel, X1))

    @jax.jit
    def total(fields):
        k, X = jax.tree.unflatten(tree, fields)
        return jnp.sum(cross * k(X, X2)) + jnp.sum(square * k.gram(X)) + jnp.sum(line * k.diagonal(X))

    gradient, step = jax.jit(jax.grad(total))(fields), 1e-6
    for i, (field, exact) in enumerate(zip(fields, gradient, strict=True)):
        direction = jnp.asarray(rng.standard_normal(np.shape(field)))
        shifted = ([*fields[:i], field + sign * step * direction, *fields[i + 1 :]] for sign in (1.0, -1.0))
        up, down = (float(total(values)) for values in shifted)
        assert (up - down) / (2 * step) == pytest.approx(float(jnp.sum(exact * direction)), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", OF_COLUMNS)
def test_active_columns_are_the_columns(name):
    X1, X2 = inputs()
    kernel = with_numbers(KERNELS[name](active=(2, 0)), jnp.asarray)
    plain = KERNELS[name](**{f: getattr(kernel, f) for f in vars(kernel) if f not in ("active", "name")})
    evaluate = jax.jit(lambda k, X1, X2: k(X1, X2))
    close(evaluate(kernel, X1, X2), evaluate(plain, X1[:, [2, 0]], X2[:, [2, 0]]))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_field_has_a_prior(name, preset):
    model = Model(made(name), 3, priors=preset)
    assert all(p.prior.positive or p.name == "weights" for p in model.parameters)
    assert repr(model.parameters[-1].prior) == "HalfCauchy(1)"  # of the noise


def test_a_field_brings_its_prior_and_a_preset_overrides_lengthscales():
    priors = {p.name: p.prior for p in Model(Cauchy(), 2, priors="paper").parameters}
    assert priors["power"] == LogNormal(0.0, 0.5)
    assert priors["lengthscale"] == Gamma(2, 1)


# ---- names, expressions and files


def examples():
    for name in KERNELS:
        yield made(name)
        yield with_numbers(made(name), as_tuple)
        yield made(name, active=(1,), name="part")
        yield made(name) * RBF(active=(0,)) + Periodic(period=1 / 3)
        yield (made(name) + Matern32(lengthscale=on_variance(Gamma(2, 1e-300)), ard=False)).named("all") * RBF(
            scale=np.pi
        )


@pytest.mark.parametrize("kernel", list(examples()), ids=str)
def test_expressions_and_descriptions_are_read_back(kernel):
    described = json.loads(json.dumps(describe_kernel(kernel)))
    for again in (parse_kernel(repr(kernel)), restore_kernel(described)):
        assert again == kernel
        assert hash(again) == hash(kernel)
        assert repr(again) == repr(kernel)


@pytest.mark.parametrize("name", KERNELS)
def test_names_in_any_case(name):
    assert kernel_named(name) is kernel_named(name.lower()) is kernel_named(name.upper()) is KERNELS[name]
    assert type(parse_kernel(f"{name.lower()}(active=0)")) is KERNELS[name]


def test_aliases_and_one_column():
    assert parse_kernel("rq(active=0)") == integrand.RationalQuadratic(active=(0,)) == parse_kernel("rq(active=[0])")
    assert parse_kernel(" rbf(lengthscale=gamma(concentration=2, rate=1)) ") == RBF(Gamma(2, 1))
    assert parse_kernel("rbf(scale=studentt(4)) + constant(scale=-2)").parts[0].scale == integrand.StudentTPrior(4.0)


def test_texts_are_short_and_expressions_exact():
    kernel = RBF(lengthscale=(1 / 3, 2.0), scale=LogNormal(0.1 + 0.2, 1))
    assert str(kernel) == "RBF(lengthscale=(0.333333, 2), scale=LogNormal(0.3, 1))"
    assert repr(kernel) == "RBF(lengthscale=(0.3333333333333333, 2), scale=LogNormal(0.30000000000000004, 1))"
    rng = np.random.default_rng(0)
    for value in [0.0, 1.0, 1e300, 5e-324, *rng.standard_normal(100), *np.exp(rng.uniform(-700, 700, 100))]:
        assert float(number_text(value, exact=True)) == value


REFUSED = {
    "": "cannot be read",
    "rbf;linear": "cannot be read",
    "rbf\0": "cannot be read",
    "(" * 5_000: "cannot be read",
    "+".join(["rbf"] * 5_000): "cannot be read",
    "rbf**2": "only kernels",
    "rbf + 2": "only kernels",
    "rbf.__class__": "only kernels",
    "rbf.named('a', 'b')": "only kernels",
    "lambda: rbf": "only kernels",
    "[rbf for _ in rbf]": "only kernels",
    "rbf if rbf else rbf": "only kernels",
    "rbf(lengthscale=__import__('os'))": "no prior '__import__'",
    "rbf(lengthscale=gamma(2, 1).sample)": "a number, a tuple of numbers or a prior",
    "rbf(lengthscale=1j)": "a number, a tuple of numbers or a prior",
    "rbf(lengthscale={1: 2})": "a number, a tuple of numbers or a prior",
    "rbf(lengthscale=gamma)": "a number, a tuple of numbers or a prior",
    "rbf(lengthscale=9" + "0" * 400 + ")": "too large",
    "rbf(lengthscale=gamma(-1, 1))": "not a distribution",
    "rbf(lengthscale=gamma(1, 2, 3))": "arguments",
    "rbf(lengthscale=on_variance(3))": "takes a prior",
    "rbf(**{'scale': 1})": "no field None",
    "rbf(2.0)": r"give the fields of rbf by name \(.*lengthscale",
    "rbf(period=1)": "rbf has no field 'period': it has .*lengthscale",
    "rbf(active=(0, 0.5))": "active takes names of columns",
    "rbf.named('two words')": "plain identifier",
    "rbf(scale=halfcauchy(1)) * linear(scale=halfcauchy(1))": "cannot tell the scales",
    "magic": "no kernel 'magic': choose from .*rbf",
    "sum": "no kernel 'sum'",
}


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_what_is_no_kernel_is_refused_with_a_sentence(text):
    with pytest.raises(InputError, match=REFUSED[text]) as caught:
        parse_kernel(text)
    assert str(caught.value).startswith("the kernel ")
    assert len(str(caught.value)) < 500


# ---- kernels of users


class Unregistered(StationaryKernel):
    """scale² exp(e)."""

    def covariance(self, e):
        return self.scale**2 * jnp.exp(e)


class Bridge(LeafKernel):
    """Π_d min(x_d, x'_d) for positive inputs: it has no field at all."""

    def __call__(self, X1, X2):
        return jnp.prod(jnp.minimum(self.columns(X1)[:, None], self.columns(X2)[None]), axis=2)

    def gram(self, X):
        return self(X, X)

    def diagonal(self, X):
        return jnp.prod(self.columns(X), axis=1)


def test_a_kernel_without_a_scale_combines():
    X = jnp.asarray(np.random.default_rng(0).uniform(0.1, 1.0, (6, 2)))
    for product in (Bridge() * RBF(1.0, 0.7), RBF(1.0, 0.7) * Bridge()):
        close(product.gram(X), Bridge().gram(X) * RBF(1.0, 0.7).gram(X))
    assert Model(Bridge() * RBF(), 2).names == (
        "1.lengthscale[x0]",
        "1.lengthscale[x1]",
        "1.scale",
        "noise",
    )


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (40, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(40)


def test_the_skeleton_is_its_formula():
    X1, X2 = inputs()
    kernel = Cauchy(lengthscale=(0.7, 1.3, 2.0), scale=1.5, power=0.8)
    r2 = np.sum(((np.asarray(X1)[:, None] - np.asarray(X2)[None]) / [0.7, 1.3, 2.0]) ** 2, axis=-1)
    close(kernel(X1, X2), 1.5**2 / (1.0 + 0.5 * r2) ** 0.8)


def test_the_skeleton_fits_and_is_saved_and_loaded(rows, tmp_path):
    posterior = integrand.fit(*rows, Cauchy(), method="map", n_inducing=10, steps=100, run_dir=tmp_path / "run")
    assert "power" in posterior.theta
    assert np.corrcoef(posterior.predict(rows[0], include_noise=False).mean, rows[1])[0, 1] > 0.95
    integrand.save_model(posterior, tmp_path / "model")
    for again in (integrand.load_model(tmp_path / "model").posterior, integrand.resume(tmp_path / "run")):
        assert again.model == posterior.model
        np.testing.assert_array_equal(
            again.predict(rows[0], include_noise=True).mean, posterior.predict(rows[0], include_noise=True).mean
        )


@pytest.mark.slow
def test_an_unregistered_kernel_is_refused_before_anything_is_written(rows, tmp_path):
    options = {"method": "map", "n_inducing": 5, "steps": 5}
    advice = r"the kernel Unregistered is not registered.*@integrand\.register_kernel"
    with pytest.raises(UnregisteredError, match=advice):
        integrand.fit(*rows, Unregistered() + RBF(), run_dir=tmp_path / "run", **options)
    posterior = integrand.fit(*rows, Unregistered(), **options)  # it can be used all the same
    with pytest.raises(UnregisteredError, match=advice):
        integrand.save_model(posterior, tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_a_file_with_a_kernel_that_is_not_here_says_what_to_import():
    described = describe_kernel(Cauchy())
    assert described["module"] == "extending_kernel"
    assert "module" not in describe_kernel(RBF())
    for module, advice in (
        ("mykernels", "import mykernels first .on the command line: --import mykernels"),
        ("__main__", "define and register it first"),
        (None, "knows no kernel 'Gone': upgrade integrand"),
        ("\33[2J; rm", "knows no kernel 'Gone': upgrade integrand"),
    ):
        with pytest.raises(UnregisteredError, match=advice):
            restore_kernel(described | {"type": "Gone", "module": module})
    # Where the class has moved since, the file is as good as before.
    assert restore_kernel(described | {"module": "elsewhere"}) == Cauchy()


def test_one_name_for_one_class():
    def another(module, name="Cauchy"):
        return type(name, (StationaryKernel,), {"covariance": lambda self, e: e, "__module__": module})

    with pytest.raises(InputError, match=r"a kernel called 'Cauchy' is registered already \(extending_kernel\)"):
        register_kernel(another("elsewhere"))
    with pytest.raises(InputError, match="'rq' is registered already"):
        register_kernel(alias=("rq",))(another("elsewhere", "Other"))
    with pytest.raises(InputError, match="that is a combination"):
        register_kernel(another("elsewhere", "Sum"))
    with pytest.raises(InputError, match="derived from LeafKernel"):
        register_kernel(dict)
    assert registered_kernels() == KERNELS


def test_a_class_may_be_defined_again_as_in_a_notebook():
    registry = Registry("kernel")
    cells = [type("Wave", (LeafKernel,), {"__module__": "__main__"}) for _ in range(2)]
    for cls in cells:
        registry.register(cls, cls, "Wave", ("w",))
    assert registry.named("W") is registry["Wave"] is cells[1]
    assert registry.name_of(cells[0]) == "Wave"  # of a model that was fitted before the cell was run again


def test_modules_that_cannot_be_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "needs_more.py").write_text("import no_such_module")
    (tmp_path / "wrong.py").write_text("1 / 0")
    for name, message in (
        ("nowhere", "--import nowhere: there is no module 'nowhere' here"),
        ("needs_more", "it needs the module 'no_such_module'"),
        ("wrong.py", "--import wrong.py: ZeroDivisionError"),
    ):
        with pytest.raises(InputError, match=message):
            import_modules([name])
    import_modules(None)


@pytest.mark.slow
def test_from_the_command_line(rows, tmp_path):
    (tmp_path / "mykernels.py").write_text(SKELETON.read_text())
    table = "\n".join(["x,y", *(f"{x},{y}" for x, y in zip(rows[0][:, 0], rows[1], strict=True))])
    (tmp_path / "table.csv").write_text(table)

    def command(*words):
        environment = os.environ | {"PYTHONPATH": str(Path(integrand.__file__).parents[1]), "COLUMNS": "200"}
        words = [sys.executable, "-m", "integrand.cli", *words]
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    fit = ("fit", "table.csv", "--target", "y", "--out", "model", "--method", "map", "--inducing", "8")
    kernel = ("--kernel", "cauchy(power=2)*constant + linear")
    fitted = command(*fit, *kernel, "--import", "mykernels.py", "--quiet")
    assert fitted.returncode == 0, fitted.stderr
    unknown = command("predict", "model", "table.csv")
    assert unknown.returncode == 2
    assert "import mykernels first (on the command line: --import mykernels)" in unknown.stderr
    assert "copy of the file" not in unknown.stderr
    predicted = command("predict", "model", "table.csv", "--import", "mykernels")
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == 41
