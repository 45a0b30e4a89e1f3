"""Opening of a saver: its tables are made, and it is closed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeAlias, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep import Saver

Opened: TypeAlias = AbstractContextManager[BaseCheckpointSaver[Any]]
OpenedAsync: TypeAlias = AbstractAsyncContextManager[BaseCheckpointSaver[Any]]
OURS = TypeVar("OURS", bound=Saver)


@contextmanager
def ready(saver: OURS) -> Iterator[OURS]:
    with saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def ready_async(saver: OURS) -> AsyncIterator[OURS]:
    async with saver:
        await saver.asetup()
        yield saver
