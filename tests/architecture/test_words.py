"""The field's own words, and what a reader has to hold in mind.

Private names for things that every reader of the field knows by other names are banned.
"""

import ast
import dataclasses
import io
import json
import re
import subprocess
import sys
import tokenize
from inspect import signature

import pytest
from source import MODULES, ROOT
from typer.main import get_command

from integrand.cli.app import app, compare, fit, update
from integrand.cli.commands import flag_words, parsed_settings
from integrand.errors import InputError
from integrand.estimators import SparseGPRegressor
from integrand.infer.verdict import MODEL_CODES
from integrand.methods.fit import Settings
from integrand.methods.fit import fit as python_fit

# Parts of identifiers, and what to write in their place.
IDENTIFIERS = {
    "jump jumps jumping jumped": "proposal",
    "drift drifts drifting": "transition",
    "bend bends bent straightened": "warp",
    "whitening": "coordinates",
    "tuning tuned": "warmup",
    "slot slots": "record, field",
    "watch watcher watched": "callback, snapshot",
    "grow grown": "subsample",
    "dear cheap": "exact, surrogate",
    "climb climbs climbed": "maximise, ascent",
    "ahead ready": "cached",
    "purpose": "seed",
    "told seen tried led fallen judged": "a noun for the value",
    "recipe": "spec",
    "issuer": "thread",
    "complain leads": "report, is_leader",
    "survey surveyed": "overview",
    "hopeless": "implausible",
}
# In comments, docstrings and messages: words that have no other meaning here, and phrases.
TEXT = (
    r"\bjump(s|ed|ing)?\b",
    r"\bdrift(s|ed|ing)?\b",
    r"\bdear\b",
    r"\btuning\b",
    r"\bclimb(s|ed|ing)?\b",
    r"\banew\b",
    r"\bso many\b",
    r"\bled astray\b",
    r"\btell(s)? (\w+ ){1,3}apart from\b",
)
_INSTEAD = {word: better for words, better in IDENTIFIERS.items() for word in words.split()}
_TEXT_TOKENS = {tokenize.STRING, tokenize.COMMENT}


def private_words(code: str) -> list[tuple[int, str]]:
    """Lines and banned words of a file."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NAME:
            parts = re.split(r"_|(?<=[a-z])(?=[A-Z])", token.string)
            found += [
                (token.start[0], f"{token.string}: write {_INSTEAD[p.lower()]}") for p in parts if p.lower() in _INSTEAD
            ]
        elif token.type in _TEXT_TOKENS:
            text = " ".join(token.string.split())
            found += [
                (token.start[0], m.group()) for pattern in TEXT for m in re.finditer(pattern, text, re.IGNORECASE)
            ]
    return found


def test_no_private_words():
    found = {module: private_words(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
    assert {module: words for module, words in found.items() if words} == {}


def test_every_module_says_what_it_is_for():
    """In its first line: a sentence that starts with a capital and is not only its name."""
    for module, path in MODULES.items():
        first = path.read_text(encoding="utf-8").split("\n", 1)[0]
        assert re.match(r'"""[A-Z0-9`].{12,}', first), module


def test_a_private_word_would_be_seen():
    assert [line for line, _ in private_words("x = 1\njump_share = 2\nclass FinalWatch: ...\n")] == [2, 3]
    assert private_words('"""Tuning ends."""')
    assert private_words("# A jump is accepted.")
    assert private_words("acceptance = proposal  # of an independence proposal") == []


# ---- what a reader has to hold in mind: files, parameters, and the files that one fit runs through


MAX_FILES = 138
MAX_PARAMETERS, MAX_LONG_SIGNATURES = 8, 7
MAX_FILES_OF_A_FIT = 52


def long_signatures(code: str) -> list[str]:
    """Functions with more than MAX_PARAMETERS parameters, without `self` and `cls`."""
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            a = node.args
            parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            if len([p for p in parameters if p.arg not in ("self", "cls")]) > MAX_PARAMETERS:
                names.append(node.name)
    return names


def test_files():
    assert len(MODULES) <= MAX_FILES


def test_few_functions_have_many_parameters():
    found = [(m, name) for m, path in MODULES.items() for name in long_signatures(path.read_text(encoding="utf-8"))]
    assert len(found) <= MAX_LONG_SIGNATURES, found


def test_a_long_signature_would_be_seen():
    assert long_signatures("def f(self, a, b, c, d, e, *f, g, **h): ...") == []
    assert long_signatures("def f(a, b, c, d, e, *f, g, h, **i): ...") == ["f"]


@pytest.mark.slow
def test_a_default_fit_runs_through_few_files():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "trace_fit.py"), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    assert "methods/sgpr_hmc.py" in files
    assert len(files) <= MAX_FILES_OF_A_FIT, files


# ---- remedies: what they advise exists, in Python and on the command line

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


def test_a_likelihood_chooses_its_method():
    assert [text for text in remedies() if "`likelihood=" in text and "`method=" in text] == []


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


def test_words_of_other_commands():
    """An updated model was made by `fit`; `compare` has no `--set`."""
    assert flag_words(fit, update)("`n_inducing=16`, `old_rows`") == "`--inducing 16`, `--old-rows`"
    assert flag_words(compare)("`n_inducing=16`, `warmup`") == "`--inducing 16`, `warmup`"


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
