"""threadkeep: a LangGraph checkpoint saver that stores what changed."""

from importlib import metadata as _metadata

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
from threadkeep.wrapping import wrap

__version__ = _metadata.version("threadkeep")

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
