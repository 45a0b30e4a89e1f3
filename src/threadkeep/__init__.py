"""threadkeep: a LangGraph checkpoint saver that stores what changed.

Savers: SqliteSaver, PostgresSaver, RedisSaver and MemorySaver, each for sync and async programs;
AsyncSqliteSaver, AsyncPostgresSaver, AsyncRedisSaver and InMemorySaver are other names of them.
`open_saver(url)` opens one by its URL, `open_all(url)` with a store and a cache on its connections.

Options of savers: Compression, GroupCommit, ReadCache, Retention, Tiering (with HotTier, WarmTier
and ColdTier), WriteBehind.

In front of a saver: LayeredCheckpointSaver (long conversations), StreamingCheckpointSaver (answers
that are being streamed).

Beside a saver: `open_store` and Store (long-term memory), `open_cache` and NodeCache (results of
nodes), CheckpointManager (state of what is no graph), Monitor and `observe` (metrics and traces).

Values of your own classes: `register`, `register_module`. To write a backend: Backend,
AsyncBackend, Saver, `threadkeep.backends` and `threadkeep.testing`. All errors:
`threadkeep.errors`.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from threadkeep._core.arguments import compare_versions
from threadkeep._core.codec import Compression, register, register_module
from threadkeep._core.policies import ColdTier, HotTier, ReadCache, Retention, Tiering, WarmTier
from threadkeep._run.group_commit import GroupCommit
from threadkeep._run.write_behind import WriteBehind
from threadkeep._stores.base import AsyncBackend, Backend
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
    from threadkeep.cache import NodeCache, open_cache
    from threadkeep.memory import LayeredCheckpointSaver
    from threadkeep.monitor import Monitor, observe
    from threadkeep.opening import open_all
    from threadkeep.sessions import CheckpointManager as CheckpointManager
    from threadkeep.store import Store, open_store
    from threadkeep.streaming import StreamingCheckpointSaver

    __version__: str

# (Without CheckpointManager: `import *` would load pydantic-settings, or fail without it.)
__all__ = [
    "AsyncBackend",
    "AsyncPostgresSaver",
    "AsyncRedisSaver",
    "AsyncSqliteSaver",
    "Backend",
    "ColdTier",
    "Compression",
    "GroupCommit",
    "HotTier",
    "InMemorySaver",
    "LayeredCheckpointSaver",
    "MemorySaver",
    "Monitor",
    "NodeCache",
    "PostgresSaver",
    "ReadCache",
    "RedisSaver",
    "Retention",
    "Saver",
    "SqliteSaver",
    "Store",
    "StreamingCheckpointSaver",
    "Tiering",
    "WarmTier",
    "WriteBehind",
    "__version__",
    "compare_versions",
    "observe",
    "open_all",
    "open_cache",
    "open_saver",
    "open_store",
    "register",
    "register_module",
]

_SELDOM = {  # what is imported when it is used, and where it is
    "CheckpointManager": "sessions",
    "LayeredCheckpointSaver": "memory",
    "Monitor": "monitor",
    "NodeCache": "cache",
    "Store": "store",
    "StreamingCheckpointSaver": "streaming",
    "observe": "monitor",
    "open_all": "opening",
    "open_cache": "cache",
    "open_store": "store",
}


def __getattr__(name: str) -> _Any:
    value: _Any
    if name in _SELDOM:
        value = getattr(_import(f"threadkeep.{_SELDOM[name]}"), name)
    elif name == "__version__":
        value = _import("importlib.metadata").version("threadkeep")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
