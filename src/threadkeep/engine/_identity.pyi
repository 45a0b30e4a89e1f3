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
def same_front(one: list[Any], other: list[Any], /) -> int: ...
def behind(old: list[Any], size: int, now: list[Any], /) -> list[Any] | None: ...
