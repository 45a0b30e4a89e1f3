from typing import Any

def intact(
    containers: tuple[Any, ...],
    referents: list[Any],
    dicts: list[Any],
    keys: list[Any],
    sets: list[Any],
    sizes: list[int],
    /,
) -> bool: ...
