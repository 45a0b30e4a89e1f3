"""How Sphinx builds these pages as a site: `make docs`."""

from __future__ import annotations

import inspect
import re
from itertools import pairwise
from pydoc import locate
from typing import Any

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

import threadkeep

project = "threadkeep"
author = copyright = "the authors of threadkeep"
version = release = threadkeep.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "code"  # docstrings write names as Markdown does
myst_heading_anchors = 4

html_theme = "furo"
html_title = "threadkeep"
html_copy_source = html_show_sphinx = False
html_theme_options = {"footer_icons": []}
html_static_path = ["style.css"]
html_css_files = ["style.css"]
highlight_language = "none"  # output and shell commands, which are not Python
pygments_dark_style = "github-dark"  # furo's own underlines modules and classes like links

autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
toc_object_entries = False
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_custom_sections = [("Options", "params_style")]
suppress_warnings = ["ref.python"]  # a class in two packages, under each name

FEW = 12  # parameters: a longer signature is shown with **options, as the options are listed below
CODE = re.compile(r"`[^`]+`(?=(\w?))")


class Search(SearchEnglish):
    """Index Chinese, which has no spaces, by its characters and pairs of them."""

    js_splitter_code = r"""
const han = /[\u4e00-\u9fff]+|(?:(?![\u4e00-\u9fff])[\p{Letter}\p{Number}_])+/gu;
const pairs = (run) => [...run].slice(1).map((next, i) => run[i] + next);
var splitQuery = (query) => (query.match(han) || []).flatMap((run) =>
  run.length > 1 && /[\u4e00-\u9fff]/.test(run) ? pairs(run) : [run]);
"""

    def split(self, text: str) -> list[str]:
        """Return the words of a text, as splitQuery does, and single characters."""
        runs = re.findall(r"[\u4e00-\u9fff]+", text)
        pairs = [first + second for run in runs for first, second in pairwise(run)]
        return [*re.findall(r"[^\W\u4e00-\u9fff]+", text), *"".join(runs), *pairs]


def shorter(*given: Any) -> tuple[str, str] | None:
    """Show many options as `(conn, **options)`; hide arguments of errors, and textless defaults."""
    _app, kind, name, obj, _options, text, returned = given
    if "<factory>" in (text or "") or (
        kind == "exception" and not name.endswith(".ThreadkeepError")
    ):
        return "", ""
    try:
        signature = inspect.signature(obj)
    except (TypeError, ValueError):
        return None
    parameters = signature.parameters.values()
    if len(parameters) <= FEW:
        return None
    plain = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "cls"]
    return f"({', '.join([*plain, '**options'])})", returned or ""


def plain(_app: Any, _what: str, name: str, _obj: Any, _: Any, lines: list[str]) -> None:
    """Let reStructuredText read plurals of code, and list options once, at the class."""
    if name.endswith(".from_conn_string") and "Options:" in lines:
        del lines[lines.index("Options:") :]
    lines[:] = [CODE.sub(lambda code: code[0] + "\\ " * bool(code[1]), line) for line in lines]


def async_variant(_app: Any, _what: str, name: str, obj: Any, _: Any, lines: list[str]) -> None:
    """Explain an async method by the sync one, if both have the same text."""
    owner, _dot, method = name.rpartition(".")
    sync = f"{owner}.{method[1:]}"
    if method.startswith("a") and getattr(locate(sync), "__doc__", None) == obj.__doc__:
        lines[:] = [f"The async variant of :py:meth:`~{sync}`."]


def others(_app: Any, _what: str, _name: str, obj: Any, *_: Any) -> bool | None:
    """Leave out LangGraph's own methods, and fields that their class lists."""
    foreign = str(getattr(obj, "__module__", "")).startswith("lang")
    return foreign or type(obj).__name__ == "_tuplegetter" or None


def setup(app: Sphinx) -> None:
    """Register the functions above."""
    app.add_search_language(Search)
    app.connect("autodoc-process-signature", shorter)
    app.connect("autodoc-process-docstring", async_variant, priority=0)
    app.connect("autodoc-process-docstring", plain, priority=0)
    app.connect("autodoc-skip-member", others)
