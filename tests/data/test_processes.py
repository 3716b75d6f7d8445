"""Several processes compute what one computes, and all get the same posterior bit for bit."""

import pickle
import socket
import warnings

import arviz
import numpy as np
import pytest
from started_processes import codes, errors, free_port, started, table, write_parts

import integrand
from integrand import Dataset, InputError
from integrand.data.processes import _check_address, join
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows, MappedRows
from integrand.errors import DistributedError
from integrand.kernels import RBF
from integrand.model import Model
from integrand.targets import CollapsedTarget

N, M = 401, 10  # 401 is prime
FRAME = table(N)
X, Y = FRAME[["a", "b"]].to_numpy(), FRAME["y"].to_numpy()
SCALER, MODEL = Standardiser.fit(X, Y), Model(RBF(), ["a", "b"], bound="tight")
PHI = MODEL.start() + 0.2
Z = X[:M]
FEW = {"chains": 2, "predictive_draws": 20, "seed": 2}
FITS = {
    "fixed": {"method": "sgpr-hmc-fixed-z", "Z": Z, "target_ess": 60.0, "warmup": 40, "subsample": False} | FEW,
    "many": {"n_inducing": M, "subsample": True, "subsample_rows": 150, "max_draws": 40, "max_rounds": 1, "warmup": 20}
    | FEW,
}

SCRIPT = """
import pickle, sys, warnings
import numpy as np
import integrand, integrand.data.streaming
from integrand import MappedRows, join, open_rows
from integrand.kernels import RBF
from integrand.model import Model
from integrand.targets import CollapsedTarget

rank, size, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
integrand.data.streaming.CHUNK_BYTES = 8 * 4 * 100
given = pickle.load(open(folder + "/given.pickle", "rb"))
processes = join(f"127.0.0.1:{port}", size, rank, timeout=60.0)
assert join() is processes and (processes.rank, processes.size, processes.is_leader) == (rank, size, rank == 0)
assert processes.all_gather({"rank": rank}) == [{"rank": k} for k in range(size)]

rows, out, model = open_rows(folder + "/parts", "y", processes=processes), {}, Model(RBF(), ["a", "b"], bound="tight")
overview = rows.overview(150, 0)
scaler = overview.scaler
out["sample"], out["ranges"] = overview.subsample, np.array([overview.low, overview.high])
out["moments"] = np.array([[*scaler.x_mean, scaler.y_mean], [*scaler.x_sd, scaler.y_sd]])
assert overview.n_rows == rows.n_rows == sum(processes.all_gather(rows.n_own))
for name, memory in (("memory", 2**30), ("disk", 0)):
    data = rows.but(memory=memory).dataset(scaler, given["M"])
    assert (data.stream is not None) == (name == "disk")
    target = CollapsedTarget(model, data)
    e = target.evaluate(given["phi"], given["Z"])
    out |= {f"{name}/{field}": np.asarray(getattr(e, field)) for field in e._fields}
out["value"] = target.value(given["phi"], given["Z"])
_, out["m"], out["LB"] = target.inducing_posterior(given["phi"], given["Z"])

warnings.simplefilter("ignore", integrand.ConvergenceWarning)
for name, options in given["fits"].items():
    source = rows.but(memory=given["memory"])
    if name == "fixed":  # rows that this process alone has
        table = rows.read(0, rows.n_own)
        source = MappedRows(
            table[:, :-1], table[:, -1], rows.columns, memory=given["memory"], processes=processes, shared=False
        )
    p = integrand.fit(source, run_dir=f"{folder}/run-{name}-{rank}", **options)
    out |= {f"{name}/x": p.chains.x, f"{name}/log_density": p.chains.log_density, f"{name}/Z_path": p.Z_path}
    out |= {f"{name}/{field}": getattr(p.conditional, field) for field in ("phis", "inputs", "weights", "factors")}
    out[f"{name}/verdict"], out[f"{name}/notes"] = str(p.verdict), " ".join(p.notes)
    out[f"{name}/mean"] = p.predict(np.array([[0.0, 10.0], [1.0, 8.0]]), include_noise=True).mean
np.savez(f"{folder}/found{rank}.npz", **out)
processes.leave()
"""


def run(folder, size, fits, memory=2**30):
    """What each of `size` processes found."""
    write_parts(folder / "parts", FRAME)
    phi, inducing = PHI, SCALER.transform_X(Z)
    given = {"phi": phi, "Z": inducing, "M": M, "fits": fits, "memory": memory}
    (folder / "given.pickle").write_bytes(pickle.dumps(given))
    port = free_port()
    commands = [["-c", SCRIPT, rank, size, port, folder] for rank in range(size)]
    with started(commands, folder) as processes:
        ended = codes(processes, 240.0)
    assert ended == [0] * size, "\n".join(errors(folder, rank)[-3000:] for rank in range(size))
    return [dict(np.load(folder / f"found{rank}.npz")) for rank in range(size)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(folder):
    return run(folder, 2, {"fixed": FITS["fixed"]})


@pytest.fixture(scope="module")
def searching(tmp_path_factory):
    """A folder, and what two processes found that search by a subsample and move Z."""
    folder = tmp_path_factory.mktemp("searching")
    return folder, run(folder, 2, {"many": FITS["many"]})


@pytest.fixture(params=["fixed", pytest.param("many", marks=pytest.mark.slow)])
def fitted(request):
    """Name and folder of a fit, and what each process found."""
    if request.param == "many":
        return request.param, *request.getfixturevalue("searching")
    return request.param, request.getfixturevalue("folder"), request.getfixturevalue("two")


@pytest.fixture(scope="module")
def here():
    """The same numbers in this process, in memory."""
    data, inducing = Dataset.of(SCALER.transform_X(X), SCALER.transform_y(Y)), SCALER.transform_X(Z)
    e = CollapsedTarget(MODEL, data).evaluate(PHI, inducing)
    _, m, LB = CollapsedTarget(MODEL, data).inducing_posterior(PHI, inducing)
    return {k: np.asarray(v) for k, v in e._asdict().items()} | {"m": m, "LB": LB}


def assert_same_numbers(found, here):
    for ranks in found:
        names = {f"{way}/{k}": k for way in ("memory", "disk") for k in here if k not in ("m", "LB")}
        for name, wanted in (names | {"m": "m", "LB": "LB", "value": "log_likelihood"}).items():
            assert np.abs(ranks[name] - here[wanted]).max() <= 1e-10 * np.abs(here[wanted]).max(), name


def test_two_processes_give_the_bound_and_gradient_of_one(two, here):
    assert_same_numbers(two, here)


@pytest.mark.slow
def test_three_processes_that_read_from_disk_do_too(tmp_path, here):
    found = run(tmp_path, 3, FITS, memory=0)
    assert_same_numbers(found, here)
    for rank in found[1:]:
        for name in (name for name in found[0] if name.startswith(("fixed/", "many/"))):
            np.testing.assert_array_equal(rank[name], found[0][name], err_msg=name)


def test_all_know_of_all_rows_after_a_pass_over_their_own(two):
    values = np.column_stack([X, Y])
    for found in two:
        np.testing.assert_allclose(found["moments"], [values.mean(0), values.std(0)], rtol=1e-12)
        np.testing.assert_array_equal(found["ranges"], [values.min(0), values.max(0)])
        assert found["sample"].shape == (150, 3)
        places = [np.flatnonzero((values == row).all(axis=1)) for row in found["sample"]]
        assert all(len(p) == 1 for p in places)
        assert np.all(np.diff(np.concatenate(places)) > 0)
    np.testing.assert_array_equal(two[0]["sample"], two[1]["sample"])
    alone = MappedRows(X, Y).overview(150, 0)  # one process chooses the same rows
    np.testing.assert_array_equal(alone.subsample, two[0]["sample"])


def test_draws_are_equal_bit_for_bit(fitted):
    fit, _, two = fitted
    names = [name for name in two[0] if name.startswith(f"{fit}/")]
    assert f"{fit}/x" in names
    assert f"{fit}/factors" in names
    for name in names:
        np.testing.assert_array_equal(two[0][name], two[1][name], err_msg=name)
    x = two[0][f"{fit}/x"]
    assert x.shape[0] == 2
    assert len(np.unique(x[:, :, 0])) > x.shape[1] / 4


def test_only_rank_0_writes(fitted):
    fit, folder, _ = fitted
    assert (folder / f"run-{fit}-0" / "draws_000.npz").exists()
    assert not (folder / f"run-{fit}-1").exists()


def compare(found, wanted, errors=4.0):
    """Means of draws (chain, draw, parameter) agree within so many Monte Carlo standard errors."""
    for i in range(found.shape[2]):
        pair = [a[:, :, i] for a in (found, wanted)]
        variances = [a.var() / float(arviz.ess(a, method="mean")) for a in pair]
        assert abs(pair[0].mean() - pair[1].mean()) < errors * np.sqrt(sum(variances)), i


@pytest.mark.slow
def test_the_posterior_is_that_of_one_process(two):
    """With Z given the posteriors are the same density."""
    p = integrand.fit(ArrayRows(X, Y, ["a", "b"]), **FITS["fixed"])
    compare(two[0]["fixed/x"], p.chains.x)
    mean = p.predict(np.array([[0.0, 10.0], [1.0, 8.0]]), include_noise=True).mean
    np.testing.assert_allclose(two[0]["fixed/mean"], mean, atol=0.05)


@pytest.mark.slow
def test_a_subsample_is_told(searching):
    for rank in searching[1]:
        assert f"the bound of all {N} rows" in str(rank["many/notes"])
        assert "gradients of a subsample" in str(rank["many/notes"])


def test_a_setting_that_forbids_a_subsample_is_heard(two):
    """`subsample=False`: no subsample searches, whatever reads the rows."""
    assert "gradients of a subsample" not in str(two[0]["fixed/notes"])


@pytest.mark.slow
def test_one_process_goes_on_with_the_draws_of_two(searching):
    """Another number of processes: the rows on disk are divided anew, and what was drawn is kept."""
    folder, two = searching
    before = two[0]["many/x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        after = integrand.resume(folder / "run-many-0", max_draws=before.shape[1] + 20, target_ess=1e6)
    np.testing.assert_array_equal(after.chains.x[:, : before.shape[1]], before)
    assert after.chains.n_draws == before.shape[1] + 20
    compare(after.chains.x[:, before.shape[1] :], before, errors=6.0)


# --- what is wrong before anything is joined


def test_joining_comes_before_jax(monkeypatch):
    """This process has computed something already."""
    Dataset.of(X, Y)
    CollapsedTarget(MODEL, Dataset.of(SCALER.transform_X(X), SCALER.transform_y(Y))).value(PHI, SCALER.transform_X(Z))
    with pytest.raises(InputError, match="before that"):
        join("127.0.0.1:7800", 2, 0)


@pytest.mark.parametrize("address", ["", "node1", "node1:", ":7800", "node1:port", "node1:0", "node1:70000"])
def test_an_address_that_is_none(address):
    with pytest.raises(InputError, match="must be host:port"):
        _check_address(address, 2, 0, 1.0)


@pytest.mark.parametrize("rank", [-1, 2, 7])
def test_a_rank_that_is_none(rank):
    with pytest.raises(InputError, match=f"rank {rank} is not one of 2 processes: ranks go from 0 to 1"):
        _check_address(f"127.0.0.1:{free_port()}", 2, rank, 1.0)


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} cannot be used here .*: choose another one"):
            _check_address(f"127.0.0.1:{port}", 2, 0, 1.0)
        _check_address(f"127.0.0.1:{port}", 2, 1, 1.0)  # somebody answers


def test_nobody_at_the_other_end():
    with pytest.raises(DistributedError, match=r"nobody answers at 127\.0\.0\.1:.*is rank 0 running"):
        _check_address(f"127.0.0.1:{free_port()}", 2, 1, 0.5)


def test_a_free_port_stays_free():
    """The check of rank 0 leaves the port to JAX."""
    address = f"127.0.0.1:{free_port()}"
    _check_address(address, 2, 0, 1.0)
    _check_address(address, 2, 0, 1.0)
