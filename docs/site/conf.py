"""Sphinx configuration of the site that `make docs` builds from docs/. docs/index.md is the navigation."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.writers.html5 import HTML5Translator

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "python"))  # autodoc reads the docstrings of the client
sys.path.insert(0, str(HERE))

project = "larder"
author = "the larder authors"
copyright = author
version = release = re.search(r'__version__ = "([^"]+)"', (ROOT / "python/larder/_version.py").read_text())[1]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["site"]
nitpicky = True  # with -W every cross-reference that leads nowhere fails the build
nitpick_ignore_regex = [("py:.*", r".*")]  # docstrings name types of other packages
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
# A line of a paragraph may begin with "%", as in "95 % of", or with "+++": neither is a comment here.
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target", "myst_role"]
smartquotes_action = "D"  # dashes alone: quotes of a page are often code

default_role = "literal"  # one backtick in a docstring is code, as in Markdown
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
python_maximum_signature_line_length = 100  # longer ones have a line for each argument
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "larder"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_favicon = "static/icon.svg"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "light_logo": "icon.svg",
    "dark_logo": "icon.svg",
    "light_css_variables": {
        "color-brand-primary": "#0f766e",
        "color-brand-content": "#0f766e",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
        "font-stack--monospace": "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    },
    "dark_css_variables": {"color-brand-primary": "#2dd4bf", "color-brand-content": "#2dd4bf"},
}


def anchors(app, docname, source):
    """Turns `<a id="x"></a>`, which is an anchor on any Markdown viewer, into one that MyST links to.

    Patterns of the navigation that no page matches are dropped: Sphinx cannot be asked to keep quiet about them.
    """
    if docname == root_doc:
        lines = source[0].splitlines(keepends=True)
        source[0] = "".join(x for x in lines if not re.match(r"[\w/-]+\*", x) or any(DOCS.glob(x.strip() + ".md")))
    source[0] = re.sub(r'<a id="([^"]+)"></a>', r"[]{#\1}", source[0])


def draw(translator, node):
    """Writes a drawing of docs/img into the page itself, so that its colours follow the theme; others stay images."""
    path = DOCS / node["uri"]
    if path.suffix == ".svg" and path.is_file():
        svg = path.read_text()
        if 'class="drawing' in svg:
            translator.body.append(f'<div class="drawing-box">{svg[svg.index("<svg"):]}</div>')
            raise nodes.SkipNode
    HTML5Translator.visit_image(translator, node)


def prefixes(app, what, name, thing, options, lines):
    """Marks names such as LARDER_ in docstrings as code: in reStructuredText a trailing underscore is a link."""
    lines[:] = [re.sub(r"(?<![`\w])(\w+_)(?![`\w])", r"``\1``", line) for line in lines]


def setup(app):
    """Registers the hooks."""
    app.connect("autodoc-process-docstring", prefixes)
    app.connect("source-read", anchors)
    app.add_node(nodes.image, override=True, html=(draw, HTML5Translator.depart_image))
