"""Modules that a save or a load does not need, imported at their first use.

`lazy.gc` is `threadkeep.retention.gc`. Importing threadkeep stays fast.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadkeep.engine import listing
    from threadkeep.forks import fork
    from threadkeep.monitor import statistics
    from threadkeep.repair import check
    from threadkeep.retention import apply, gc
    from threadkeep.streaming import rows as stream_rows
    from threadkeep.streaming import stream

__all__ = ["apply", "check", "fork", "gc", "listing", "statistics", "stream", "stream_rows"]

_PATHS = {
    "apply": "retention.apply",
    "check": "repair.check",
    "fork": "forks.fork",
    "gc": "retention.gc",
    "listing": "engine.listing",
    "statistics": "monitor.statistics",
    "stream": "streaming.stream",
    "stream_rows": "streaming.rows",
}


def __getattr__(name: str) -> ModuleType:
    if name not in _PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"threadkeep.{_PATHS[name]}")
    globals()[name] = module
    return module
