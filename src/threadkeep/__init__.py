"""threadkeep: a LangGraph checkpoint saver that stores only changes.

Savers, each for sync and async programs: SqliteSaver, PostgresSaver, RedisSaver and MemorySaver.
AsyncSqliteSaver, AsyncRedisSaver and InMemorySaver are other names of them, and you await `setup`
of AsyncPostgresSaver. `open_saver(url)` opens one by its URL, `open_all(url)` with a store and a
cache on its connections. Options: Compression, Retention, Tiering (with WarmTier and ColdTier).

Long-term memory: `open_store(url)`, SqliteStore, PostgresStore, RedisStore and InMemoryStore
(MemoryStore), all of the class Store, with LocalEmbeddings; AsyncSqliteStore, AsyncPostgresStore
and AsyncRedisStore, whose `setup` is awaited.

Results of nodes: `open_cache(url)`, SqliteCache, PostgresCache, RedisCache and InMemoryCache
(MemoryCache), all of the class NodeCache.

Long conversations: LayeredCheckpointSaver with Layers and a summarizer (ChatModelSummarizer,
CallableSummarizer or ExtractiveSummarizer), LayeredMemoryMiddleware, IntegratedCheckpointManager,
`add_messages`.

Runs that one worker at a time makes: `guard`, Guard, `task_key`.

Streamed answers: `stream_saved`, `astream_saved`, StreamingCheckpointSaver.

Encryption: KeyRing. Roles of PostgreSQL for tenants: `grant_role`, `revoke_role`.

State of other workflows: CheckpointManager with CheckpointConfig, AutoSaver, `checkpointed`,
SQLiteCheckpointStore, MemoryCheckpointStore.

Monitoring: Monitor with Thresholds and Alert, `observe`, `stats`, `astats`, `advise`, `aadvise`.

Values of your own classes: `register`, `register_module`, Migrations. Damaged data:
`read_quarantine`. Order of versions: `compare_versions`. To write a backend: Backend,
AsyncBackend, Saver, `threadkeep.backends` and `threadkeep.testing`. All errors:
`threadkeep.errors`. Classes of results, for annotations, are in `threadkeep.threads` and the
package of their subject.
"""

from contextlib import suppress as _suppress
from importlib import import_module as _import
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from threadkeep._core.codec import Compression, Migrations, register, register_module
from threadkeep._core.known_names import missing as _missing
from threadkeep._core.policies import (
    ColdTier,
    Retention,
    Tiering,
    WarmTier,
)
from threadkeep._core.versions import compare_versions
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep.keys import KeyRing
from threadkeep.savers.saver import Saver
from threadkeep.savers.savers import (
    AsyncPostgresSaver,
    AsyncRedisSaver,
    AsyncSqliteSaver,
    InMemorySaver,
    MemorySaver,
    PostgresSaver,
    RedisSaver,
    SqliteSaver,
    open_saver,
)

if _CHECKING:
    from threadkeep.cache import (
        InMemoryCache,
        MemoryCache,
        NodeCache,
        PostgresCache,
        RedisCache,
        SqliteCache,
        open_cache,
    )
    from threadkeep.memory import (
        CallableSummarizer,
        ChatModelSummarizer,
        ExtractiveSummarizer,
        IntegratedCheckpointManager,
        LayeredCheckpointSaver,
        Layers,
    )
    from threadkeep.memory import LayeredMemoryMiddleware as LayeredMemoryMiddleware
    from threadkeep.memory import add_messages as add_messages
    from threadkeep.monitor import Alert, Monitor, Thresholds, aadvise, advise, astats, observe
    from threadkeep.monitor import stats as stats
    from threadkeep.opening import open_all
    from threadkeep.roles import grant_role, revoke_role
    from threadkeep.sessions import AutoSaver as AutoSaver
    from threadkeep.sessions import CheckpointConfig as CheckpointConfig
    from threadkeep.sessions import CheckpointManager as CheckpointManager
    from threadkeep.sessions import MemoryCheckpointStore as MemoryCheckpointStore
    from threadkeep.sessions import SQLiteCheckpointStore as SQLiteCheckpointStore
    from threadkeep.sessions import checkpointed as checkpointed
    from threadkeep.store import (
        AsyncPostgresStore,
        AsyncRedisStore,
        AsyncSqliteStore,
        InMemoryStore,
        LocalEmbeddings,
        MemoryStore,
        PostgresStore,
        RedisStore,
        SqliteStore,
        Store,
        open_store,
    )
    from threadkeep.streaming import StreamingCheckpointSaver, astream_saved, stream_saved
    from threadkeep.threads import read_quarantine as read_quarantine

    __version__: str

# (Without names of extras that are not installed: `import *` would fail.)
__all__ = [
    "Alert",
    "AsyncBackend",
    "AsyncPostgresSaver",
    "AsyncPostgresStore",
    "AsyncRedisSaver",
    "AsyncRedisStore",
    "AsyncSqliteSaver",
    "AsyncSqliteStore",
    "Backend",
    "CallableSummarizer",
    "ChatModelSummarizer",
    "ColdTier",
    "Compression",
    "ExtractiveSummarizer",
    "InMemoryCache",
    "InMemorySaver",
    "InMemoryStore",
    "IntegratedCheckpointManager",
    "KeyRing",
    "LayeredCheckpointSaver",
    "Layers",
    "LocalEmbeddings",
    "MemoryCache",
    "MemorySaver",
    "MemoryStore",
    "Migrations",
    "Monitor",
    "NodeCache",
    "PostgresCache",
    "PostgresSaver",
    "PostgresStore",
    "RedisCache",
    "RedisSaver",
    "RedisStore",
    "Retention",
    "Saver",
    "SqliteCache",
    "SqliteSaver",
    "SqliteStore",
    "Store",
    "StreamingCheckpointSaver",
    "Thresholds",
    "Tiering",
    "WarmTier",
    "__version__",
    "aadvise",
    "advise",
    "astats",
    "astream_saved",
    "compare_versions",
    "grant_role",
    "guard",
    "observe",
    "open_all",
    "open_cache",
    "open_saver",
    "open_store",
    "register",
    "register_module",
    "revoke_role",
    "stream_saved",
    "task_key",
]
with _suppress(ImportError):
    if _find_spec("pydantic_settings"):
        __all__ += [
            "AutoSaver",
            "CheckpointConfig",
            "CheckpointManager",
            "MemoryCheckpointStore",
            "SQLiteCheckpointStore",
            "checkpointed",
        ]

_LATER = {  # modules that are imported when a name of theirs is first used
    "cache": "InMemoryCache MemoryCache NodeCache PostgresCache RedisCache SqliteCache open_cache",
    "memory": "CallableSummarizer ChatModelSummarizer ExtractiveSummarizer"
    " IntegratedCheckpointManager LayeredCheckpointSaver LayeredMemoryMiddleware Layers"
    " add_messages",
    "monitor": "Alert Monitor Thresholds aadvise advise astats observe stats",
    "opening": "open_all",
    "roles": "grant_role revoke_role",
    "runs": "Guard guard task_key",
    "sessions": "AutoSaver CheckpointConfig CheckpointManager MemoryCheckpointStore"
    " SQLiteCheckpointStore checkpointed",
    "store": "AsyncPostgresStore AsyncRedisStore AsyncSqliteStore InMemoryStore LocalEmbeddings"
    " MemoryStore PostgresStore RedisStore SqliteStore Store open_store",
    "streaming": "StreamingCheckpointSaver astream_saved stream_saved",
    "threads": "read_quarantine",
}
_MODULES = {name: module for module, names in _LATER.items() for name in names.split()}


def _get(name: str) -> _Any:
    value: _Any
    if name in _MODULES:
        value = getattr(_import(f"threadkeep.{_MODULES[name]}"), name)
    elif name == "__version__":
        value = _import("importlib.metadata").version("threadkeep")
    else:
        raise _missing(__name__, name)
    globals()[name] = value
    return value


if not _CHECKING:  # type checkers would accept any name
    __getattr__ = _get


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
