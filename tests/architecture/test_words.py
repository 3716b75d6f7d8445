"""The field's own words, and what a reader has to hold in mind.

Private names for things that every reader of the field knows by other names are banned.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize

from source import MODULES, ROOT

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
