"""A fitted model as one file: everything that a prediction or a report needs, and nothing that can be executed.

The file is a safetensors file: eight bytes with the length of a JSON header, the header, then the tensors of
`TENSORS` one after another, numbers in little-endian order. The header's ``__metadata__`` holds two texts:
``integrand``, itself JSON (`HEADER`), and ``sha256``, the checksum of the whole file with its own 64 digits as zeros.

Inputs in `conditional.inputs` and `Z_path` are inducing inputs, which may be rows of the training data (exact
methods keep all of them): who has the file can read those rows.
"""

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float

from integrand.data.scaling import Standardiser
from integrand.description import describe_model, model_from
from integrand.errors import InputError, ModelFileError
from integrand.infer.diagnostics import Convergence, Finding, Verdict
from integrand.infer.nuts import Chains
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import ExactConditional, SparseConditional, draws_of
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.posterior.storage import atomic_write

FORMAT = 1
LARGEST_HEADER = 4 * 2**20
LARGEST_TRIANGLES = 64 * 2**20

# Name of each tensor: dtype and shape, in the order of the file. C chains of n draws of φ (P numbers), J draws kept
# to predict with, M inducing (or training) inputs of D columns, T = M (M + 1) / 2. All in standardised units.
TENSORS = {
    "draws.phi": "F64 C n P",
    "draws.log_density": "F64 C n",
    "draws.energy": "F64 C n",
    "draws.acceptance": "F64 C n",
    "draws.n_steps": "I64 C n",
    "draws.depth": "I64 C n",
    "draws.step_size": "F64 C n",
    "optimum": "F64 P",
    "scaler.x_mean": "F64 D",
    "scaler.x_sd": "F64 D",
    "scaler.y": "F64 2",  # mean, sd
    "conditional.phi": "F64 J P",
    "conditional.inputs": "F64 M D",
    "conditional.weights": "F64 J M",  # m of sparse methods, α of exact ones
    "conditional.triangles": "F64 J T",  # lower triangles of LB (sparse) or L (exact), row after row
    "Z_path": "F64 R M D",  # absent if the method has none
    "history.index": "I64 H 2",  # phase, as a position in the header's list of phases, and step
    "history.bound": "F64 H 3",  # seconds, bound, error
    "draws.diverging": "BOOL C n",
}
MAY_BE_INFINITE = {"draws.energy", "draws.acceptance", "draws.step_size", "history.bound"}

# What the JSON of `integrand` holds: types, [of each entry], {str: of each value}, (alternatives). Numbers that are
# not finite are the texts "nan", "inf" and "-inf".
HEADER: dict[Any, Any] = {
    "format": int,
    "library": str,
    "method": str,
    "model": dict,
    "hyperparameters": [[str]],  # name and unit of each entry of φ
    "jitter": {"relative": float, "absolute": float},
    "conditional": {"kind": str, "kept": int, "of": int},
    "feature_ranges": (NoneType, [[float]]),
    "target_name": (NoneType, str),
    "settings": dict,
    "seconds": {str: float},
    "counts": {str: int},
    "notes": [str],
    "phases": [str],
    "verdict": (
        NoneType,
        {
            "findings": [{"code": str, "serious": bool, "sentence": str, "remedy": str}],
            "names": [str],
            **dict.fromkeys(("r_hat", "ess_bulk", "ess_tail", "e_bfmi"), [float]),
            **dict.fromkeys(("divergences", "rejections", "evaluations"), int),
        },
    ),
    "extra": dict,
}

_DTYPES = {"F64": np.dtype("<f8"), "I64": np.dtype("<i8"), "BOOL": np.dtype("?")}
_CONDITIONALS = {"sparse": SparseConditional, "exact": ExactConditional}
_DRAWS = [f"draws.{name}" for name in ("phi", *Chains._fields[1:])]
_DIGEST, _ZEROS = re.compile(rb'"sha256":"([0-9a-f]{64})"'), b"0" * 64
_AGAIN = "get another copy of the file, or save the model again"


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


def save_model(
    posterior: Posterior,
    path: str | os.PathLike[str],
    *,
    feature_ranges: Any = None,
    target_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    max_bytes: int = LARGEST_TRIANGLES,
) -> None:
    """Write a posterior to exactly `path`, replacing a file that is there as a whole or not at all.

    All draws of the hyperparameters are kept. Of the J draws kept for predicting, each with a triangle of
    4 M (M + 1) bytes, as many stay as fit into `max_bytes`, but at least one: those at the positions
    ``linspace(0, J - 1, kept)``, rounded down. With the default of 64 MiB, 400 draws stay up to M = 204. If all stay,
    the loaded posterior predicts the same to the last bit. Inducing inputs may be training rows, and exact methods
    keep every training input: the file discloses them.

    Parameters
    ----------
    feature_ranges
        Smallest and largest value of each column, shape (D, 2), in the units of the data.
    target_name
        What y is called.
    settings
        How the model was fitted.
    extra
        Anything else that JSON can hold.
    """
    path, conditional = Path(path), posterior.conditional
    J, M = conditional[2].shape
    kept = max(1, min(J, max_bytes // (4 * M * (M + 1))))
    arrays = _arrays(posterior, np.linspace(0, J - 1, kept).astype(int))
    kind = next(kind for kind, known in _CONDITIONALS.items() if isinstance(conditional, known))
    header = _header(posterior) | {
        "conditional": {"kind": kind, "kept": kept, "of": J},
        "feature_ranges": None if feature_ranges is None else np.asarray(feature_ranges, float).tolist(),
        "target_name": target_name,
        "settings": {k: _number(v) if isinstance(v, float) else v for k, v in (settings or {}).items()},
        "extra": dict(extra or {}),
    }
    try:
        content = _content(json.dumps(header, allow_nan=False), arrays)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a model file takes finite numbers, text, lists and dicts as extras: {error}") from error
    try:
        _read(io.BytesIO(content))  # so that no file is written which cannot be loaded
    except (ModelFileError, InputError) as error:
        raise ModelFileError(f"this model cannot be saved to {path}: {error}") from error
    try:
        atomic_write(path, lambda stream: stream.write(content))
    except OSError as error:
        advice = "make room or make its directory writable, or choose another path"
        raise ModelFileError(f"cannot write {path}: {error.strerror or error}; {advice}") from error


def load_model(path: str | os.PathLike[str]) -> SavedModel:
    """Read what `save_model` wrote; every byte is checked, and anything else is a ModelFileError."""
    path = Path(path)
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise ModelFileError("there is no such file; check the path")
        with open(path, "rb") as stream:
            return _saved_model(*_read(stream))
    except MemoryError:  # no size that the file claims is allocated: the machine's failure, not the file's
        raise
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    except Exception as error:  # bytes that nobody wrote can fail in many ways
        reason = f"it describes no model that this version knows ({type(error).__name__}: {error})"
        raise ModelFileError(f"{path}: {reason}; upgrade integrand, or {_AGAIN}") from error


def _arrays(posterior: Posterior, kept: np.ndarray) -> dict[str, np.ndarray]:
    """All tensors, in the order of the file."""
    phi, inputs, weights, factors = draws_of(posterior.conditional, kept)
    scaler, history, phases = posterior.scaler, posterior.history, _phases(posterior)
    values = dict(zip(_DRAWS, posterior.chains, strict=True)) | {
        "optimum": posterior.optimum,
        "scaler.x_mean": scaler.x_mean,
        "scaler.x_sd": scaler.x_sd,
        "scaler.y": [scaler.y_mean, scaler.y_sd],
        "conditional.phi": phi,
        "conditional.inputs": inputs,
        "conditional.weights": weights,
        "conditional.triangles": packed(factors),
        "history.index": np.reshape([(phases.index(p.phase), p.step) for p in history], (-1, 2)),
        "history.bound": np.reshape([p[2:] for p in history], (-1, 3)),
    }
    if posterior.Z_path is not None:
        values["Z_path"] = posterior.Z_path
    return {name: np.asarray(values[name], _DTYPES[TENSORS[name].split()[0]]) for name in TENSORS if name in values}


def _header(posterior: Posterior) -> dict[str, Any]:
    """What the posterior itself says, as JSON."""
    from integrand import __version__  # the root imports this module

    units = [p.unit for p in posterior.model.parameters for _ in range(p.size)]
    header = {
        "format": FORMAT,
        "library": __version__,
        "method": posterior.method,
        "model": describe_model(posterior.model),
        "hyperparameters": [list(pair) for pair in zip(posterior.model.names, units, strict=True)],
        "jitter": {name: float(value) for name, value in posterior.jitter._asdict().items()},
        "seconds": {name: _number(value) for name, value in posterior.seconds.items()},
        "counts": {name: int(value) for name, value in posterior.counts.items()},
        "notes": list(posterior.notes),
        "phases": _phases(posterior),
        "verdict": None,
    }
    if (found := posterior.verdict) is not None:
        header["verdict"] = {
            "findings": [{**f._asdict(), "serious": bool(f.serious)} for f in found.findings],
            "names": list(found.names),
            **{name: [_number(v) for v in values] for name, values in found.convergence._asdict().items()},
            "e_bfmi": [_number(value) for value in found.e_bfmi],
            **{name: int(getattr(found, name)) for name in ("divergences", "rejections", "evaluations")},
        }
    return header


def _phases(posterior: Posterior) -> list[str]:
    return list(dict.fromkeys(p.phase for p in posterior.history))


def _number(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def packed(factors: Float[np.ndarray, "J M M"]) -> Float[np.ndarray, "J T"]:
    """Lower triangles, row after row."""
    M = factors.shape[-1]
    return np.concatenate([factors[:, i, : i + 1] for i in range(M)], axis=1)


def unpacked(triangles: Float[np.ndarray, "J T"]) -> Float[np.ndarray, "J M M"]:
    """The matrices whose lower triangles these are, zero above the diagonal."""
    M = (math.isqrt(8 * triangles.shape[1] + 1) - 1) // 2
    factors = np.zeros((len(triangles), M, M))
    for i in range(M):
        factors[:, i, : i + 1] = triangles[:, i * (i + 1) // 2 : (i + 1) * (i + 2) // 2]
    return factors


def _content(text: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a file."""
    index: dict[str, Any] = {"__metadata__": {"integrand": text, "sha256": _ZEROS.decode()}}
    at = 0
    for name, array in arrays.items():
        dtype = TENSORS[name].split()[0]
        index[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    header = json.dumps(index, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that tensors start at multiples of 8
    if len(header) > LARGEST_HEADER:
        raise ValueError(f"the header has {len(header)} bytes, more than {LARGEST_HEADER}")
    body = b"".join(array.tobytes() for array in arrays.values())
    prefix = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(prefix + header + body).hexdigest()
    return prefix + _DIGEST.sub(f'"sha256":"{digest}"'.encode(), header) + body
