"""Queries such as `status:waiting #vip user_id=u-1`: text to filters, and filters to text."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from threadkeep._core.engine.thread_entry import ThreadStatus
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads.registry import Filters

LONGEST = 2000  # characters
STATES = ("created", "forked", "active", "archived", "deleted")
STATUSES = tuple(map(str, ThreadStatus))
_TERM = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*"?)+')
_PAIR = re.compile(r'("(?:[^"\\]|\\.)*"|[^"=]+)=(.*)', re.DOTALL)
_PLAIN = re.compile(r'[^\s"]+')
_SIZE = re.compile(r"([<>]?)=?(\d{1,12}(?:\.\d{1,3})?)\s?([kmgt]?)b?", re.IGNORECASE)
_TIME = re.compile(r"([<>]?)=?(?:(\d{1,6})([smhdw])|(\d{4}-.*))")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def terms(text: str) -> list[str]:
    """Split a query at spaces outside of quotes."""
    return _TERM.findall(text[:LONGEST])


def filters_of(text: str) -> Filters:
    """Return the filters that a query means: `search(**filters_of("status:waiting #vip"))`.

    Args:
        text: terms with spaces between them, as in the search field of the page. A word without a
            meaning of its own is the beginning of ids.

    Raises:
        InvalidArgumentError: a term has an invalid value, and the error names it.
    """
    found: Filters = {}
    words = []
    for term in terms(text):
        name, value = _split(term)
        if name == "id":
            words.append(value)
        elif name == "tag":
            found["tags"] = [*found.get("tags", ()), value]
        elif name == "=" and (pair := _PAIR.fullmatch(term)):
            pairs = {_unquoted(pair[1]): _json(pair[2])}
            found["metadata"] = {**(found.get("metadata") or {}), **pairs}
        else:
            _add(found, name, value, term)
    if words:
        found["id_prefix"] = " ".join(words)
    return found


def _split(term: str) -> tuple[str, str]:
    """Return a term's name ("=" for metadata, "id" for a word) and its value."""
    if term.startswith("#"):
        return "tag", _unquoted(term[1:])
    name, colon, value = term.partition(":")
    if colon and name in ("id", "tag", *HINTS):
        return name, _unquoted(value)
    if _PAIR.fullmatch(term):
        return "=", term
    return "id", _unquoted(term)


def _add(found: Filters, name: str, value: str, term: str) -> None:
    if name == "state" and value in STATES:
        found["state"] = [*(found.get("state") or ()), value]
    elif name == "status" and value in STATUSES:
        found["status"] = [*(found.get("status") or ()), value]
    elif name == "node" and value:
        found["failed_node"] = value
    elif name == "is" and value == "pinned":
        found["pinned"] = True
    elif name == "fork" and value:
        found["forked_from"] = value
    elif name == "size" and (size := _SIZE.fullmatch(value)) and size[1] != "<":
        found["min_bytes"] = int(float(size[2]) * _UNITS[size[3].lower()])
    elif name in ("updated", "created") and (bounds := _bounds(value)):
        for end, moment in bounds:
            found[f"{name}_{end}"] = moment  # type: ignore[literal-required] # of Filters
    else:
        raise InvalidArgumentError(f"Invalid filter: {term}.", hint=HINTS[name])


HINTS = {
    "state": f"States are {', '.join(STATES)}.",
    "status": f"Statuses are {', '.join(STATUSES)}.",
    "node": "Use node:NAME, the node that failed.",
    "is": "Use is:pinned.",
    "fork": "Use fork:ID.",
    "size": "Use size:>10MB; there is no upper limit.",
    "updated": "Use updated:<7d (in the last 7 days), updated:>7d, or a date.",
    "created": "Use created:<7d (in the last 7 days), created:>7d, or a date.",
}


def _bounds(value: str) -> list[tuple[str, datetime | timedelta]]:
    """Return "after" and "before" of a time: `<7d` is in the last 7 days, `<2026-01-01` before."""
    if (match := _TIME.fullmatch(value)) is None:
        return []
    sign, number, unit, date = match.groups()
    if number:
        ago = timedelta(seconds=int(number) * _SECONDS[unit])
        return [("before" if sign == ">" else "after", ago)]
    try:
        moment = datetime.fromisoformat(date)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if sign:
            return [("after" if sign == ">" else "before", moment)]
        return [("after", moment), ("before", moment + timedelta(days=1))]
    except (ValueError, OverflowError):
        return []


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, str):
        hint = "Close the quote, and quote the whole value."
        raise InvalidArgumentError(f"Invalid filter: {text}.", hint=hint)
    return value


def _json(text: str) -> Any:
    """Return a value of metadata: JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        if text.startswith('"'):
            _unquoted(text)
        return text


def _refuse(name: str) -> Any:
    raise ValueError(name)  # (NaN is no JSON)


# -- filters to text -------------------------------------------------------------------


def tag_term(tag: str) -> str:
    """Return the term that finds a tag."""
    return f"#{_quoted(tag)}"


def metadata_term(key: str, value: Any) -> str:
    """Return the term that finds a value of metadata."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and _json(value) == value
    # (spaces split a term outside of quotes, and JSON has them only inside)
    return f"{_quoted(key)}={value if is_plain else text}"


def _quoted(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and not re.search("[:=]|^#", text)
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def toggled(text: str, term: str) -> str:
    """Return a query without a term that it has, else with it, in place of a term of its kind."""
    old, kind = terms(text), _kind(term)
    stay = [one for one in old if one != term and (kind is None or _kind(one) != kind)]
    return " ".join(stay if term in old else [*stay, term])


def _kind(term: str) -> str | None:
    """Return the name of terms that a query has once, or None for others."""
    name = term.partition(":")[0]
    return name if name in ("size", "updated", "created", "fork") else None
