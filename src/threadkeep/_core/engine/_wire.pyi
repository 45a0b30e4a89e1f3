from collections.abc import Callable, Mapping
from typing import Any

from threadkeep._core.engine.refs import ChannelEntry, Ref, Versions

def difference(
    entries: Mapping[str, ChannelEntry],
    seen: Mapping[str, Versions],
    known: Mapping[str, ChannelEntry],
    known_seen: Mapping[str, Versions],
    channels: Mapping[str, int],
    nodes: Mapping[str, int],
    to_wire: Callable[[Ref | None, Ref | None], Any],
    /,
) -> list[Any] | None: ...
def is_usual(values: Any, versions: Any, seen: Any, /) -> bool: ...
