"""URLs to backends (provisional)."""
from __future__ import annotations
from typing import Any
from threadkeep.backends.base import Backend
from threadkeep.backends.memory import MemoryBackend
from threadkeep.backends.sqlite import SqliteBackend
from threadkeep.errors import OpenError


def open_backend(url: str, **options: Any) -> Backend:
    """Open."""
    if url.startswith("memory://"):
        return MemoryBackend()
    if url.startswith("sqlite:///"):
        return SqliteBackend(url[len("sqlite:///"):], **options)
    raise OpenError(f"unknown scheme in {url!r}")
