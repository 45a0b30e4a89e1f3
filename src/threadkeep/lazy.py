"""Modules that a save or a load does not need, imported at their first use.

`lazy.prune` is `threadkeep.retention.prune`. Importing threadkeep stays fast.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadkeep import stats
    from threadkeep.cold import archive, offload
    from threadkeep.engine import (
        listing,
        registration,
    )
    from threadkeep.forks import copy
    from threadkeep.retention import prune, thin

__all__ = [
    "archive",
    "copy",
    "listing",
    "offload",
    "prune",
    "registration",
    "stats",
    "thin",
]

_PATHS = {
    "archive": "cold.archive",
    "copy": "forks.copy",
    "listing": "engine.listing",
    "offload": "cold.offload",
    "prune": "retention.prune",
    "registration": "engine.registration",
    "stats": "stats",
    "thin": "retention.thin",
}


def __getattr__(name: str) -> ModuleType:
    if name not in _PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"threadkeep.{_PATHS[name]}")
    globals()[name] = module
    return module
