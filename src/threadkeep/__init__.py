"""threadkeep: a LangGraph checkpoint saver that stores what changed."""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from threadkeep.arguments import compare_versions
from threadkeep.backends.group_commit import GroupCommit
from threadkeep.codec import Compression, register, register_module
from threadkeep.saver import Saver
from threadkeep.savers import (
    AsyncPostgresSaver,
    AsyncRedisSaver,
    AsyncSqliteSaver,
    InMemorySaver,
    MemorySaver,
    PostgresSaver,
    RedisSaver,
    SqliteSaver,
    open_all,
    open_saver,
)

if _CHECKING:
    from threadkeep.backends.base import AsyncBackend, Backend
    from threadkeep.cold.policy import ColdTier, Tiering, WarmTier
    from threadkeep.retention.policy import Retention
    from threadkeep.segment_cache import (
        Cache,
        HotTier,
    )
    from threadkeep.wrap_langgraph import wrap
    from threadkeep.write_behind import WriteBehind

    __version__: str

__all__ = [
    "AsyncBackend",
    "AsyncPostgresSaver",
    "AsyncRedisSaver",
    "AsyncSqliteSaver",
    "Backend",
    "Cache",
    "ColdTier",
    "Compression",
    "GroupCommit",
    "HotTier",
    "InMemorySaver",
    "MemorySaver",
    "PostgresSaver",
    "RedisSaver",
    "Retention",
    "Saver",
    "SqliteSaver",
    "Tiering",
    "WarmTier",
    "WriteBehind",
    "__version__",
    "compare_versions",
    "open_all",
    "open_saver",
    "register",
    "register_module",
    "wrap",
]

_SELDOM = {  # what is imported when it is needed, and where it is
    "AsyncBackend": "threadkeep.backends.base",
    "Backend": "threadkeep.backends.base",
    "Cache": "threadkeep.segment_cache",
    "ColdTier": "threadkeep.cold.policy",
    "HotTier": "threadkeep.segment_cache",
    "Retention": "threadkeep.retention.policy",
    "Tiering": "threadkeep.cold.policy",
    "WarmTier": "threadkeep.cold.policy",
    "WriteBehind": "threadkeep.write_behind",
    "wrap": "threadkeep.wrap_langgraph",
}


def __getattr__(name: str) -> _Any:
    value: _Any
    if name in _SELDOM:
        value = getattr(_import(_SELDOM[name]), name)
    elif name == "__version__":
        value = _import("importlib.metadata").version("threadkeep")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
