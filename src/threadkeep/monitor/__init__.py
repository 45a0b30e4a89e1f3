"""Monitoring: statistics of a store, and advice."""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

if _CHECKING:
    from threadkeep.engine.usage import Hour, ThreadUsage
    from threadkeep.monitor.advice import Advice, aadvise, advise
    from threadkeep.monitor.statistics import Stats, astats, stats
    from threadkeep.monitor.thread_sizes import ChannelStats, ThreadStats

_MODULES = {
    "Advice": "advice",
    "ChannelStats": "thread_sizes",
    "Hour": "statistics",
    "Stats": "statistics",
    "ThreadStats": "thread_sizes",
    "ThreadUsage": "statistics",
    "aadvise": "advice",
    "advise": "advice",
    "astats": "statistics",
    "stats": "statistics",
}

__all__ = [
    "Advice",
    "ChannelStats",
    "Hour",
    "Stats",
    "ThreadStats",
    "ThreadUsage",
    "aadvise",
    "advise",
    "astats",
    "stats",
]


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
