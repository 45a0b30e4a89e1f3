"""Validation of options: numbers, times, parameters of a URL."""

from __future__ import annotations

import sys
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit


def is_count(value: object, least: int) -> bool:
    """Return True for a whole number of at least `least`."""
    return type(value) is int and value >= least


def is_time(value: object) -> bool:
    """Return True for a number of seconds, more than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= sys.float_info.max  # (a whole number may be larger than any float)


def without(parameter: str, url: str) -> tuple[str, str | None]:
    """A URL without a parameter that is ours and not the driver's, and that one's last value."""
    try:
        parts = urlsplit(url)
    except ValueError:  # the driver will say what is wrong with it
        return url, None
    if not parts.scheme or f"{parameter}=" not in parts.query:
        return url, None
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(name, value) for name, value in parameters if name != parameter]
    ours = [value for name, value in parameters if name == parameter]
    # As libpq has it: %20, not +, is a space.
    rest = urlunsplit(parts._replace(query=urlencode(kept, quote_via=quote)))
    return rest, ours[-1] if ours else None
