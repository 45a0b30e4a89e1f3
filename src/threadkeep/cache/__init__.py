"""Cache of the results of nodes, in place of LangGraph's."""

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
