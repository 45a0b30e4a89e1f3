"""Libraries of the extras, which may not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadkeep.errors import OpenError


@contextmanager
def extra(user: str, name: str) -> Iterator[None]:
    """Raise an error that names the extra to install if a library is missing."""
    try:
        yield
    except ImportError as error:
        raise OpenError(
            f"{user} needs a library that is not installed: {error}.",
            hint=f"pip install 'threadkeep[{name}]'",
        ) from error
