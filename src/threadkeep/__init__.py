"""threadkeep: a LangGraph checkpoint saver that stores what changed."""

from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from threadkeep.backends.caching import Cache, HotTier
from threadkeep.backends.writer import GroupCommit
from threadkeep.codec import Compression, register, register_module
from threadkeep.engine.policy import Retention
from threadkeep.savers import (
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
from threadkeep.tiers.tiering import ColdTier, Tiering, WarmTier
from threadkeep.versions import compare_versions

if _CHECKING:
    from threadkeep.wrapping import wrap

    __version__: str

__all__ = [
    "AsyncPostgresSaver",
    "AsyncRedisSaver",
    "AsyncSqliteSaver",
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
    "SqliteSaver",
    "Tiering",
    "WarmTier",
    "__version__",
    "compare_versions",
    "open_saver",
    "register",
    "register_module",
    "wrap",
]


def __getattr__(name: str) -> _Any:  # what is seldom needed is imported when it is
    value: _Any
    if name == "wrap":
        from threadkeep.wrapping import wrap as value  # noqa: PLC0415 - see above
    elif name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - see above

        value = version("threadkeep")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
