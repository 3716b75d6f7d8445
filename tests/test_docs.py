"""What README and the pages of `docs/` show is true: examples run, commands exist, settings have their defaults."""

import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from integrand.cli.app import app

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs" / "_ext"))

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_readme_shows_what_its_example_prints(tmp_path):
    section = (ROOT / "README.md").read_text().split("## A first fit")[1]
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", section, re.S)[:2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    # The verdict's numbers depend on the processor's rounding; what was predicted does not, to a unit.
    assert result.stdout.startswith("Converged: R-hat at most 1.0")
    shown, seen = (re.findall(r"\d+\.\d*", text[text.index("\n[") :]) for text in (printed, result.stdout))
    assert len(shown) == len(seen) > 10
    assert all(abs(float(a) - float(b)) < 3.0 for a, b in zip(shown, seen, strict=True))


def shown_commands():
    """Every line that starts with `integrand`, after a prompt if there is one, in a block of code."""
    for page in PAGES:
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                found = re.match(r"\s*(?:[$!]\s*)?(integrand (?!REPO).*)", line)
                if found and "[OPTIONS]" not in line:
                    yield pytest.param(found.group(1), id=f"{page.relative_to(ROOT)}: {found.group(1)[:60]}")


@pytest.mark.parametrize("command", list(shown_commands()))
def test_shown_command_exists(command, tmp_path, monkeypatch):
    """Its options are known; files need not be there."""
    words = shlex.split(re.sub(r"(\s&|\s#.*|\s\d?>.*)$", "", command))[1:]
    words = [word for word in words if word not in ("…", "...")]
    group = typer.main.get_command(app)
    if words[0].startswith("-"):
        assert words[0] in ("--help", "--version")
        return
    chosen = group.commands[words[0]]
    required = {p.opts[-1] for p in chosen.params if p.required and p.param_type_name == "option"}
    short = "…" in command or "..." in command  # shows only what matters there
    given = words[1:] + [part for option in required - set(words) if short for part in (option, "x")]
    chosen.make_context(words[0], given)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_between_files(name):
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", (ROOT / name).read_text())
    assert not [link for link in links if not (ROOT / link).exists()]


def test_paper_map_names_what_is_there():
    text = (ROOT / "docs" / "reference" / "paper-map.md").read_text()
    for name in set(re.findall(r"`((?:integrand|experiments)(?:\.\w+)+)", text)):
        assert pkgutil.resolve_name(name) is not None
    for path in re.findall(r"`(tests/[^`]*)`", text):
        assert (ROOT / path).exists(), path


def test_settings_page_has_every_setting_with_its_default():
    from generated import check_settings

    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    check_settings(text)
    with pytest.raises(ValueError, match="n_inducing"):
        check_settings(text.replace("`n_inducing` | `100`", "`n_inducing` | `99`"))


def test_reference_names_everything_public():
    import integrand

    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    missing = [
        n for n in integrand.__all__ if not n.startswith("_") and not re.search(rf"\bintegrand(\.\w+)*\.{n}\b", text)
    ]
    assert not missing
