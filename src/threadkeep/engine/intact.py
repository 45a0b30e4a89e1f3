"""Whether what is under watch is as it was, compared at C speed.

`intact` is compiled (`_intact.c`) where the installation could compile it, else
`portable_intact`, which asks the interpreter for the same and takes two to four times as
long: it must list what it compares. Invariant: both give the same answer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeAlias

from threadkeep.engine.identity import pointers

Comparison: TypeAlias = Callable[
    [tuple[Any, ...], list[Any], list[Any], list[Any], list[Any], list[int]], bool
]


def portable_intact(
    containers: tuple[Any, ...],
    referents: list[Any],
    dicts: list[Any],
    keys: list[Any],
    sets: list[Any],
    sizes: list[int],
) -> bool:
    """Tell whether the containers refer to the very objects that they referred to.

    Args:
        containers: any objects; what they refer to is compared.
        referents: what `gc.get_referents(*containers)` listed before.
        dicts: dicts whose keys are compared: the interpreter lists them for some dicts only.
        keys: the keys of all of them, in order.
        sets: sets whose sizes are compared.
        sizes: the size of each.
    """
    if pointers(gc.get_referents(*containers)) != pointers(referents):
        return False
    if list(map(len, sets)) != sizes:
        return False
    try:
        return pointers(list(chain.from_iterable(dicts))) == pointers(keys)
    except RuntimeError:  # a dict that grows at this very moment has changed
        return False


def _choose() -> Comparison:
    try:
        from threadkeep.engine import _intact  # noqa: PLC0415 - it may not be there
    except ImportError:
        return portable_intact
    return _intact.intact


intact = _choose()
