"""Every operation that a saver offers, each a generator over the backend's reads and changes.

Those that a save and a load do not need are imported when they are first used, as attributes of
this package.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadkeep.engine.operations import (
        archiving,
        copying,
        history,
        housekeeping,
        inspection,
        listing,
        offloading,
        registration,
        retention,
    )

__all__ = [
    "archiving",
    "copying",
    "history",
    "housekeeping",
    "inspection",
    "listing",
    "offloading",
    "registration",
    "retention",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
