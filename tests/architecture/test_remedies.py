"""Remedies name parameters that exist in Python, and on the command line flags that exist there."""

import ast
import dataclasses
import json
import re
from inspect import signature

import pytest
from source import MODULES
from typer.main import get_command

from integrand.cli.app import app, fit
from integrand.cli.commands import flag_words, parsed_settings
from integrand.errors import InputError
from integrand.estimators import SparseGPRegressor
from integrand.infer.verdict import MODEL_CODES
from integrand.methods.fit import Settings
from integrand.methods.fit import fit as python_fit

# Modules whose findings have codes that are not literals, and which codes.
COMPUTED = {
    "integrand.infer.verdict": {"interrupted", "budget", "r-hat", "ess-bulk", "ess-tail"},
    "integrand.infer.minibatch_adam": {"interrupted", "budget"},
    "integrand.methods.collapsed_vi": {"interrupted", "budget"},
    "integrand.methods.nested": {"interrupted", "budget"},
    "integrand.methods.fit": set(),  # those of `units`
    "integrand.posterior.model_findings": {
        *("duplicate-columns", "collinear-columns"),
        *("intervals-narrow", "intervals-wide"),
    },
    "integrand.storage.model_file": set(),
    "integrand.units": {"lengthscale-outside-data"},
}


def findings_in(module):
    """Arguments of each `Finding(...)` and `Doubt(...)` of a module."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Finding", "Doubt"):
            yield node.args


def codes():
    found = set().union(*COMPUTED.values())
    for module in MODULES:
        for arguments in findings_in(module):
            if arguments and isinstance(arguments[0], ast.Constant):
                found.add(arguments[0].value)
            else:
                assert module in COMPUTED, f"{module} has a finding with a code that no test knows"
    return found


def remedies():
    """Texts in calls of `Finding`, and those that are put together before; formatted values as 0."""
    for module, path in MODULES.items():
        parts = [argument for arguments in findings_in(module) for argument in arguments]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if parts else ():
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("remedy", "more", "student"):
                parts.append(node.value)
        for node in (node for part in parts for node in ast.walk(part)):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else "0" for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def named():
    ticks = (re.findall(r"`([A-Za-z_]+)(?:=[^`]*)?`", text) for text in remedies())
    return {name for names in ticks for name in names}


def is_parameter(name):
    settings = {field.name for field in dataclasses.fields(Settings)}
    return name in settings | set(signature(python_fit).parameters) | set(signature(SparseGPRegressor).parameters)


def test_remedies_are_found():
    assert {"n_inducing", "max_draws", "target_accept", "likelihood", "kernel"} <= named()


def test_every_name_is_a_parameter():
    """Of `fit`, of its settings or of the estimators."""
    assert [name for name in sorted(named()) if not is_parameter(name)] == []


def test_every_flag_exists():
    words, flags = flag_words(fit), {f for p in get_command(app).commands["fit"].params for f in p.opts}
    for name in filter(is_parameter, named()):
        said = words(f"`{name}=1`")
        if said.endswith("(in Python)"):
            assert name not in {field.name for field in dataclasses.fields(Settings)}
        else:
            assert re.match(r"`(--[a-z-]+)", said)[1] in flags, said


@pytest.mark.parametrize(
    ("remedy", "said"),
    [
        ("Use `n_inducing=200`.", "Use `--inducing 200`."),
        ("Allow more: `max_draws` or `max_minutes`.", "Allow more: `--max-draws` or `--max-minutes`."),
        ('Use `likelihood="student-t"`.', "Use `--likelihood student-t`."),
        ("Raise `target_accept=0.95`.", "Raise `--set target_accept=0.95`."),
        ("Say more by `jitter`.", "Say more by `--set jitter=...`."),
        ("Leave `Z` out.", "Leave `Z` (in Python) out."),
        ("No names here.", "No names here."),
    ],
)
def test_words_of_the_command_line(remedy, said):
    assert flag_words(fit)(remedy) == said


def test_settings_by_name():
    texts = ["target_accept=0.95", "optimiser=adam", "subsample=false", 'jitter={"relative": 1e-6}']
    values = {"target_accept": 0.95, "optimiser": "adam", "subsample": False, "jitter": {"relative": 1e-6}}
    assert parsed_settings(texts, fit) == values
    assert Settings.of(parsed_settings(texts, fit)).target_accept == 0.95
    assert parsed_settings(None, fit) == {}


@pytest.mark.parametrize(("text", "reason"), [("warmup", "name=value"), ("n_inducing=20", "--inducing")])
def test_settings_that_are_refused(text, reason):
    with pytest.raises(InputError, match=reason):
        parsed_settings([text], fit)


def test_every_code_is_explained():
    """In the tables of one page, and on the side of the draws or of the model."""
    page = (MODULES["integrand"].parents[2] / "docs" / "explanation" / "verdict.md").read_text(encoding="utf-8")
    draws, model = page.split("\n## The model\n")
    listed = {
        side: set(re.findall(r"`([a-z-]+)`", " ".join(re.findall(r"^\|([^|]*)\|", side, re.M))))
        for side in (draws, model)
    }
    on_model = {code for code in codes() if code in MODEL_CODES or code.endswith("-outside-data")}
    assert codes() - on_model <= listed[draws]
    assert on_model <= listed[model]
    assert json.dumps(sorted(MODEL_CODES))  # plain texts
