"""Progress of what takes long, as every method with `progress=` tells it."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the stage ("threads read"), how much of it is done, and the total (0: unknown)."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Show nothing."""
