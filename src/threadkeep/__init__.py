"""threadkeep: a LangGraph checkpoint saver that stores what changed."""

from threadkeep.codec import Compression, register, register_module
from threadkeep.savers import AsyncSqliteSaver, InMemorySaver, MemorySaver, SqliteSaver, open_saver

__all__ = [
    "AsyncSqliteSaver",
    "Compression",
    "InMemorySaver",
    "MemorySaver",
    "SqliteSaver",
    "open_saver",
    "register",
    "register_module",
]
