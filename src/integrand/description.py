"""Models as plain data (JSON) and back: for run directories and model files, where nothing executable is stored."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from integrand import kernels
from integrand.errors import InputError
from integrand.kernels.base import Kernel, Product, Sum
from integrand.likelihoods import LIKELIHOODS, Gaussian, Likelihood
from integrand.model import Model
from integrand.priors import Prior

_LEAF_NAMES = "RBF Matern12 Matern32 Matern52 RationalQuadratic Periodic Linear Polynomial Constant"
_LEAVES = {name: getattr(kernels, name) for name in _LEAF_NAMES.split()}
_COMBINATIONS = {"Sum": Sum, "Product": Product}


def describe_model(model: Model) -> dict[str, Any]:
    """A model as JSON."""
    described = {
        "kernel": _describe_kernel(model.kernel),
        "noise": _describe_value(model.noise),
        "mean": _describe_value(model.mean),
        "columns": list(model.columns),
        "priors": model.priors,
    }
    if model.likelihood == Gaussian():  # what descriptions without the word mean
        return described
    return described | {"likelihood": {"name": model.likelihood.name, **dataclasses.asdict(model.likelihood)}}


def model_from(description: Mapping[str, Any]) -> Model:
    """The model that `describe_model` described."""
    try:
        return Model(
            _kernel_from(description["kernel"]),
            list(description["columns"]),
            _value_from(description["noise"]),
            _value_from(description["mean"]),
            description["priors"],
            _likelihood_from(description.get("likelihood")),
        )
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"this is not the description of a model: {error!r}") from error


def _likelihood_from(description: Mapping[str, Any] | None) -> Likelihood:
    if description is None:
        return Gaussian()
    fields = dict(description)
    name = fields.pop("name")
    if name not in LIKELIHOODS:
        raise InputError(f"this version knows no likelihood {name!r}")
    return LIKELIHOODS[name](**fields)


def _describe_kernel(kernel: Kernel) -> dict[str, Any]:
    if isinstance(kernel, (Sum, Product)):
        parts = [_describe_kernel(part) for part in kernel.parts]
        return {"type": type(kernel).__name__, "name": kernel.name, "parts": parts}
    fields = {f.name: _describe_value(getattr(kernel, f.name)) for f in dataclasses.fields(kernel)}
    return {"type": type(kernel).__name__, "fields": fields}


def _kernel_from(description: Mapping[str, Any]) -> Kernel:
    kind = description["type"]
    if kind in _COMBINATIONS:
        return _COMBINATIONS[kind](parts=tuple(map(_kernel_from, description["parts"])), name=description["name"])
    if kind not in _LEAVES:
        raise InputError(f"this version knows no kernel {kind!r}")
    return _LEAVES[kind](**{name: _value_from(value) for name, value in description["fields"].items()})


def _describe_value(value: Any) -> Any:
    if isinstance(value, Prior):
        return {"prior": value.family, "arguments": list(value.arguments), "on_variance": value.squared}
    return list(value) if isinstance(value, tuple) else value


def _value_from(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Prior.named(value["prior"], tuple(map(float, value["arguments"])), bool(value["on_variance"]))
    return tuple(value) if isinstance(value, list) else value
