from collections.abc import Set as AbstractSet
from typing import Any

from threadkeep._core.codec.langchain_types import Shape

def split(data: bytes, count: int | None, /) -> list[bytes] | None: ...
def build(
    cls: type[Any],
    shape: Shape,
    values: list[Any],
    first: int,
    fields_set: AbstractSet[str],
    has_extra: bool,
    /,
) -> Any: ...
