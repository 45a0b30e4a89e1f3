"""Monitoring of savers: metrics, spans, logs, canaries, alerts, statistics and advice."""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

# (imported at once: else the name may be that of the module, once that was imported)
from threadkeep.monitor.observe import ObservedSaver, Sink, observe

if _CHECKING:
    from threadkeep.engine.usage import Hour, ThreadUsage
    from threadkeep.monitor.advice import Advice, aadvise, advise
    from threadkeep.monitor.alerts import Alert, Thresholds
    from threadkeep.monitor.counters import Counters
    from threadkeep.monitor.monitor import Monitor, Snapshot
    from threadkeep.monitor.probes import Storage, ThreadSize
    from threadkeep.monitor.statistics import Stats, astats, stats
    from threadkeep.monitor.thread_sizes import ChannelStats, ThreadStats
    from threadkeep.monitor.window import Rates

__all__ = [
    "Advice",
    "Alert",
    "ChannelStats",
    "Counters",
    "Hour",
    "Monitor",
    "ObservedSaver",
    "Rates",
    "Sink",
    "Snapshot",
    "Stats",
    "Storage",
    "ThreadSize",
    "ThreadStats",
    "ThreadUsage",
    "Thresholds",
    "aadvise",
    "advise",
    "astats",
    "observe",
    "stats",
]

_MODULES = {
    "Advice": "advice",
    "Alert": "alerts",
    "ChannelStats": "thread_sizes",
    "Counters": "counters",
    "Hour": "statistics",
    "Monitor": "monitor",
    "Rates": "window",
    "Snapshot": "monitor",
    "Stats": "statistics",
    "Storage": "probes",
    "ThreadSize": "probes",
    "ThreadStats": "thread_sizes",
    "ThreadUsage": "statistics",
    "Thresholds": "alerts",
    "aadvise": "advice",
    "advise": "advice",
    "astats": "statistics",
    "stats": "statistics",
}


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
