"""Text of a store as HTML that loads and runs nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from math import isfinite
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads.diff import brief, plain

LONGEST = 100_000
"""Characters of a text or value on a page. A longer one is cut, with a link to all of it."""

RENDERED = 20_000
"""Characters of Markdown that are rendered. A longer text is shown as it is."""

_JSON = 200_000  # characters of a text that is read as JSON
_TAGS = {
    *("p", "br", "em", "strong", "code", "pre", "blockquote", "ul", "ol", "li", "hr", "a"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
_PARSER = MarkdownIt("commonmark", {"html": False, "linkify": False, "typographer": False})
# (one definition of a link, used often, would make 100 MB of a short text)
_PARSER.enable("table").disable(["image", "reference"])


def weight(text: str) -> int:
    """Return the characters of Markdown, or of its tables, whose short rows are filled up."""
    if len(text) > RENDERED:
        return len(text)
    rows = text.splitlines()
    return max(len(text), len(rows) * max([row.count("|") for row in rows], default=0))


def markdown(text: str) -> Markup:
    """Return Markdown as HTML: images become links, all with a scheme. A long text stays plain."""
    if weight(text) > RENDERED:
        return Markup('<pre class="text">{}</pre>').format(cut(text))
    html = nh3.clean(
        _PARSER.render(text.encode("utf-8", "replace").decode()),  # (no half surrogate pairs)
        tags=_TAGS,
        attributes={"a": {"href"}},
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",  # (`//host` leaves the page without a scheme)
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(html)  # noqa: S704 - nh3 cleaned it


def parsed(text: Any) -> Any:
    """Return the list or dict in a JSON text, or None for another value."""
    if isinstance(text, str) and len(text) <= _JSON and text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return None


def cut(text: str, longest: int = LONGEST) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def as_json(value: Any, indent: int | None = 2) -> str:
    """Return a value as JSON. A value that JSON lacks becomes text."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def line(value: Any) -> str:
    """Return the beginning of a value as JSON in one line."""
    return brief(plain(value), 160)


def read_json(text: str, what: str = "This") -> Any:
    """Return the value that a person wrote as JSON, or raise `InvalidArgumentError`."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{what} is not JSON: {error}.") from error


def _finite(text: str) -> float:
    return float(text) if isfinite(float(text)) else _refuse(text)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
