"""Savers that show threads: they load no class of a program, and never save."""

from __future__ import annotations

import copy
import threading
from typing import TypeVar

from threadkeep._core.codec.codecs import PlainCodec, RawCodec
from threadkeep._core.engine.shapes import AS_STORED
from threadkeep._core.engine.working_set import WorkingSet
from threadkeep._run.layered_backend import RANDOM
from threadkeep.savers.saver import Saver, Serializing

S = TypeVar("S", bound=Saver)


def show_raw(saver: Serializing) -> None:
    """Let a saver return objects of unknown classes as `Raw`: to show threads, never to run them.

    Call it before the saver is used. The saver must have no serializer of its own.
    """
    saver._engine = saver._engine._replace(codec=RawCodec(), shapes=AS_STORED)  # noqa: SLF001 - below it


def show_as_stored(saver: Serializing) -> None:
    """Let a saver without migrations show channels of any shape. Don't save with it."""
    saver._engine = saver._engine._replace(shapes=AS_STORED)  # noqa: SLF001 - as above


def as_stored(saver: S) -> S:
    """Return a view of a saver that shows values as `raw` does. Don't save with it.

    It keeps nothing in memory, so the saver never gets its objects. It needs no `close`.
    """
    view = copy.copy(saver)
    view._engine = saver._engine._replace(  # noqa: SLF001 - as above
        codec=PlainCodec(),
        shapes=AS_STORED,
        working_set=WorkingSet(0, threading.Lock, RANDOM.getrandbits),
    )
    view._clones, view._views = {}, {}  # noqa: SLF001 - as above
    return view
