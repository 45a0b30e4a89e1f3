"""Whether two values are equal by their bytes.

Only that lives here. Types and the order of dicts count, that of sets does not. Unlike
`exact`, it tells of values of any kind. Invariant: whatever codec the store has, values are
compared by our own: a serializer's bytes may differ each time, as encrypted ones do.
"""

from __future__ import annotations

from typing import Any

from threadkeep.codec import Codec, NativeCodec
from threadkeep.errors import UnserializableError


def alike(codec: Codec, a: Any, b: Any) -> bool:
    """Whether `a` and `b` are the same to a reader of the store.

    Args:
        codec: the store's.
        a: a value.
        b: another one.
    """
    native = codec if isinstance(codec, NativeCodec) else NativeCodec()
    try:
        return native.encode(a) == native.encode(b)
    except UnserializableError:  # then a serializer of the program's own stores it
        return type(a) is type(b) and bool(a == b)
