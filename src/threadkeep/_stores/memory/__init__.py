"""The backend that keeps rows in this process."""

from threadkeep._stores.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
