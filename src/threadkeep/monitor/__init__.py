"""Monitoring of savers: metrics, spans, logs, canaries and alerts."""

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

# (imported at once: else the name may be that of the module, once that was imported)
from threadkeep.monitor.observe import ObservedSaver, Sink, observe

if _CHECKING:
    from threadkeep.monitor.alerts import Alert, Thresholds
    from threadkeep.monitor.counters import Counters
    from threadkeep.monitor.monitor import Monitor, Snapshot
    from threadkeep.monitor.probes import Storage, ThreadSize
    from threadkeep.monitor.window import Rates

__all__ = [
    "Alert",
    "Counters",
    "Monitor",
    "ObservedSaver",
    "Rates",
    "Sink",
    "Snapshot",
    "Storage",
    "ThreadSize",
    "Thresholds",
    "observe",
]

_MODULES = {
    "Alert": "alerts",
    "Counters": "counters",
    "Monitor": "monitor",
    "Rates": "window",
    "Snapshot": "monitor",
    "Storage": "probes",
    "ThreadSize": "probes",
    "Thresholds": "alerts",
}


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
