"""Keeping Python's garbage collector from looking for garbage where there is none.

After every 700 new containers the collector looks at those, and sooner or later at all
there are. While a long thread is decoded everything made stays: it finds nothing, and
takes more time than the decoding. Only the pause lives here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Let no collection begin in this process until the end of the block.

    Where two threads pause it at once, it goes on when the first of them has ended.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
