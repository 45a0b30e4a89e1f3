"""The backend that keeps rows in this process."""

from threadkeep.backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
