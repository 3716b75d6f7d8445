"""A fitted model as one file: everything that a prediction or a report needs, and nothing that can be executed.

The container is that of `tensor_file.py` (safetensors with a checksum over every byte), its content that of
`model_format.py`. Inducing inputs may be rows of the training data, and exact methods keep all training inputs: who
has the file can read those rows. Observations y are not in it.
"""

import contextlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from integrand.data.scaling import Standardiser
from integrand.errors import InputError, ModelFileError, UnregisteredError
from integrand.files import atomic_write
from integrand.infer.base import Chains
from integrand.infer.convergence import Convergence
from integrand.infer.verdict import Finding, Sparseness, Verdict
from integrand.linalg import Jitter
from integrand.model import Model, describe_model, restore_model, same_model
from integrand.posterior.conditional import Conditional, ExactConditional, SparseConditional, VariationalConditional
from integrand.posterior.mixture import finite_array
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.posterior.reweighting import for_chains, picked
from integrand.posterior.updating import Updates
from integrand.storage import tensor_file
from integrand.storage.model_format import (
    FORMAT,
    HEADER,
    NOT_FINITE,
    TENSORS,
    fits,
    misfit,
    number,
    packed,
    thinned,
    unpacked,
    upgraded,
)
from integrand.version import __version__

# Bytes of triangles in a file by default: 400 draws with up to 204 inducing inputs.
MAX_TRIANGLE_BYTES = 64 * 2**20

_CONDITIONALS = {c.kind: c for c in (SparseConditional, ExactConditional, VariationalConditional)}

_DRAWS = [f"draws.{name}" for name in ("phi", *Chains._fields[1:])]


@dataclass(frozen=True)
class SavedModel:
    """What a model file holds: the posterior, and what was noted beside it."""

    posterior: Posterior
    feature_ranges: Float[np.ndarray, "D 2"] | None  # smallest and largest value of each column, in its own units
    target_name: str | None
    library: str  # version that wrote the file
    draws_before_thinning: int  # draws for predicting that the posterior had when it was saved
    settings: dict[str, Any]
    extra: dict[str, Any]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of X, in their order."""
        return self.posterior.model.columns


def save_model(
    posterior: Posterior,
    path: str | os.PathLike[str],
    *,
    feature_ranges: Any = None,
    target_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    max_bytes: int = MAX_TRIANGLE_BYTES,
) -> None:
    """Write a posterior to exactly `path`; a file that is there is replaced as a whole or not at all.

    All draws of the hyperparameters are kept. Of the J draws kept for predicting, each with a triangle of
    4 M (M + 1) bytes, as many stay as fit into `max_bytes`, but at least one: those at the positions
    ``linspace(0, J - 1, kept)``, rounded down. With the default of 64 MiB, 400 draws stay up to M = 204. If all stay,
    the loaded posterior predicts the same to the last bit.

    Inducing inputs may be training rows, and exact methods keep every training input: the file discloses them.

    Parameters
    ----------
    feature_ranges
        Smallest and largest value of each column, shape (D, 2), in the units of the data.
    target_name
        What y is called.
    settings
        How the model was fitted: fields of `Settings`.
    extra
        Anything else that JSON can hold.
    max_bytes
        Limit for the triangles, which are most of a file.
    """
    content = model_bytes(
        posterior,
        feature_ranges=feature_ranges,
        target_name=target_name,
        settings=settings,
        extra=extra,
        max_bytes=max_bytes,
    )
    try:
        atomic_write(path, lambda stream: stream.write(content))
    except OSError as error:
        advice = "make room or make its directory writable, or choose another path"
        raise ModelFileError(f"cannot write {path}: {error.strerror or error}; {advice}") from error


def model_bytes(
    posterior: Posterior,
    *,
    feature_ranges: Any = None,
    target_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
) -> bytes:
    """The content of a model file; see `save_model`. By default all draws stay."""
    conditional = _all_draws(posterior)[1]
    J, M = conditional.weights.shape
    triangle = 4 * M * (M + 1) if conditional.factors.size else 8 * M
    kept = J if max_bytes is None else min(J, max(1, max_bytes // triangle))
    feature_ranges = posterior.ranges if feature_ranges is None else feature_ranges
    header = _header(posterior) | {
        "conditional": {"kind": conditional.kind, "kept": kept, "of": J},
        "feature_ranges": None if feature_ranges is None else finite_array(feature_ranges, "feature_ranges").tolist(),
        "target_name": target_name,
        "settings": {name: number(v) if isinstance(v, float) else v for name, v in (settings or {}).items()},
        "extra": dict(extra or {}),
    }
    try:
        text = json.dumps(header, allow_nan=False, default=_arrays_as_lists)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a model file takes what JSON can hold, and finite numbers only: {error}") from error
    content = tensor_file.to_bytes(text, _arrays(posterior, thinned(J, kept)))
    try:
        _checked(*tensor_file.read(io.BytesIO(content)))  # nothing is written that could not be loaded
    except InputError as error:
        raise InputError(f"this cannot be saved as a model file: {error}") from error
    return content


def save_members(path: str | os.PathLike[str], members: Sequence[bytes], extra: Mapping[str, Any]) -> None:
    """Write several models as one file: `members` are the bytes of model files, `extra` is what JSON can hold."""
    sizes = [len(content) for content in members]
    words = [np.frombuffer(content + bytes(-len(content) % 8), "<i8") for content in members]
    text = json.dumps({"members": sizes, "extra": dict(extra)}, default=_arrays_as_lists)
    content = tensor_file.to_bytes(text, {f"member.{k}": a for k, a in enumerate(words)})
    try:
        atomic_write(path, lambda stream: stream.write(content))
    except OSError as error:
        raise ModelFileError(f"cannot write {path}: {error.strerror or error}; choose another path") from error


def load_members(path: str | os.PathLike[str]) -> tuple[list[SavedModel], dict[str, Any]] | None:
    """What `save_members` wrote, or None if the file holds something else."""
    with contextlib.suppress(OSError, ModelFileError, ValueError):
        with open(path, "rb") as stream:
            text, arrays = tensor_file.read(stream)
        header = json.loads(text)
        if "members" in header:
            contents = (arrays[f"member.{k}"].tobytes()[:size] for k, size in enumerate(header["members"]))
            return [model_from_bytes(content) for content in contents], header["extra"]
    return None


def load_model(path: str | os.PathLike[str]) -> SavedModel:
    """Read what `save_model` wrote. Every byte is checked; anything else is a ModelFileError that says what to do."""
    path = Path(path)
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise ModelFileError("there is no such file; check the path")
        with open(path, "rb") as stream:
            return _saved_model(*_checked(*tensor_file.read(stream)))
    except MemoryError:  # no size that the file claims is allocated: the machine's failure, not the file's
        raise
    except (ModelFileError, UnregisteredError) as error:
        raise ModelFileError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    except Exception as error:  # a header that nobody wrote can fail in many ways
        reason = error if isinstance(error, InputError) else f"this is no model that integrand knows ({error!r})"
        raise ModelFileError(f"{path}: {reason}; upgrade integrand, or {tensor_file.AGAIN}") from error


def model_from_bytes(content: bytes) -> SavedModel:
    """What `model_bytes` made."""
    return _saved_model(*_checked(*tensor_file.read(io.BytesIO(content))))


def _arrays_as_lists(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is none of numbers, texts, lists and dicts")


def _phases(posterior: Posterior) -> list[str]:
    return list(dict.fromkeys(point.phase for point in posterior.history))


def _all_draws(posterior: Posterior) -> tuple[Chains, Conditional]:
    """The draws that a file keeps: after updates all of them, and their weights, not those drawn by weight."""
    updates = posterior.updates
    return (posterior.chains, posterior.conditional) if updates is None else (updates.chains, updates.conditional)


def _arrays(posterior: Posterior, index: np.ndarray) -> dict[str, np.ndarray]:
    """All tensors, in the order of the file, with these of the draws that predict."""
    chains, conditional = _all_draws(posterior)
    conditional = conditional.subset(index)
    scaler, history, phases = posterior.scaler, posterior.history, _phases(posterior)
    values = dict(zip(_DRAWS, chains, strict=True)) | {
        "optimum": posterior.optimum,
        "scaler.x_mean": scaler.x_mean,
        "scaler.x_sd": scaler.x_sd,
        "scaler.y": [scaler.y_mean, scaler.y_sd],
        "conditional.phi": conditional.phis,
        "conditional.inputs": conditional.inputs,
        "conditional.weights": conditional.weights,
        "conditional.triangles": packed(conditional.factors),
        "history.index": np.reshape([(phases.index(point.phase), point.step) for point in history], (-1, 2)),
        "history.bound": np.reshape([point[2:] for point in history], (-1, 3)),
    }
    if posterior.Z_path is not None:
        values["Z_path"] = posterior.Z_path
    if posterior.updates is not None:
        values["draws.log_weight"] = posterior.updates.log_weights.reshape(chains.log_density.shape)
    return {
        name: np.asarray(values[name], tensor_file.DTYPES[layout.split()[0]])
        for name, layout in TENSORS.items()
        if name in values
    }


def _header(posterior: Posterior) -> dict[str, Any]:
    """What the posterior itself says, as JSON."""
    model, verdict, evidence, updates = posterior.model, posterior.verdict, posterior.evidence, posterior.updates
    units = [p.unit for p in model.parameters for _ in range(p.size)]
    return {
        "format": FORMAT,
        "library": __version__,
        "method": posterior.method,
        "model": describe_model(model),
        "hyperparameters": [{"name": n, "unit": unit} for n, unit in zip(model.names, units, strict=True)],
        "jitter": {name: float(value) for name, value in posterior.jitter._asdict().items()},
        "seconds": {name: number(value) for name, value in posterior.seconds.items()},
        "counts": {name: int(value) for name, value in posterior.counts.items()},
        "notes": list(posterior.notes),
        "evidence": evidence and {"log": number(evidence[0]), "error": number(evidence[1])},
        "phases": _phases(posterior),
        "verdict": None if verdict is None else _describe_verdict(verdict),
        "known_noise": posterior.known_noise,
        "updates": updates and {"rows": updates.n_rows, "updates": updates.n_updates, "open": updates.n_open},
    }


def _describe_verdict(verdict: Verdict) -> dict[str, Any]:
    sparseness = verdict.sparseness
    return {
        "findings": [{**f._asdict(), "serious": bool(f.serious)} for f in verdict.findings],
        "names": list(verdict.names),
        **{name: [number(v) for v in values] for name, values in verdict.convergence._asdict().items()},
        "e_bfmi": [number(value) for value in verdict.e_bfmi],
        **{name: int(getattr(verdict, name)) for name in ("divergences", "rejections", "evaluations")},
        "sparseness": sparseness
        and {name: v if isinstance(v, int) else number(v) for name, v in sparseness._asdict().items()},
    }


def _checked(text: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], Model, dict[str, np.ndarray]]:
    """Header, model and arrays, if they are of this format and fit each other."""
    header = upgraded(json.loads(text))
    if "members" in header:
        raise ModelFileError("this file holds a model for each of several classes: open it by SparseGPClassifier.load")
    version = header.get("format")
    if type(version) is int and version > FORMAT:
        raise ModelFileError(f"the file is of format {version}, newer than this integrand knows; upgrade integrand")
    if version != FORMAT or not fits(header, HEADER):
        raise InputError(f"the header is not one of format {FORMAT}")
    model = restore_model(header["model"])
    names = [h["name"] for h in header["hyperparameters"]]
    if not same_model(describe_model(model), header["model"]) or names != list(model.names):
        raise InputError(f"integrand {header['library']}, which described the model, meant another one")
    if reason := misfit(header, arrays, model.n_theta, model.n_columns):
        raise InputError(reason)
    return header, model, arrays


def _saved_model(header: dict[str, Any], model: Model, arrays: dict[str, np.ndarray]) -> SavedModel:
    # Copies, so that the content of the file, of which most is packed triangles, can be freed.
    copies = {name: array.copy() for name, array in arrays.items() if name != "conditional.triangles"}
    conditional = _CONDITIONALS[header["conditional"]["kind"]](
        phis=copies["conditional.phi"],
        inputs=copies["conditional.inputs"],
        weights=copies["conditional.weights"],
        factors=unpacked(arrays["conditional.triangles"]),
    )
    chains, updates = Chains(*(copies[name] for name in _DRAWS)), None
    if header["updates"] is not None:
        updates = _restore_updates(header, chains, conditional, copies["draws.log_weight"].ravel())
        chains, conditional = updates.drawn()
    evidence = header["evidence"]
    phases, index, bounds = header["phases"], copies["history.index"].tolist(), copies["history.bound"].tolist()
    history = tuple(BoundPoint(phases[p], step, *bound) for (p, step), bound in zip(index, bounds, strict=True))
    ranges = None if header["feature_ranges"] is None else np.array(header["feature_ranges"], float)
    posterior = Posterior(
        method=header["method"],
        model=model,
        scaler=Standardiser(copies["scaler.x_mean"], copies["scaler.x_sd"], *copies["scaler.y"].tolist()),
        jitter=Jitter(**{name: float(value) for name, value in header["jitter"].items()}),
        chains=chains,
        conditional=conditional,
        verdict=None if header["verdict"] is None else for_chains(_restore_verdict(header["verdict"]), chains),
        optimum=copies["optimum"],
        history=history,
        Z_path=copies.get("Z_path"),
        seconds={name: float(value) for name, value in header["seconds"].items()},
        counts=header["counts"],
        notes=tuple(header["notes"]),
        evidence=None if evidence is None else (float(evidence["log"]), float(evidence["error"])),
        ranges=ranges,
        known_noise=header["known_noise"],
        updates=updates,
    )
    settings = {name: float(v) if v in NOT_FINITE else v for name, v in header["settings"].items()}
    return SavedModel(
        posterior=posterior,
        feature_ranges=ranges,
        target_name=header["target_name"],
        library=header["library"],
        draws_before_thinning=header["conditional"]["of"],
        settings=settings,
        extra=header["extra"],
    )


def _restore_updates(
    header: dict[str, Any], chains: Chains, conditional: Conditional, log_weights: Float[np.ndarray, " J"]
) -> Updates:
    """Updates of the draws that the file keeps for predicting."""
    kept, of, said = header["conditional"]["kept"], header["conditional"]["of"], header["updates"]
    if kept < of:
        index = thinned(of, kept)
        chains, log_weights = picked(chains, index), log_weights[index]
    return Updates(chains, conditional, log_weights, said["rows"], said["updates"], said["open"])


def _restore_verdict(described: dict[str, Any]) -> Verdict:
    sparseness = described["sparseness"]
    if sparseness is not None:
        nats = {name: float(sparseness[name]) for name in Sparseness._fields[2:]}
        sparseness = Sparseness(sparseness["draws"], sparseness["further"], **nats)
    numbers = {name: np.array(described[name], float) for name in (*Convergence._fields, "e_bfmi")}
    return Verdict(
        tuple(Finding(**finding) for finding in described["findings"]),
        Convergence(*(numbers[name] for name in Convergence._fields)),
        tuple(described["names"]),
        described["divergences"],
        numbers["e_bfmi"],
        described["rejections"],
        described["evaluations"],
        sparseness,
    )
