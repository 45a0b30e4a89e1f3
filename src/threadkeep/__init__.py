"""threadkeep: a LangGraph checkpoint saver that stores what changed."""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from threadkeep._core.arguments import compare_versions
from threadkeep._core.codec import Compression, register, register_module
from threadkeep._run.group_commit import GroupCommit
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
    from threadkeep._core.policies.retention import Retention
    from threadkeep._core.policies.tiering import ColdTier, HotTier, Tiering, WarmTier
    from threadkeep._run.segment_cache import (
        Cache,
    )
    from threadkeep._run.write_behind import WriteBehind
    from threadkeep._stores.base import AsyncBackend, Backend
    from threadkeep.opening import open_all
    from threadkeep.savers.wrap_langgraph import wrap

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
    "AsyncBackend": "threadkeep._stores.base",
    "Backend": "threadkeep._stores.base",
    "Cache": "threadkeep._run.segment_cache",
    "ColdTier": "threadkeep._core.policies.tiering",
    "HotTier": "threadkeep._core.policies.tiering",
    "Retention": "threadkeep._core.policies.retention",
    "Tiering": "threadkeep._core.policies.tiering",
    "WarmTier": "threadkeep._core.policies.tiering",
    "open_all": "threadkeep.opening",
    "WriteBehind": "threadkeep._run.write_behind",
    "wrap": "threadkeep.savers.wrap_langgraph",
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
