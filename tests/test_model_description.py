import copy
import json

import pytest

from integrand import (
    RBF,
    Constant,
    Gamma,
    HalfCauchy,
    InputError,
    InverseGamma,
    Linear,
    LogNormal,
    Matern32,
    Model,
    Normal,
    Periodic,
    Polynomial,
    RationalQuadratic,
    on_variance,
)
from integrand.model import describe_model, restore_model
from reference import KERNELS

MODELS = {name: Model(kernel, 3, noise=0.1) for name, kernel in KERNELS.items()} | {
    "open": Model(RBF(), ["age", "größe"]),
    "tight": Model(RBF(), 2, bound="tight"),
    "scaled": Model(Matern32(ard=False), 2, priors="scaled", mean=Normal(0.0, 2.0)),
    "priors": Model(
        RBF(lengthscale=Gamma(2.0, 0.1), scale=on_variance(InverseGamma(3.0, 1e-300)), active=(1,)).named("ab"),
        2,
        noise=on_variance(HalfCauchy(1 / 3)),
    ),
    "tree": Model(
        (Periodic(active=(0,)) * RBF(active=(1,)) + Linear(ard=True)).named("all")
        + Polynomial(3) * RationalQuadratic(alpha=LogNormal(0.0, 1.0))
        + Constant(),
        2,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_round_trip_through_json(name):
    model = MODELS[name]
    back = restore_model(json.loads(json.dumps(describe_model(model))))
    assert back == model
    assert hash(back) == hash(model)
    assert back.names == model.names
    assert back.columns == model.columns
    assert back.priors == model.priors
    assert repr(back) == repr(model)
    assert [p.prior for p in back.parameters] == [p.prior for p in model.parameters]


def test_other_models_have_other_descriptions():
    texts = [json.dumps(describe_model(model), sort_keys=True) for model in MODELS.values()]
    assert len(set(texts)) == len(texts)


def changed(path, value):
    description = json.loads(json.dumps(describe_model(MODELS["priors"])))
    *way, last = path
    place = description
    for key in way:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return description


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["kernel"], None),
        (["noise"], None),
        (["columns"], None),
        (["kernel"], "RBF"),
        (["kernel", "type"], "Kernel"),
        (["kernel", "type"], "__import__"),
        (["kernel", "fields"], None),
        (["kernel", "fields", "nonsense"], 1.0),
        (["kernel", "fields", "lengthscale", "prior"], "exec"),
        (["kernel", "fields", "lengthscale", "prior"], "MultivariateNormal"),
        (["kernel", "fields", "lengthscale", "arguments"], None),
        (["kernel", "fields", "lengthscale", "arguments"], ["a"]),
        (["kernel", "fields", "lengthscale", "arguments"], [1.0, 2.0, 3.0, 4.0]),
        (["kernel", "fields", "lengthscale", "arguments"], [-1.0, 1.0]),
        (["kernel", "fields", "lengthscale"], "1 + 1"),
        (["noise", "arguments"], [float("inf")]),
        (["columns"], []),
        (["columns"], 3),
    ],
)
def test_what_is_no_description_is_an_input_error(path, value):
    with pytest.raises(InputError):
        restore_model(changed(path, value))


def test_describing_changes_nothing():
    description = describe_model(MODELS["tree"])
    before = copy.deepcopy(description)
    restore_model(description)
    assert description == before
