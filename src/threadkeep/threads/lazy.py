"""Modules that saves and loads do not need, imported on first use.

`lazy.gc` is `threads.retention.gc`. Until that module is imported, its functions return operations
that import it first. The import is a request, so an event loop runs it in a worker thread.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine.operation import Operation, external

if TYPE_CHECKING:
    from threadkeep.threads import (
        accounts,
        answering,
        editing,
        erasure,
        finding,
        forks,
        growth,
        heads,
        last_statistics,
        merging,
        partial_output,
        registry,
        rotation,
        shredding,
        statistics,
        upgrading,
    )
    from threadkeep.threads.archives import archive, offload, tiering
    from threadkeep.threads.diff import checkpoints
    from threadkeep.threads.repair import check, repair
    from threadkeep.threads.retention import gc
    from threadkeep.threads.transfer import adopt, bundles, leave, mirror

_HOMES = {  # names of modules, by package
    "threads": "accounts answering editing erasure finding forks growth heads last_statistics"
    " merging partial_output registry rotation shredding statistics upgrading",
    "threads.archives": "archive offload tiering",
    "threads.diff": "checkpoints",
    "threads.repair": "check repair",
    "threads.retention": "gc",
    "threads.transfer": "adopt bundles leave mirror",
}
_PATHS = {name: f"{home}.{name}" for home, names in _HOMES.items() for name in names.split()}


class _NotImported:
    """Stand-in for a module whose functions return operations or workflows."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> Callable[..., Operation[Any]]:
        return partial(_call, self._name, function)


def _call(name: str, function: str, *args: Any, **options: Any) -> Operation[Any]:
    """Import a module and run an operation of it."""
    module = yield from external(import_module, f"threadkeep.{_PATHS[name]}")
    globals()[name] = module
    return (yield from getattr(module, function)(*args, **options))


def __getattr__(name: str) -> _NotImported:
    if name not in _PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _NotImported(name)
