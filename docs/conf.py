"""Configuration of the documentation site: `make docs` builds it into `build/docs/html`.

Nothing is fetched from a network, neither here nor by a reader's browser: MathJax and its fonts come from the package
`sphinx-mathjax-offline`, icons and styles from the theme.
"""

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "docs"
sys.path.insert(0, str(HERE / "_ext"))

from integrand.version import __version__  # noqa: E402

project = "integrand"
author = "The integrand developers"
copyright = "the integrand developers, Apache-2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "generated",
]
exclude_patterns = ["_ext"]

# Pages. Anchors for headings of three levels, so that links to sections are checked.
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath", "smartquotes"]
myst_heading_anchors = 3

# Every `{code-cell}` runs at build time, in a directory of its own; again only if the code of its page changed.
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "executed")
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 900
nb_merge_streams = True
nb_output_stderr = "remove"
os.environ.setdefault("INTEGRAND_CACHE", str(BUILD / "programs"))

# The reference, from docstrings. In them single backticks mean code, and | and * are the field's symbols.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
strip_signature_backslash = True  # keeps the last letter of `posterior_`

html_theme = "pydata_sphinx_theme"
html_title = "integrand"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"index": []}
html_theme_options = {
    "logo": {"text": "integrand"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "back_to_top_button": False,
}
html_context = {"default_mode": "auto"}

# MathJax of the package, of which one output format and its fonts are enough.
mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {"options": {"enableMenu": False}}


def copy_mathjax(app):
    """Put MathJax beside the other static files of the site."""
    source = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    target = Path(app.outdir) / "_static" / "mathjax"
    fonts = Path("output") / "chtml" / "fonts"
    shutil.copytree(source / fonts, target / fonts, dirs_exist_ok=True)
    shutil.copy(source / "tex-chtml.js", target)


def escape_symbols(app, what, name, obj, options, lines):
    """Keep |x| and q*(θ) of a docstring from being read as markup. Runs before napoleon."""
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", " – ")  # napoleon takes what comes before a colon there for a type
    for i, line in enumerate(lines):
        lines[i] = re.sub(r"(?<![\\*`])\*(?![*`])", r"\*", line.replace("|", r"\|"))


def setup(app):
    """Hooks of this file."""
    app.connect("builder-inited", copy_mathjax)
    app.connect("autodoc-process-docstring", escape_symbols, priority=100)
