"""What a program gives to reach a store: numbers, times, parameters of a URL.

Only how these are read and refused lives here; what each is for is its store's to say.
"""

from __future__ import annotations

import sys
from typing import NoReturn
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from threadkeep.errors import InvalidArgumentError


def refuse(name: str, value: object, hint: str) -> NoReturn:
    """Refuse an option's value.

    Raises:
        InvalidArgumentError: always.
    """
    raise InvalidArgumentError(f"Invalid {name}: {value!r}.", hint=hint)


def is_count(value: object, least: int) -> bool:
    """Whether it is a whole number, and large enough."""
    return type(value) is int and value >= least


def is_time(value: object) -> bool:
    """Whether it is a number of seconds, more than 0."""
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
