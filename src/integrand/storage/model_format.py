"""The format of model files: two tables that say what a file holds, and the check that it holds just that."""

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from integrand.storage.tensor_file import DTYPES

FORMAT = 2  # 1 had no evidence, no variational conditionals, and one set of inducing inputs for all draws


KINDS = ("sparse", "exact", "variational")  # of the conditional


NOT_FINITE = ("nan", "inf", "-inf")  # as texts, because JSON has no numbers for them


# Name of each array: dtype and shape, in the order of the file. C chains of n draws of φ (P numbers); J draws kept to
# predict with; M inducing (exact methods: training) inputs of D columns; T = M (M + 1) / 2. In standardised units.
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
    "conditional.inputs": "F64 M D",  # or J M D, where they were drawn with the hyperparameters
    "conditional.weights": "F64 J M",  # m of sparse and variational methods, α of exact ones
    "conditional.triangles": "F64 J T",  # lower triangles of LB (sparse), L (exact) or S, which may be empty (T = 0)
    "Z_path": "F64 R K D",  # K differs from M where the exact GP predicts at re-weighted draws
    "history.index": "I64 H 2",  # phase, as a position in the header's list of phases; step
    "history.bound": "F64 H 3",  # seconds, bound, error
    "draws.log_weight": "F64 C n",  # after `update`: the draws are all those that predicted after the fit
    "draws.diverging": "BOOL C n",  # last, because single bytes would misalign what follows
}


OPTIONAL = {"Z_path", "draws.log_weight"}


MAY_BE_INFINITE = {"draws.energy", "draws.acceptance", "draws.step_size", "draws.log_weight", "history.bound"}


# Numbers of nats over draws of θ; see `infer.verdict.Sparseness`.
SPARSENESS = {
    "draws": int,
    "further": int,
    **{name: float for name in ("gain", "gain_sd", "fresh_gain", "slack", "slack_sd")},
}


# The header: a type, [form of each entry], {str: form of each value}, (alternatives), or just these keys. A number
# that is not finite is one of `NOT_FINITE`.
HEADER: dict[Any, Any] = {
    "format": int,
    "library": str,  # version that wrote the file
    "method": str,
    "model": dict,  # see `describe_model`; its columns are the names of the features
    "hyperparameters": [{"name": str, "unit": str}],  # each entry of φ; in units of x or y once multiplied by their sd
    "jitter": {"relative": float, "absolute": float},
    "conditional": {"kind": str, "kept": int, "of": int},  # draws kept, of those there were
    "feature_ranges": (NoneType, [[float]]),  # smallest and largest value of each column, in the units of the data
    "target_name": (NoneType, str),
    "settings": dict,
    "seconds": {str: float},
    "counts": {str: int},
    "notes": [str],
    "evidence": (NoneType, {"log": float, "error": float}),
    "phases": [str],
    "verdict": (
        NoneType,
        {
            "findings": [{"code": str, "serious": bool, "sentence": str, "remedy": str}],
            "names": [str],
            **{name: [float] for name in ("r_hat", "ess_bulk", "ess_tail", "e_bfmi")},
            **{name: int for name in ("divergences", "rejections", "evaluations")},
            "sparseness": (NoneType, SPARSENESS),
        },
    ),
    "extra": dict,
    "known_noise": bool,  # whether the noise of each row was known
    "updates": (NoneType, {name: int for name in ("rows", "updates", "open")}),  # see `posterior.updating.Updates`
}


def upgraded(header: dict[str, Any]) -> dict[str, Any]:
    """A header of before as one of today's, without what was not known then; others as they are."""
    if type(header.get("format")) is int and header["format"] == 1 and "evidence" not in header:
        header = header | {"format": FORMAT, "evidence": None}
    verdict = header.get("verdict")
    if isinstance(verdict, dict) and "sparseness" not in verdict:
        header = header | {"verdict": verdict | {"sparseness": None}}
    if "format" in header and "updates" not in header:
        header = header | {"updates": None}
    if "format" in header and "known_noise" not in header:
        extra = header.get("extra")  # where `integrand fit` noted the column
        header = header | {"known_noise": isinstance(extra, dict) and extra.get("noise_column") is not None}
    return header


def number(value: float) -> float | str:
    """A number as JSON has it; `float` is the way back."""
    return float(value) if math.isfinite(value) else str(float(value))


def fits(value: Any, form: Any) -> bool:
    """Whether a JSON value has one of the forms that are used in `HEADER`."""
    if isinstance(form, tuple):
        return any(fits(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(v, form[0]) for v in value)
    if isinstance(form, dict):
        forms = dict.fromkeys(value, form[str]) if str in form and isinstance(value, dict) else form
        return isinstance(value, dict) and value.keys() == forms.keys() and all(fits(value[k], forms[k]) for k in value)
    return type(value) is form or (form is float and value in NOT_FINITE)


def misfit(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], n_theta: int, n_columns: int) -> str:
    """Why these do not belong to a model with `n_theta` hyperparameters and `n_columns` columns; "" if they do."""
    return _misfit_of_arrays(arrays, n_theta, n_columns) or _misfit_of_header(header, arrays, n_theta, n_columns)


def _misfit_of_arrays(arrays: Mapping[str, np.ndarray], n_theta: int, n_columns: int) -> str:
    if unexpected := sorted((TENSORS.keys() - OPTIONAL - arrays.keys()) | (arrays.keys() - TENSORS.keys())):
        return f"the array {unexpected[0]!r} is {'unknown' if unexpected[0] in arrays else 'missing'}"
    lengths = {"P": n_theta, "D": n_columns, "2": 2, "3": 3}
    for name, (dtype, *axes) in ((name, layout.split()) for name, layout in TENSORS.items() if name in arrays):
        array = arrays[name]
        if name == "conditional.inputs" and array.ndim == 3:
            axes = ["J", *axes]
        if array.dtype != DTYPES[dtype]:
            return f"{name} is of dtype {array.dtype}, not {DTYPES[dtype]}"
        lengths = dict(zip(axes, array.shape, strict=False)) | lengths  # an axis has the length it had at first
        if array.shape != tuple(lengths.get(axis) for axis in axes):
            return f"{name} has shape {array.shape}, which does not fit the model and the other arrays"
        if name == "conditional.inputs":
            empty = arrays["conditional.triangles"].shape[1:] == (0,)
            lengths["T"] = 0 if empty else lengths["M"] * (lengths["M"] + 1) // 2
        if dtype == "F64" and name not in MAY_BE_INFINITE and not np.all(np.isfinite(array)):
            return f"{name} has values that are not finite"
    if 0 in (lengths["C"], lengths["J"], lengths["M"]):
        return "there is no chain, no draw to predict with, or no input"
    diagonal = [i * (i + 3) // 2 for i in range(lengths["M"])]
    triangles = arrays["conditional.triangles"]
    if triangles.size and not np.all(triangles[:, diagonal] > 0):
        return "conditional.triangles are not Cholesky factors"
    return ""


def _misfit_of_header(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], n_theta: int, n_columns: int) -> str:
    conditional, verdict, ranges = header["conditional"], header["verdict"], header["feature_ranges"]
    n_draws, phase = len(arrays["conditional.phi"]), arrays["history.index"][:, 0]
    if conditional["kind"] not in KINDS or not conditional["kept"] == n_draws <= conditional["of"]:
        return "the header does not describe the draws to predict with"
    if arrays["conditional.triangles"].size == 0 and conditional["kind"] != "variational":
        return "conditional.triangles are empty"
    if weights := header["updates"] is not None:
        log_weights = arrays.get("draws.log_weight", np.full((1, 1), np.nan))
        if log_weights.size != conditional["of"] or np.any(np.isnan(log_weights) | (log_weights == np.inf)):
            return "draws.log_weight does not have the weight of each draw"
        if not np.any(np.isfinite(log_weights.ravel()[thinned(conditional["of"], n_draws)])):
            return "all weights of draws are zero"
    if weights != ("draws.log_weight" in arrays):
        return "the header does not say of which updates the weights of draws are"
    if header["evidence"] is not None and not float(header["evidence"]["error"]) >= 0.0:
        return "the evidence has no standard error"
    if not all(0.0 <= float(value) < math.inf for value in header["jitter"].values()):
        return f"the jitter is {header['jitter']}"
    if np.any((phase < 0) | (phase >= len(header["phases"]))):
        return "the history of the bound has unknown phases"
    if ranges is not None:
        if any(len(pair) != 2 for pair in ranges) or len(ranges) != n_columns:
            return f"feature_ranges must have a smallest and a largest value for each of {n_columns} columns"
        if not all(-math.inf < float(low) <= float(high) < math.inf for low, high in ranges):
            return "feature_ranges must be finite, the smallest value first"
    if verdict is not None:
        lengths = {len(verdict[name]) for name in ("names", "r_hat", "ess_bulk", "ess_tail")}
        if lengths != {n_theta} or len(verdict["e_bfmi"]) != len(arrays["draws.phi"]):
            return "the verdict is about other hyperparameters or chains"
    return ""


def thinned(of: int, kept: int) -> Int[np.ndarray, " kept"]:
    """Positions of the draws that a file keeps for predicting: `linspace(0, of - 1, kept)`, rounded down."""
    return np.linspace(0, of - 1, kept).astype(int)


def packed(factors: Float[np.ndarray, "J M M"]) -> Float[np.ndarray, "J T"]:
    """Lower triangles, row after row."""
    if factors.shape[1] == 0:
        return np.zeros((len(factors), 0))
    return np.concatenate([factors[:, i, : i + 1] for i in range(factors.shape[1])], axis=1)


def unpacked(triangles: Float[np.ndarray, "J T"]) -> Float[np.ndarray, "J M M"]:
    """The matrices whose lower triangles these are, zero above the diagonal."""
    M = (math.isqrt(8 * triangles.shape[1] + 1) - 1) // 2
    factors = np.zeros((len(triangles), M, M))
    for i in range(M):
        factors[:, i, : i + 1] = triangles[:, i * (i + 1) // 2 : (i + 1) * (i + 2) // 2]
    return factors
