import copy
import dataclasses
import errno
import hashlib
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

import integrand
from integrand.errors import InputError, ModelFileError
from integrand.infer.convergence import Convergence
from integrand.kernels.base import LeafKernel, hyperparameter
from integrand.posterior.conditional import SparseConditional
from integrand.storage import tensor_file
from integrand.storage.model_file import SavedModel, load_model, save_model
from integrand.storage.model_format import HEADER, MAY_BE_INFINITE, TENSORS, fits, packed, unpacked, upgraded

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
FIRST = FIXTURES / "model-format-1.integrand"
COLUMNS = ["age", "größe"]


def data(n=40):
    rng = np.random.default_rng(3)
    X = rng.uniform(-3.0, 3.0, (n, 2)) * [1.0, 50.0] + [0.0, 170.0]
    return X, 20.0 + np.sin(X[:, 0]) + 0.01 * X[:, 1] + 0.1 * rng.standard_normal(n)


def composite():
    wave = integrand.Periodic(active=(0,), name="wave") * integrand.RBF(active=(0,))
    trend = integrand.Linear(scale=integrand.on_variance(integrand.InverseGamma(3.0, 2.0)), active=(1,))
    return (
        wave.named("season") + trend.named("trend") + integrand.Matern32(lengthscale=integrand.standardised((1.5, 2.5)))
    ).named("all")


FITS = {
    "ml2": {"method": "ml2", "n_inducing": 8, "steps": 40},
    "gpr-ml2": {"method": "gpr-ml2", "steps": 40},
    "sgpr-hmc": {"n_inducing": 8, "chains": 2, "max_draws": 30, "max_rounds": 1, "predictive_draws": 50},
    "composite": {
        "method": "map",
        "kernel": composite(),
        "noise": integrand.on_variance(integrand.Gamma(2.0, 4.0)),
        "mean": integrand.standardised(integrand.Normal(0.0, 2.0)),
        "jitter": integrand.Jitter(1e-7, 1e-9),
        "n_inducing": 5,
        "steps": 20,
    },
}

# Arrays of a fit that was not updated.
HELD = [name for name in TENSORS if name != "draws.log_weight"]


@pytest.fixture(scope="module")
def fitted():
    made = {}

    def posterior(name):
        if name not in made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", integrand.ConvergenceWarning)
                made[name] = integrand.fit(integrand.ArrayRows(*data(), COLUMNS), **FITS[name])
        return made[name]

    return posterior


def same(a, b):
    """Equal to the last bit, whatever it is made of."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a) and not isinstance(a, integrand.Model):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b or (a != a and b != b)  # NaN, as of the spread over a single draw


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "sgpr-hmc" else pytest.mark.slow) for n in FITS])
def test_round_trip_is_equal_to_the_last_bit(fitted, tmp_path, name):
    before, path = fitted(name), tmp_path / "model"
    save_model(before, path)
    assert os.listdir(tmp_path) == ["model"]
    after = load_model(path).posterior
    for field in dataclasses.fields(before):
        assert same(getattr(before, field.name), getattr(after, field.name)), field.name
    assert after.model.columns == before.model.columns == tuple(COLUMNS)
    assert repr(after.model) == repr(before.model)
    X = np.random.default_rng(0).uniform(-4.0, 4.0, (9, 2)) * [1.0, 60.0] + [0.0, 170.0]
    for noise in (True, False):
        old, new = (posterior.predict(X, include_noise=noise) for posterior in (before, after))
        assert same(old.mean, new.mean)
        assert same(old.variance, new.variance)
        assert same(old.quantile(np.array([0.05, 0.9])), new.quantile(np.array([0.05, 0.9])))
        assert same(old.joint_log_density(np.full(9, 21.0)), new.joint_log_density(np.full(9, 21.0)))
    assert same(list(before.theta_original.values()), list(after.theta_original.values()))
    assert same(before.Z, after.Z)
    if name == "sgpr-hmc":
        assert after.verdict.codes == before.verdict.codes
        assert str(after.verdict) == str(before.verdict)
        assert not after.verdict.ok
    save_model(after, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_what_is_noted_beside_the_posterior(fitted, tmp_path):
    posterior, path = fitted("ml2"), tmp_path / "model.bin"
    X, _ = data()
    ranges = np.column_stack([X.min(axis=0), X.max(axis=0)])
    extra = {"text": 'σ² "quoted" "sha256":"' + "0" * 64 + '"', "list": [1, 2.5, None, {"a": True}]}
    settings = {"target_ess": float("inf"), "seed": np.int64(3), "max_minutes": None, "schedule": "default"}
    save_model(posterior, path, feature_ranges=ranges, target_name="Größe", settings=settings, extra=extra)
    saved = load_model(path)
    assert same(saved.feature_ranges, ranges)
    assert saved.feature_names == tuple(COLUMNS)
    assert saved.target_name == "Größe"
    assert saved.extra == extra
    assert saved.settings == settings
    assert saved.library == integrand.__version__
    assert saved.draws_before_thinning == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        saved.target_name = "y"
    save_model(posterior, path)
    saved = load_model(path)
    assert same(saved.feature_ranges, posterior.ranges)
    assert (saved.target_name, saved.settings, saved.extra) == (None, {}, {})


def test_values_that_are_not_finite_survive_where_they_make_sense(fitted, tmp_path):
    before = fitted("sgpr-hmc")
    P, C = before.model.n_theta, len(before.chains.x)
    numbers = Convergence(np.full(P, np.inf), np.full(P, np.nan), np.zeros(P))
    verdict = dataclasses.replace(before.verdict, convergence=numbers, e_bfmi=np.full(C, -np.inf))
    history = (*before.history, before.history[0]._replace(phase="odd", bound=-np.inf, error=np.nan))
    chains = before.chains._replace(energy=np.full_like(before.chains.energy, np.inf))
    before = dataclasses.replace(before, verdict=verdict, history=history, chains=chains)
    save_model(before, tmp_path / "model")
    after = load_model(tmp_path / "model").posterior
    assert np.array_equal(after.verdict.convergence.r_hat, numbers.r_hat)
    assert np.all(np.isnan(after.verdict.convergence.ess_bulk))
    assert same(after.verdict.e_bfmi, verdict.e_bfmi)
    assert after.history[-1][:4] == history[-1][:4]
    assert np.isnan(after.history[-1].error)
    assert same(after.chains.energy, chains.energy)


def test_packed_triangles():
    factors = np.tril(np.random.default_rng(0).standard_normal((3, 5, 5)))
    triangles = packed(factors)
    assert triangles.shape == (3, 15)
    assert same(triangles, factors[:, *np.tril_indices(5)])
    assert same(unpacked(triangles), factors)
    for M in range(1, 30):
        assert unpacked(np.ones((1, M * (M + 1) // 2))).shape == (1, M, M)


def test_further_thinning_is_even_and_recorded(fitted, tmp_path):
    before, path = fitted("sgpr-hmc"), tmp_path / "model"
    J, M = before.conditional.weights.shape
    assert (J, M) == (50, 8)
    for max_bytes, kept in (
        (10**9, J),
        (4 * M * (M + 1) * J, J),
        (4 * M * (M + 1) * J - 1, J - 1),
        (4 * M * (M + 1) * 7, 7),
        (0, 1),
    ):
        save_model(before, path, max_bytes=max_bytes)
        saved = load_model(path)
        after = saved.posterior.conditional
        index = np.linspace(0, J - 1, kept).astype(int)
        assert len(set(index)) == kept
        assert same(after.phis, before.conditional.phis[index])
        assert same(after.factors, before.conditional.factors[index])
        assert same(after.inputs, before.conditional.inputs)
        assert saved.draws_before_thinning == J
        assert same(saved.posterior.chains, before.chains)
        assert saved.posterior.predict(data()[0], include_noise=True).n_draws == kept


def test_the_size_is_that_of_the_arrays(fitted, tmp_path):
    before, path = fitted("sgpr-hmc"), tmp_path / "model"
    M, J, P, D = 100, 400, before.model.n_theta, 2
    rng = np.random.default_rng(0)
    LB = np.broadcast_to(np.tril(rng.uniform(0.1, 1.0, (M, M))), (J, M, M))
    conditional = SparseConditional(
        rng.standard_normal((J, P)), rng.standard_normal((M, D)), rng.standard_normal((J, M)), LB
    )
    large = dataclasses.replace(before, conditional=conditional, Z_path=conditional.inputs[None])
    save_model(large, path)
    triangles = 4 * M * (M + 1) * J
    assert triangles < path.stat().st_size < 1.05 * triangles
    assert same(load_model(path).posterior.conditional.factors, np.array(LB))


def test_other_programs_can_read_it(fitted, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    numpy_reader = pytest.importorskip("safetensors.numpy")
    save_model(fitted("sgpr-hmc"), tmp_path / "model")
    for path in (tmp_path / "model", FIRST):
        with safetensors.safe_open(path, framework="np") as file:
            metadata = file.metadata()
        header = json.loads(metadata["integrand"], parse_constant=pytest.fail)
        assert fits(upgraded(header), HEADER)
        assert set(metadata) == {"integrand", "sha256"}
        with open(path, "rb") as stream:
            _, expected = tensor_file.read(stream)
        arrays = numpy_reader.load_file(path)
        assert arrays.keys() == expected.keys() == {*HELD}
        for name, array in arrays.items():
            assert same(array, expected[name])


# What is not saved


class Custom(LeafKernel):
    scale: object = hyperparameter()

    def __call__(self, X1, X2):
        return X1 @ X2.T * self.scale

    def gram(self, X):
        return self(X, X)

    def diagonal(self, X):
        return (X**2).sum(axis=1) * self.scale


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature_ranges": [[0.0, 1.0]]}, "each of 2 columns"),
        ({"feature_ranges": [[0.0, 1.0], [1.0, 0.0]]}, "smallest value first"),
        ({"feature_ranges": [[0.0, 1.0], [1.0, np.nan]]}, "NaN"),
        ({"feature_ranges": "wide"}, "numbers"),
        ({"feature_ranges": 3.0}, "header"),
        ({"extra": {"x": np.nan}}, "JSON"),
        ({"extra": {"x": object()}}, "JSON"),
        ({"extra": {"x": "y" * 5 * 2**20}}, "bytes"),
        ({"settings": {"x": {1, 2}}}, "JSON"),
    ],
)
def test_notes_that_cannot_be_saved(fitted, tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        save_model(fitted("ml2"), tmp_path / "model", **change)
    assert os.listdir(tmp_path) == []


def test_posteriors_that_cannot_be_saved(fitted, tmp_path):
    posterior = fitted("ml2")
    sparse = posterior.conditional
    custom = integrand.Model(Custom(scale=2.0), COLUMNS, posterior.model.noise)
    for bad, message in (
        (dataclasses.replace(posterior, model=custom), "Custom"),
        (
            dataclasses.replace(posterior, conditional=dataclasses.replace(sparse, factors=sparse.factors * np.nan)),
            "not finite",
        ),
        (dataclasses.replace(posterior, conditional=dataclasses.replace(sparse, factors=-sparse.factors)), "Cholesky"),
        (dataclasses.replace(posterior, conditional=sparse.subset(slice(0))), "no draw"),
        (dataclasses.replace(posterior, optimum=posterior.optimum[1:]), "optimum"),
    ):
        with pytest.raises(InputError, match=message):
            save_model(bad, tmp_path / "model")
    assert os.listdir(tmp_path) == []


# What cannot be written


def test_a_write_that_fails_leaves_the_previous_file(fitted, tmp_path, monkeypatch):
    path = tmp_path / "model"
    save_model(fitted("ml2"), path)
    content = path.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            with pytest.raises(ModelFileError, match=r"cannot write .*model: No space left.*make room"):
                save_model(fitted("gpr-ml2"), path)
        assert os.listdir(tmp_path) == ["model"]
        assert path.read_bytes() == content


def test_paths_that_cannot_be_written_or_read(fitted, tmp_path):
    posterior = fitted("ml2")
    (tmp_path / "folder" / "full").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing" / "model", tmp_path / "folder", tmp_path / "file" / "model"):
        with pytest.raises(ModelFileError, match="cannot write"):
            save_model(posterior, path)
        with pytest.raises(ModelFileError, match="no such file"):
            load_model(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="no such file"):
        load_model(tmp_path / "pipe")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "pipe"]


def test_a_read_only_directory(fitted, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write to a read-only directory; the failing steps above stand in for it")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(ModelFileError, match=r"cannot write .*Permission denied.*writable"):
            save_model(fitted("ml2"), tmp_path / "model")
    finally:
        tmp_path.chmod(0o755)


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    code = """
import sys
from integrand.storage.model_file import load_model, save_model
posterior = load_model(sys.argv[1]).posterior
print("started", flush=True)
for i in range(10**9):
    save_model(posterior, sys.argv[2], extra={"i": i})
"""
    path = tmp_path / "model"
    writer = subprocess.Popen([sys.executable, "-c", code, FIRST, path], stdout=subprocess.PIPE, text=True)
    with writer:
        assert writer.stdout.readline() == "started\n"
        deadline = time.monotonic() + 30.0
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.13)
        writer.send_signal(signal.SIGKILL)
    saved = load_model(path)
    assert saved.extra["i"] >= 0
    assert same(saved.posterior, load_model(FIRST).posterior)


# What cannot be loaded


def reassembled(index, body):
    """A file with this header and a checksum that matches it."""
    index["__metadata__"]["sha256"] = "0" * 64
    header = json.dumps(index, separators=(",", ":")).encode()
    start = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(start + header + body).hexdigest()
    return start + header.replace(b'"sha256":"' + b"0" * 64, f'"sha256":"{digest}'.encode()) + body


def parts(content):
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def with_header(content, change):
    """The file with its own JSON changed."""
    index, body = parts(content)
    header = json.loads(index["__metadata__"]["integrand"])
    header = change(header) or header
    index["__metadata__"]["integrand"] = json.dumps(header)
    return reassembled(index, body)


def with_index(content, change):
    """The file with its list of arrays changed."""
    index, body = parts(content)
    change(index)
    return reassembled(index, body)


def with_array(content, name, change):
    index, body = parts(content)
    begin, end = index[name]["data_offsets"]
    array = np.frombuffer(body[begin:end], tensor_file.DTYPES[index[name]["dtype"]]).copy()
    change(array)
    return reassembled(index, body[:begin] + array.tobytes() + body[end:])


def refused(tmp_path, content, match):
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=match) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_the_crafting_tools_are_sound(tmp_path):
    content, path = FIRST.read_bytes(), tmp_path / "model"
    same_again = [with_header(content, lambda h: h), with_index(content, lambda i: None)]
    for again in (*same_again, with_array(content, "optimum", lambda a: None)):
        path.write_bytes(again)
        assert same(load_model(path), load_model(FIRST))


def set_in(*keys):
    *way, last, value = keys

    def change(tree):
        for key in way:
            tree = tree[key]
        tree[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_in("format", 3), "format 3, newer.*upgrade"),
        (set_in("format", 0), "not one of format 2"),
        (set_in("format", "1"), "not one of format 2"),
        (set_in("format", True), "not one of format 2"),
        (set_in("surprise", 1), "not one of format 2"),
        (lambda h: [1], "no model that integrand knows"),
        (lambda h: "text", "no model that integrand knows"),
        (set_in("seconds", {"a": "long"}), "not one of format 2"),
        (set_in("counts", {"a": 1.5}), "not one of format 2"),
        (set_in("notes", "text"), "not one of format 2"),
        (set_in("verdict", "names", []), "verdict"),
        (set_in("verdict", "e_bfmi", [1.0]), "verdict"),
        (set_in("verdict", "surprise", 1), "not one of format 2"),
        (set_in("phases", []), "phases"),
        (set_in("jitter", "relative", -1.0), "jitter"),
        (set_in("jitter", "relative", "nan"), "jitter"),
        (set_in("conditional", "kind", "dense"), "draws to predict with"),
        (set_in("conditional", "kept", 24), "draws to predict with"),
        (set_in("conditional", "of", 24), "draws to predict with"),
        (set_in("feature_ranges", [[0.0, 1.0]]), "columns"),
        (set_in("feature_ranges", [[0.0, 1.0, 2.0]] * 2), "columns"),
        (set_in("feature_ranges", [[0.0, "inf"]] * 2), "finite"),
        (set_in("model", "kernel", "parts", 0, "type", "Unheard"), "knows no kernel 'Unheard'"),
        (set_in("model", "kernel", "type", "__import__"), "knows no kernel"),
        (set_in("model", "noise", "prior", "Unheard"), "no prior 'Unheard'"),
        (set_in("model", "noise", "prior", "__class__"), "no prior"),
        (set_in("model", "noise", "arguments", [2.0, -4.0]), "not a distribution"),
        (set_in("model", "noise", "arguments", [10**400, 1]), "no model that integrand knows"),
        (set_in("model", "noise", "arguments", []), "not the description of a model"),
        (set_in("model", "noise", "on_variance", "yes"), "meant another one"),
        (set_in("model", "columns", ["t"]), "only columns"),
        (set_in("model", "columns", "tm"), "meant another one"),
        (set_in("model", "columns", ["u", "mass"]), "meant another one"),
        (set_in("model", "columns", ["t", "mass", "z"]), "scaler.x_mean has shape"),
        (set_in("model", "noise", 0.1), "meant another one"),
        (set_in("hyperparameters", 0, "name", "noise"), "meant another one"),
        (set_in("model", {}), "not the description of a model"),
    ],
)
def test_headers_that_make_no_sense(tmp_path, change, message):
    content = with_header(FIRST.read_bytes(), change)
    refused(tmp_path, content, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("optimum"), "not where it should be"),
        (lambda index: index.pop("draws.diverging"), "left over"),
        (
            lambda index: index.update(surprise={"dtype": "F64", "shape": [0], "data_offsets": [13128] * 2}),
            "'surprise'",
        ),
        (lambda index: index.update(Z=index.pop("optimum")), "not where it should be"),
        (set_in("draws.phi", "dtype", "I64"), "draws.phi is of dtype"),
        (set_in("draws.phi", "dtype", "BF16"), "makes no sense"),
        (set_in("draws.phi", "dtype", ["F64"]), "makes no sense"),
        (set_in("draws.phi", "shape", [40, 2, 4]), "draws.log_density has shape"),
        (set_in("draws.phi", "shape", [2, 4, 40]), "draws.phi has shape"),
        (set_in("draws.phi", "shape", [320]), "draws.phi has shape"),
        (set_in("draws.phi", "shape", [1, 2, 40, 4]), "draws.phi has shape"),
        (set_in("draws.phi", "shape", [1] * 9), "impossible shape"),
        (set_in("draws.phi", "shape", [2**62, 2**62, 2**62]), "impossible shape"),
        (set_in("draws.phi", "shape", [-2, -40, 4]), "impossible shape"),
        (set_in("draws.phi", "shape", [2, 40, 4.0]), "impossible shape"),
        (set_in("draws.phi", "shape", "big"), "impossible shape"),
        (set_in("draws.phi", "shape", None), "makes no sense"),
        (set_in("draws.phi", "data_offsets", [8, 2568]), "not where it should be"),
        (set_in("draws.phi", "data_offsets", [0, 2**63]), "not where it should be"),
        (set_in("draws.phi", {}), "makes no sense"),
        (set_in("draws.phi", 3), "makes no sense"),
        (set_in("conditional.inputs", "shape", [2, 6]), "conditional.inputs has shape"),
        (set_in("conditional.triangles", "shape", [21, 25]), "conditional.triangles has shape"),
        (set_in("conditional.weights", "shape", [6, 25]), "conditional.weights has shape"),
        (set_in("__metadata__", "integrand", "{"), "no model that integrand knows"),
        (set_in("__metadata__", "integrand", "[" * 100_000), "no model that integrand knows"),
        (set_in("__metadata__", "integrand", 3), "no model that integrand knows"),
        (lambda index: index["__metadata__"].pop("integrand"), "makes no sense"),
    ],
)
def test_lists_of_arrays_that_make_no_sense(tmp_path, change, message):
    refused(tmp_path, with_index(FIRST.read_bytes(), change), message)


@pytest.mark.parametrize("name", HELD)
def test_arrays_whose_values_make_no_sense(tmp_path, name):
    content = FIRST.read_bytes()
    if name == "draws.diverging":
        index, body = parts(content)
        refused(tmp_path, reassembled(index, body[:-1] + b"\x02"), "true and false")
    elif name == "history.index":
        refused(tmp_path, with_array(content, name, lambda a: a.fill(99)), "unknown phases")
    elif "F64" in TENSORS[name] and name not in (
        "draws.energy",
        "draws.acceptance",
        "draws.step_size",
        "history.bound",
    ):
        for value in (np.nan, np.inf):
            refused(tmp_path, with_array(content, name, lambda a, v=value: a.__setitem__(-1, v)), f"{name}.*not finite")
    for changed, message in (
        ("conditional.triangles", "Cholesky"),
        ("scaler.x_sd", "positive"),
        ("scaler.y", "positive"),
    ):
        if name == changed:
            refused(tmp_path, with_array(content, name, lambda a: np.negative(a, out=a)), message)


def test_files_of_other_kinds(tmp_path):
    content = FIRST.read_bytes()
    others = [b"", b"\x00", b"\x00" * 8, b"\xff" * 8, b"\xff" * 5000, b"{}", b"PK\x03\x04" + b"\x00" * 100, content[8:]]
    others += [(2**63).to_bytes(8, "little") + content[8:], (2).to_bytes(8, "little") + b"{}", content[:8]]
    foreign = b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    others.append(len(foreign).to_bytes(8, "little") + foreign + b"\x00" * 4)
    for other in others:
        refused(tmp_path, other, "no model file of integrand")
    sparse = tmp_path / "sparse"  # a terabyte of nothing, of which no more than the first bytes are read
    with open(sparse, "wb") as stream:
        stream.write(len(foreign).to_bytes(8, "little") + foreign)
        stream.truncate(10**12)
    with pytest.raises(ModelFileError, match="no model file of integrand"):
        load_model(sparse)


JUNK = [
    None,
    "junk",
    "nan",
    [],
    {},
    [[]],
    -1,
    10**400,
    1e308,
    True,
    ["x"] * 4,
    {"prior": "system", "arguments": ["id"]},
]


def mutations(content, count, rng):
    """Mutated files, and whether each of them has to be refused."""
    index, body = parts(content)
    header = json.loads(index["__metadata__"]["integrand"])
    for i in range(count):
        kind = i % 8
        if kind < 3:  # 1 to 4 flipped bits
            changed = bytearray(content)
            for bit in rng.sample(range(8 * len(content)), rng.choice((1, 1, 2, 4))):
                changed[bit // 8] ^= 1 << bit % 8
            yield bytes(changed), True
        elif kind == 3:
            yield content[: rng.randrange(len(content))], True
        elif kind == 4:
            yield content + rng.randbytes(rng.choice((1, 8, 1000))), True
        elif kind == 5:  # an entry of the list of arrays, with a checksum that matches
            changed, name = copy.deepcopy(index), rng.choice(HELD)
            entry, part = changed[name], rng.choice(("dtype", "shape", "data_offsets"))
            before = copy.deepcopy(entry)
            if part == "dtype":
                entry["dtype"] = rng.choice(["F64", "I64", "BOOL", "F32", "U8", "O", "", None])
            else:
                numbers, at = entry[part], rng.randrange(len(entry[part]))
                numbers[at] = rng.choice(
                    [0, 1, -1, 2**31, 2**62, 2**64, 10**30, numbers[at] + 1, numbers[-1], 0.5, "x"]
                )
            yield reassembled(changed, body), entry != before
        elif kind == 6:  # a value somewhere in the header, with a checksum that matches
            changed = copy.deepcopy(header)
            tree, way = changed, []
            while True:
                key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
                way.append(key)
                if not isinstance(tree[key], (dict, list)) or not tree[key] or rng.random() < 0.2:
                    break
                tree = tree[key]
            junk, old = rng.choice(JUNK), tree[key]
            tree[key] = junk
            harmless = junk in (None, "nan") or type(junk) is type(old) or way[0] in ("model", "settings", "extra")
            yield with_header(content, lambda h, c=changed: c), not harmless
        else:  # numbers that are not numbers, with a checksum that matches
            name = rng.choice([name for name in HELD if "F64" in TENSORS[name] and name not in MAY_BE_INFINITE])
            begin, end = index[name]["data_offsets"]
            at, value = rng.randrange(begin, end, 8), rng.choice([np.nan, np.inf, -np.inf])
            changed = body[:at] + np.float64(value).tobytes() + body[at + 8 :]
            yield reassembled(copy.deepcopy(index), changed), True


@pytest.mark.parametrize("number", [400, pytest.param(2_000, marks=pytest.mark.slow)])
def test_mutated_files(number, tmp_path, as_users_see_it):
    content, path = FIRST.read_bytes(), tmp_path / "model"
    load_model(FIRST)  # imports what is imported late
    before, rss = load_model(FIRST), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded, messages, peak = 0, set(), 0
    began = time.process_time()
    tracemalloc.start()
    try:
        for i, (mutated, must_fail) in enumerate(mutations(content, number, random.Random(0))):
            if i == 200:  # some of each kind; tracing takes most of the time
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            path.write_bytes(mutated)
            try:
                saved = load_model(path)
            except ModelFileError as error:
                messages.add(str(error))
                continue
            assert not must_fail
            assert isinstance(saved, SavedModel)
            assert saved.posterior.chains.x.shape == before.posterior.chains.x.shape
            loaded += 1
    finally:
        tracemalloc.stop()
    assert loaded < 0.1 * number  # a note, a count or an extra that was changed together with the checksum
    assert all(str(path) in message for message in messages)
    assert 0 < peak < 10 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss < 200 * 1024
    assert time.process_time() - began < 60.0
    path.write_bytes(content)
    assert same(load_model(path), load_model(FIRST))


def test_nothing_is_executed(tmp_path):
    # In a process of its own: here the checker of signatures compiles code whenever it likes.
    code = """
import sys
from pathlib import Path
from integrand.errors import ModelFileError
from integrand.storage.model_file import load_model
first, *files = sorted(Path(sys.argv[1]).iterdir())
for _ in range(2):
    load_model(first)  # imports what is imported late
watched = "exec compile import pickle.find_class os.system os.exec subprocess.Popen ctypes.dlopen".split()
events = []
sys.addaudithook(lambda event, what: events.append((event, str(what))) if event in watched else None)
refused = 0
for file in files:
    try:
        load_model(file)
    except ModelFileError:
        refused += 1
found, number = list(events), len(files)
print(found, refused, number)
"""
    content = FIRST.read_bytes()
    (tmp_path / "0").write_bytes(content)
    (tmp_path / "pickle").write_bytes(pickle.dumps(print))
    for i, (mutated, _) in enumerate(mutations(content, 100, random.Random(1))):
        (tmp_path / f"bad{i}").write_bytes(mutated)
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    events, refused, number = done.stdout.rsplit(maxsplit=2)
    assert events == "[]"
    assert 85 <= int(refused) <= int(number) == 101


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_every_bit_of_the_start_and_the_end_counts(step, tmp_path):
    """Of every byte, or of the first ones and of some."""
    content, path = FIRST.read_bytes(), tmp_path / "model"
    for byte in (*range(9), *range(9, 200, step), content.index(b'"sha256"') + 20, len(content) - 1):
        for bit in range(8):
            path.write_bytes(content[:byte] + bytes([content[byte] ^ 1 << bit]) + content[byte + 1 :])
            with pytest.raises(ModelFileError):
                load_model(path)


# The first format, for ever


def test_a_file_of_the_first_format_loads():
    expected = json.loads((FIXTURES / "model-format-1.json").read_text())
    saved = load_model(FIRST)
    assert FIRST.stat().st_size < 60_000
    assert saved.library == "0.1.0"
    assert saved.feature_names == ("t", "mass")
    assert saved.target_name == "lift"
    assert saved.feature_ranges.shape == (2, 2)
    assert saved.settings["seed"] == 1
    assert saved.extra == {"why": "the first format", "nested": {"list": [1, 2.5, None, True]}}
    posterior = saved.posterior
    assert posterior.method == "sgpr-hmc"
    assert list(posterior.verdict.codes) == expected["codes"]
    assert [p.phase for p in posterior.history] == ["warm start", "round"]
    X = np.array(expected["X"])
    of_y, of_f = (posterior.predict(X, include_noise=noise) for noise in (True, False))
    for value, name in (
        (of_y.mean, "mean"),
        (of_y.sd, "sd_y"),
        (of_f.sd, "sd_f"),
        (of_y.quantile(0.5), "median"),
        (of_y.log_density(np.full(4, 7.0)), "log_density_at_7"),
    ):
        np.testing.assert_allclose(value, expected[name], rtol=1e-9)
    theta = {name: values[0, 0] for name, values in posterior.theta_original.items()}
    assert theta.keys() == expected["theta"].keys() | {"mean"}  # which is fixed
    for name, value in expected["theta"].items():
        np.testing.assert_allclose(theta[name], value, rtol=1e-12)
