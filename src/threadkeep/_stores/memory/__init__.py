"""The backend that keeps rows in this process."""

from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.urls import shown
from threadkeep.errors import OpenError

__all__ = ["OPTIONS", "MemoryBackend", "opened"]

OPTIONS = ()


def opened(url: str) -> MemoryBackend:
    """Open a new store."""
    if url.lower() != "memory://":
        raise OpenError(
            f"{shown(url)} names a place, but memory has none.", hint="Write memory://."
        )
    return MemoryBackend()
