"""URLs of databases in errors, which show no part that may be a password."""

from __future__ import annotations


def is_public(text: str) -> bool:
    """Return True if an error may show the text: it cannot hold a password."""
    return not set(text) & set("@=")


def shown(text: str) -> str:
    return repr(text) if is_public(text) else "This"
