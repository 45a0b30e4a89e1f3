"""Long-term memory: stores of items, with search by filter, meaning and words."""

from threadkeep.store.embedding import LocalEmbeddings
from threadkeep.store.items import FoundItem, ItemVersion, StoredItem
from threadkeep.store.open import (
    AsyncPostgresStore,
    AsyncRedisStore,
    AsyncSqliteStore,
    InMemoryStore,
    MemoryStore,
    PostgresStore,
    RedisStore,
    SqliteStore,
    open_store,
)
from threadkeep.store.store import Store
from threadkeep.store.transfer import ItemEraseReport

__all__ = [
    "AsyncPostgresStore",
    "AsyncRedisStore",
    "AsyncSqliteStore",
    "FoundItem",
    "InMemoryStore",
    "ItemEraseReport",
    "ItemVersion",
    "LocalEmbeddings",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "Store",
    "StoredItem",
    "open_store",
]
