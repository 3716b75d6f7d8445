import functools
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import jaxtyping

import typechecker

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

# Before anything imports the library: the files that state shapes in their signatures have them checked when called.
SHAPED = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in sorted((SOURCE / "integrand").rglob("*.py"))
    if "from jaxtyping import" in path.read_text(encoding="utf-8")
]
jaxtyping.jaxtyped = typechecker.often_enough
jaxtyping.install_import_hook(SHAPED, "typechecker.checked")

# All processes of a run share the programs that they compile, in JAX's cache. What a test finds must not depend on what
# an earlier run compiled: each run begins with an empty one.
PROGRAMS = None
if "PYTEST_XDIST_WORKER" not in os.environ:
    PROGRAMS = tempfile.mkdtemp(prefix="programs-of-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ["INTEGRAND_CACHE"] = "off"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

# A shell starts background jobs with SIGINT ignored, also in their children: tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same cases in every run; a failure prints the blob that repeats it.
hypothesis.settings.register_profile("default-suite", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("default-suite")


def pytest_addoption(parser):
    parser.addoption(
        "--seed-shift",
        type=int,
        default=0,
        help="added to the seed of every fit and sampler: what a test states holds for any seed",
    )


def pytest_configure(config):
    """Before any test imports the library, and before workers start."""
    if not hasattr(config, "workerinput"):
        # 0.x writes a file on its first import of a day, and workers must not do so at the same moment.
        from integrand.errors import import_quietly

        import_quietly("arviz")
    shift = config.getoption("--seed-shift")
    if not shift:
        return
    os.environ["INTEGRAND_SEED_SHIFT"] = str(shift)  # for the tests of samplers, which are called without a fit
    import integrand
    from integrand.methods import fit as module

    whole = module.fit

    @functools.wraps(whole)
    def shifted(*arguments, **settings):
        return whole(*arguments, **(settings | {"seed": settings.get("seed", 0) + shift}))

    module.fit = integrand.fit = shifted


def pytest_unconfigure():
    if PROGRAMS is not None:
        shutil.rmtree(PROGRAMS, ignore_errors=True)


@pytest.fixture(scope="module")
def strict_float64():
    """Float64 as inside the library's entry points, and no silent promotion between dtypes."""
    from integrand.precision import float64_scope

    with float64_scope(), jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="module", autouse=True)
def room_for_programs():
    """A worker compiles thousands of programs: forget those of the modules before, long before maps run out."""
    from integrand.compilation import clear_unused_programs

    clear_unused_programs()


@pytest.fixture(autouse=True)
def shapes_are_checked_anew():
    """Of each function the first calls in a test have their shapes checked."""
    typechecker.next_test()


@pytest.fixture
def as_users_see_it():
    """Signatures are not checked outside the tests: what a wrong argument meets is then the library's own check."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def data_directory():
    """Where the paper's data sets are: INTEGRAND_DATA, or a folder `shared/data` beside the project."""
    named = os.environ.get("INTEGRAND_DATA")
    directory = Path(named) if named else ROOT.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip("the paper's data sets are not here: set INTEGRAND_DATA")
    return directory


@pytest.fixture(scope="session")
def four_way():
    """Numbers on which NumPy, GPflow, PyMC and GPJax agree to 2e-12, with an absolute jitter of 1e-6 on Kmm."""
    rng = np.random.RandomState(7)  # the stream that the numbers were made from
    N, M, D = 200, 15, 3
    X = rng.randn(N, D)
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.randn(N)
    return SimpleNamespace(
        X=X,
        y=y,
        Z=X[:M],
        X_new=rng.randn(5, D),
        lengthscale=(0.8, 1.3, 2.0),
        scale=np.sqrt(1.7),
        noise=np.sqrt(0.09),
        jitter=1e-6,
        bound=-652.538645265923,
        upper=22.885115768078,
        exact=-92.301537370881,
        mean=np.array([-0.094474077292, 1.263968014359, -1.467094434235, 0.493761033060, -0.681207293552]),
        variance=np.array([0.176416494688, 0.049084223689, 0.306402539300, 0.019873457145, 0.171295672954]),
    )
