from typing import Any

from threadkeep.engine.capture import Layout

def intact(
    containers: tuple[Any, ...],
    referents: list[Any],
    dicts: list[Any],
    keys: list[Any],
    sets: list[Any],
    sizes: list[int],
    /,
) -> bool: ...
def unchanged(
    value: object,
    keys: list[Any] | None,
    items: list[Any],
    size: int,
    chunks: tuple[Any, ...],
    /,
) -> bool: ...
def same_front(one: list[Any], other: list[Any], /) -> int: ...
def behind(old: list[Any], size: int, now: list[Any], /) -> list[Any] | None: ...
def apart(groups: list[tuple[Any, ...]], /) -> list[bool]: ...
def capture(
    elements: list[Any],
    kinds: dict[type, int],
    layouts: dict[type, Layout],
    copying: bool,
    /,
) -> tuple[Any, ...] | type: ...
