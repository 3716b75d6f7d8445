"""A Sphinx extension: pages that are made from the code, or held against it, when they are read.

- `<!-- commands -->` in a page becomes the options of every command, as `--help` has them.
- The tables of `reference/settings` must name every setting with its true default.
"""

import dataclasses
import re
from collections.abc import Iterator

COMMANDS = "<!-- commands -->"
SETTINGS_PAGE = "reference/settings"
_SETTING_ROW = re.compile(r"^\| `(\w+)` \| `([^`]*)` \|", re.M)


def on_read(app, page: str, source: list[str]) -> None:
    """Change or check the text of a page before it is parsed."""
    if COMMANDS in source[0]:
        source[0] = source[0].replace(COMMANDS, "\n".join(command_sections()))
    if page == SETTINGS_PAGE:
        check_settings(source[0])


def command_sections() -> Iterator[str]:
    """Markdown sections, one for each command: its help, its usage, its arguments and options."""
    import typer

    from integrand.cli.app import app

    group = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        parameters = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
        arguments = [p for p in parameters if p.param_type_name == "argument"]
        options = [p for p in parameters if p.param_type_name == "option"]
        usage = " ".join([p.metavar or p.name.upper() for p in arguments] + ["[OPTIONS]"])
        yield from ["", f"## integrand {name}", "", (command.help or "").strip(), ""]
        yield from ["```text", f"integrand {name} {usage}", "```", ""]
        yield from [":::{table}", ":class: options", "", "| option | default | what it does |", "|---|---|---|"]
        for p in [*arguments, *options]:
            label = p.metavar or p.name.upper() if p in arguments else ", ".join(sorted(p.opts, key=len))
            yield f"| `{label}` | {_default(p)} | {_cell(p.help or '')} |"
        yield from [":::", ""]


def _default(parameter) -> str:
    """The default as a reader would type it; what must be given is called required."""
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or value == "" or callable(value):
        return ""
    return f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def check_settings(text: str) -> None:
    """Refuse a settings page that leaves a setting out, invents one, or shows another default than the code's."""
    from integrand.methods.problem import Settings

    shown = dict(_SETTING_ROW.findall(text))
    true = {f.name: str(f.default) for f in dataclasses.fields(Settings)}
    wrong = [name for name in {**true, **shown} if shown.get(name) != true.get(name)]
    if wrong:
        lines = [
            f"{name}: page {shown.get(name, 'has no row')}, code {true.get(name, 'has no field')}" for name in wrong
        ]
        raise ValueError(f"docs/{SETTINGS_PAGE}.md does not match Settings:\n" + "\n".join(lines))


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", on_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
