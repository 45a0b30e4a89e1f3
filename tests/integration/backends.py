"""The stores that every suite here runs on, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import threadkeep

if TYPE_CHECKING:
    from pathlib import Path

BACKENDS = ("memory", "sqlite")


def open_backend(name: str, folder: Path, **options: Any) -> Any:
    """A fresh saver of ours; `with` and `async with` close it."""
    if name == "memory":
        return threadkeep.open_saver("memory://", **options)
    options.setdefault("synchronous", "normal")
    return threadkeep.open_saver(f"sqlite:///{folder / 'threads.db'}", **options)
