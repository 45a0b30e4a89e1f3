"""Caches of node results, in place of LangGraph's."""

from threadkeep.cache.cache import NodeCache
from threadkeep.cache.open import (
    InMemoryCache,
    MemoryCache,
    PostgresCache,
    RedisCache,
    SqliteCache,
    open_cache,
)

__all__ = [
    "InMemoryCache",
    "MemoryCache",
    "NodeCache",
    "PostgresCache",
    "RedisCache",
    "SqliteCache",
    "open_cache",
]
