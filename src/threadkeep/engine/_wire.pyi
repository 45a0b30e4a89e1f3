from collections.abc import Callable, Mapping
from typing import Any

from threadkeep.engine.manifest import Entry, Versions
from threadkeep.engine.refs import Ref

def difference(
    entries: Mapping[str, Entry],
    seen: Mapping[str, Versions],
    known: Mapping[str, Entry],
    known_seen: Mapping[str, Versions],
    channels: Mapping[str, int],
    nodes: Mapping[str, int],
    to_wire: Callable[[Ref | None, Ref | None], Any],
    /,
) -> list[Any] | None: ...
def is_usual(values: Any, versions: Any, seen: Any, /) -> bool: ...
