"""Commands by subject. Importing a module adds its commands."""

from threadkeep.cli.commands import (
    forks,
    inspect,
    items,
    monitor,
    move,
    retention,
    store,
    threads,
    ui,
    upgrade,
)

__all__ = [
    "forks",
    "inspect",
    "items",
    "monitor",
    "move",
    "retention",
    "store",
    "threads",
    "ui",
    "upgrade",
]
