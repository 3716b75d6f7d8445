"""Rows over the devices of one process: any number of them gives the numbers of one."""

import os
import subprocess
import sys

import numpy as np
import pytest

from integrand import RBF, Dataset
from integrand.data.devices import local_devices
from integrand.model import Model
from integrand.targets import CollapsedTarget

N, D, M = 1009, 3, 7  # a prime number of rows
MODEL = Model(RBF(), D, bound="tight")  # whose sums are those of both bounds

# JAX learns how many devices there are when it starts, so this is a process of its own.
SCRIPT = """
import sys
import jax, numpy as np
from jax.sharding import Mesh
import integrand.data.streaming
from integrand import RBF, Dataset, MappedRows
from integrand.data.devices import AXIS, DeviceMesh, local_devices
from integrand.data.scaling import Standardiser
from integrand.data.streaming import Stream
from integrand.model import Model
from integrand.targets import CollapsedTarget

given = np.load(sys.argv[1])
X, y, phi, Z = (given[name] for name in ("X", "y", "phi", "Z"))
model, out = Model(RBF(), X.shape[1], bound="tight"), {}
assert len(jax.devices()) == 4 == local_devices().n_devices == local_devices().n_local


def note(name, data):
    target = CollapsedTarget(model, data)
    e = target.evaluate(phi, Z)
    out.update({f"{name}/{f}": np.asarray(getattr(e, f)) for f in e._fields})
    out[f"{name}/padded"], out[f"{name}/columns"] = data.n_padded, data.n_columns
    out[f"{name}/local"] = data.local
    return target


for k in (2, 4):
    mesh = DeviceMesh(Mesh(np.array(jax.devices()[:k]), (AXIS,)))
    note(f"memory, {k}", Dataset.sharded(X, y, mesh, len(y), 100))

integrand.data.streaming.CHUNK_BYTES = 8 * 5 * 64 * 2
rows, scaler = MappedRows(X, y), Standardiser.identity(X.shape[1])
mesh = DeviceMesh(Mesh(np.array(jax.devices()[:2]), (AXIS,)))
stream = Stream(rows, scaler, 64, len(y), devices=2)
assert stream.n_chunks % 2 == 0 and stream.n_chunks > 2
note("disk, 2", Dataset(None, len(y), mesh=mesh, stream=stream))
assert len(stream._next) <= 2  # what was read ahead and not yet used

# As a fit has them, with many and with few bytes of memory.
data = rows.dataset(scaler, len(Z))
assert data.mesh.n_devices == 4 and data.stream is None
target = note("a source, on disk", rows.but(memory=0).dataset(scaler, len(Z)))
assert target.data.stream is not None and target.data.streaming.devices == 4
out["value"] = target.value(phi, Z)
_, out["m"], out["LB"] = target.inducing_posterior(phi, Z)
np.savez(sys.argv[2], **out)
"""


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, D))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(N)
    model = MODEL
    return {"X": X, "y": y, "phi": model.start() + 0.3 * rng.standard_normal(model.n_theta), "Z": X[:M] + 0.1}


@pytest.fixture(scope="module")
def found(given, tmp_path_factory):
    """What a process with four devices computes."""
    folder = tmp_path_factory.mktemp("devices")
    np.savez(folder / "given.npz", **given)
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    command = [sys.executable, "-c", SCRIPT, str(folder / "given.npz"), str(folder / "found.npz")]
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "found.npz"))


@pytest.fixture(scope="module")
def here(given):
    """The same on the one device of this process, in one block."""
    target = CollapsedTarget(MODEL, Dataset.of(given["X"], given["y"], N))
    return target, target.evaluate(given["phi"], given["Z"])


CASES = ["memory, 2", "memory, 4", "disk, 2", "a source, on disk"]


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_devices_gives_the_bound_and_gradient_of_one(case, found, here):
    for name, wanted in here[1]._asdict().items():
        difference = np.abs(found[f"{case}/{name}"] - wanted).max()
        assert difference <= 1e-10 * np.abs(wanted).max(), (name, difference)


def test_devices_share_the_rows(found):
    """Every device sums over its own rows: outside of a program all of them are counted."""
    for k in (2, 4):
        assert N <= found[f"memory, {k}/padded"] < N + 100
        assert not found[f"memory, {k}/local"]
        assert found[f"memory, {k}/columns"] == D
    assert N / 2 <= found["disk, 2/padded"] < N / 2 + 128  # a stream counts those of one device
    assert not found["disk, 2/local"]


def test_value_and_what_predicts(found, given, here):
    target, e = here
    assert found["value"] == pytest.approx(e.log_likelihood, rel=1e-10)
    _, m, LB = target.inducing_posterior(given["phi"], given["Z"])
    np.testing.assert_allclose(found["m"], m, rtol=1e-9, atol=1e-10 * np.abs(m).max())
    np.testing.assert_allclose(found["LB"], LB, rtol=1e-9, atol=1e-10 * np.abs(LB).max())


def test_one_device_needs_no_mesh(given):
    """With one device rows in memory are a plain dataset, as if they had never been on disk."""
    from integrand.data.scaling import Standardiser
    from integrand.data.sources import MappedRows

    rows = MappedRows(given["X"], given["y"])
    data = rows.dataset(Standardiser.identity(D), M)
    assert data.local
    np.testing.assert_array_equal(data.arrays()[0], given["X"])
    assert rows.but(memory=0).dataset(Standardiser.identity(D), M).mesh is None


@pytest.mark.slow
def test_a_mesh_of_one_gives_the_same(given, here):
    data = Dataset.sharded(given["X"], given["y"], local_devices(), N, 100)
    wanted = here[1]
    e = CollapsedTarget(MODEL, data).evaluate(given["phi"], given["Z"])
    assert e.log_likelihood == pytest.approx(wanted.log_likelihood, rel=1e-10)
    np.testing.assert_allclose(e.dZ, wanted.dZ, atol=1e-10 * np.abs(wanted.dZ).max())
