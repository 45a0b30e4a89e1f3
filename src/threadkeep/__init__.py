"""threadkeep: a LangGraph checkpoint saver that stores what changed.

Savers: SqliteSaver, PostgresSaver, RedisSaver and MemorySaver, each for sync and async programs;
AsyncSqliteSaver, AsyncPostgresSaver, AsyncRedisSaver and InMemorySaver are other names of them.
`open_saver(url)` opens one by its URL, `open_all(url)` with a store and a cache on its connections.

Options of savers: Compression, GroupCommit, ReadCache, Retention, Tiering (with HotTier, WarmTier
and ColdTier), WriteBehind.

In front of a saver: LayeredCheckpointSaver and Layers, LayeredMemoryMiddleware (long
conversations), StreamingCheckpointSaver, `stream_saved` and `astream_saved` (streamed answers).

Beside a saver: `open_store` and Store (long-term memory), `open_cache` and NodeCache (results of
nodes), CheckpointManager and AutoSaver (state of other workflows), Monitor, Thresholds and
`observe` (metrics and traces).

Values of your own classes: `register`, `register_module`. To write a backend: Backend,
AsyncBackend, Saver, `threadkeep.backends` and `threadkeep.testing`. All errors:
`threadkeep.errors`.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from threadkeep._core.arguments import compare_versions
from threadkeep._core.codec import Compression, register, register_module
from threadkeep._core.policies import (
    ColdTier,
    HotTier,
    ReadCache,
    Retention,
    Tiering,
    WarmTier,
    WriteBehind,
)
from threadkeep._run.group_commit import GroupCommit
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
    from threadkeep.memory import LayeredCheckpointSaver, Layers
    from threadkeep.memory import LayeredMemoryMiddleware as LayeredMemoryMiddleware
    from threadkeep.memory import add_messages as add_messages
    from threadkeep.monitor import Monitor, Thresholds, observe
    from threadkeep.monitor import stats as stats
    from threadkeep.opening import open_all
    from threadkeep.sessions import AutoSaver as AutoSaver
    from threadkeep.sessions import CheckpointConfig as CheckpointConfig
    from threadkeep.sessions import CheckpointManager as CheckpointManager
    from threadkeep.sessions import checkpointed as checkpointed
    from threadkeep.store import Store, open_store
    from threadkeep.streaming import StreamingCheckpointSaver, astream_saved, stream_saved
    from threadkeep.threads import read_quarantine as read_quarantine

    __version__: str

# (Without names that need an extra: `import *` would load its packages, or fail without them.)
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
    "Layers",
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
    "Thresholds",
    "Tiering",
    "WarmTier",
    "WriteBehind",
    "__version__",
    "astream_saved",
    "compare_versions",
    "observe",
    "open_all",
    "open_cache",
    "open_saver",
    "open_store",
    "register",
    "register_module",
    "stream_saved",
]

_SELDOM = {  # names that are imported at first use, and their modules
    "AutoSaver": "sessions",
    "CheckpointConfig": "sessions",
    "CheckpointManager": "sessions",
    "LayeredCheckpointSaver": "memory",
    "LayeredMemoryMiddleware": "memory",
    "Layers": "memory",
    "Monitor": "monitor",
    "NodeCache": "cache",
    "Store": "store",
    "StreamingCheckpointSaver": "streaming",
    "Thresholds": "monitor",
    "add_messages": "memory",
    "astream_saved": "streaming",
    "checkpointed": "sessions",
    "observe": "monitor",
    "open_all": "opening",
    "open_cache": "cache",
    "open_store": "store",
    "read_quarantine": "threads",
    "stats": "monitor",
    "stream_saved": "streaming",
}


def _get(name: str) -> _Any:
    value: _Any
    if name in _SELDOM:
        value = getattr(_import(f"threadkeep.{_SELDOM[name]}"), name)
    elif name == "__version__":
        value = _import("importlib.metadata").version("threadkeep")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


if not _CHECKING:  # type checkers would accept any name
    __getattr__ = _get


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
