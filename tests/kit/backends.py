"""The stores that every suite here runs on, by name."""

from pathlib import Path
from typing import Any

import threadkeep
from kit import mysql
from kit import redis as redis_kit
from kit.postgres import url_for

BACKENDS = ("memory", "sqlite", "postgres", "redis", "mysql")


SHARED = ("sqlite", "postgres", "redis", "mysql")
"""Those that savers of several processes have in common."""


def url_of(name: str, folder: Path) -> str:
    """The URL of the store that a folder stands for; the same one each time."""
    if name == "postgres":
        return url_for(folder)
    if name == "redis":
        return redis_kit.url_for(folder)
    if name == "mysql":
        return mysql.url_for(folder)
    return f"sqlite:///{folder / 'threads.db'}"


def open_backend(name: str, folder: Path, **options: Any) -> Any:
    """A fresh saver of ours; `with` and `async with` close it."""
    if name == "memory":
        return threadkeep.open_saver("memory://", **options)
    if name == "postgres":
        options.setdefault("max_size", 4)
    elif name == "sqlite":
        options.setdefault("synchronous", "normal")
    return threadkeep.open_saver(url_of(name, folder), **options)
