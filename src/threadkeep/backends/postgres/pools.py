"""Where connections come from: pools of our own, or what a program gave.

Only the life of connections lives here: which one a call gets, when pools are opened and
closed, and what a fork of the process means for them. Invariants: no lock is held while a
connection is in use, but that of a single connection which was given; what was given is
never closed; a connection belongs to the process, and an async one to the event loop, that
it was opened in; on a blocking source no coroutine suspends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep.backends import process_forks, sync_bridge
from threadkeep.backends.postgres.exchange import Message, asend, send
from threadkeep.backends.postgres.failures import mapped
from threadkeep.backends.postgres.settings import Settings
from threadkeep.backends.postgres.statement import Rows
from threadkeep.backends.process_forks import PerProcess
from threadkeep.errors import ClosedError, UnreachableError

_Conn: TypeAlias = Connection[Any]
_AsyncConn: TypeAlias = AsyncConnection[Any]


class Source(Protocol):
    """Lends connections, one for a call."""

    def lend(self) -> AbstractAsyncContextManager[Any]:
        """A connection. `ClosedError` once this was closed."""

    async def send(self, conn: Any, message: Message) -> list[Rows]:
        """See `exchange.send`."""

    async def mend(self) -> None:
        """Sort out lost connections, after one was met."""

    async def pause(self, seconds: float) -> None:
        """Wait before the same is tried again."""

    async def close(self) -> None:
        """Close what is ours. Idempotent."""


class _Blocking:
    """What all blocking sources have in common."""

    async def send(self, conn: _Conn, message: Message) -> list[Rows]:
        return send(conn, message)

    async def pause(self, seconds: float) -> None:
        await sync_bridge.sleep(seconds)


class _Awaiting:
    """What all awaiting sources have in common."""

    async def send(self, conn: _AsyncConn, message: Message) -> list[Rows]:
        return await asend(conn, message)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@contextmanager
def _refusals_named(settings: Settings) -> Iterator[None]:
    """Say what a failure to connect means, as an error that is not tried again.

    What was never reached is no lost connection: a wrong password stays wrong.
    """
    try:
        yield
    except psycopg.Error as error:
        raise mapped(error, settings.server) from error


def _check_open(is_open: bool) -> None:  # noqa: FBT001 - its name is the question
    if not is_open:
        raise ClosedError(hint="Open a new saver.")


def _check_connected(conn: _Conn | _AsyncConn) -> None:
    """Nobody but its owner can connect again: to try for long would be in vain."""
    if conn.closed:
        raise UnreachableError(
            "The connection that the saver was given is closed.",
            hint="Give a new one to a new saver; with a URL or a pool, savers connect again.",
        )


# -- pools of our own ------------------------------------------------------------------


class OwnPool(_Blocking):
    """A pool that is opened when it is first needed, anew after a fork."""

    def __init__(self, settings: Settings) -> None:
        self._pool = PerProcess(partial(_opened, settings))

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[_Conn]:
        """See `Source.lend`."""
        with self._pool.get().connection() as conn:
            yield conn

    async def mend(self) -> None:
        """See `Source.mend`."""
        self._pool.get().check()

    async def close(self) -> None:
        """See `Source.close`."""
        self._pool.close()


def _opened(settings: Settings) -> ConnectionPool[_Conn]:
    # A pool goes on trying, without a word: whether the server lets us in is asked first.
    with _refusals_named(settings):
        psycopg.connect(settings.conninfo, **settings.arguments).close()
    return ConnectionPool(settings.conninfo, open=True, **settings.pool_arguments)


class OwnAsyncPools(_Awaiting):
    """A pool for each event loop, opened when the loop first needs it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open = True
        self._loops: dict[asyncio.AbstractEventLoop, asyncio.Task[_LoopsPool]] = {}
        self._parents: list[Any] = []
        process_forks.watch(self)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[_AsyncConn]:
        """See `Source.lend`."""
        async with (await self._ready()).pool.connection() as conn:
            yield conn

    async def mend(self) -> None:
        """See `Source.mend`."""
        await (await self._ready()).pool.check()

    async def _ready(self) -> _LoopsPool:
        _check_open(self._open)
        loop = asyncio.get_running_loop()
        opening = self._loops.get(loop)
        if opening is not None and opening.done() and not _failed(opening):
            return opening.result()
        if opening is None or opening.done():
            self._drop_ended_loops()
            opening = self._loops[loop] = loop.create_task(_LoopsPool.open(self._settings))
        # One call may be cancelled while others wait for the same pool.
        return await asyncio.shield(opening)

    def _drop_ended_loops(self) -> None:
        for loop in tuple(self._loops):  # (other threads have loops of their own)
            if loop.is_closed() and (opening := self._loops.pop(loop, None)):
                _abandon(opening)

    async def close(self) -> None:
        """See `Source.close`."""
        here = asyncio.get_running_loop()
        self.close_elsewhere(here)
        opening = self._loops.pop(here, None)
        if opening is not None:
            await _close(opening)

    def close_elsewhere(self, here: asyncio.AbstractEventLoop | None = None) -> None:
        """Close the pools of all event loops but the one that runs here."""
        self._open = False
        for loop in tuple(self._loops):
            opening = self._loops.pop(loop, None) if loop is not here else None
            if opening is None:
                continue
            if loop.is_closed():
                _abandon(opening)
            else:
                loop.call_soon_threadsafe(_begin_to_close, opening)

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`."""
        if in_child:
            self._parents.append(self._loops)
            self._loops = {}


class _LoopsPool:
    """An open async pool, and its connections, which an event loop that ends leaves behind."""

    def __init__(self, settings: Settings) -> None:
        self.connections: set[_AsyncConn] = set()
        self.pool: AsyncConnectionPool[_AsyncConn] = AsyncConnectionPool(
            settings.conninfo, open=False, configure=self._note, **settings.pool_arguments
        )
        self._over = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def _note(self, conn: _AsyncConn) -> None:
        self.connections = {known for known in self.connections if not known.closed} | {conn}

    @classmethod
    async def open(cls, settings: Settings) -> _LoopsPool:
        """Open a pool, if the server lets us in."""
        with _refusals_named(settings):
            first = await AsyncConnection.connect(settings.conninfo, **settings.arguments)
        await first.close()
        opened = cls(settings)
        await opened.pool.open()
        opened._keeper = asyncio.create_task(opened._keep())
        return opened

    async def _keep(self) -> None:
        """Close the pool when that is asked for, or when the event loop cancels all tasks.

        A task of the pool that is cancelled while it connects takes that for a failure and
        goes on: `asyncio.run` would wait for it for ever.
        """
        try:
            await self._over.wait()
        finally:
            await self.pool.close()

    async def close(self) -> None:
        """Close the pool; what is in use is closed when it is given back."""
        self._over.set()
        if self._keeper is not None:
            await asyncio.wait([self._keeper])


def _failed(opening: asyncio.Task[_LoopsPool]) -> bool:
    return opening.cancelled() or opening.exception() is not None


def _abandon(opening: asyncio.Task[_LoopsPool]) -> None:
    """Close the connections of a loop that has ended, where a pool cannot be awaited."""
    if opening.done() and not _failed(opening):
        for conn in opening.result().connections:
            conn.pgconn.finish()


async def _close(opening: asyncio.Task[_LoopsPool]) -> None:
    try:
        opened = await opening
    except UnreachableError:  # it was never open
        return
    await opened.close()


_closing: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly


def _begin_to_close(opening: asyncio.Task[_LoopsPool]) -> None:
    task = asyncio.get_running_loop().create_task(_close(opening))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


# -- what was given --------------------------------------------------------------------


class _Given:
    """Something of the program's own, which is left as it is."""

    _open = True

    async def mend(self) -> None:
        """Nothing can be done: only its owner can connect again."""

    async def close(self) -> None:
        """Use it no more; closing it is its owner's affair."""
        self._open = False


class GivenPool(_Blocking, _Given):
    """A program's own pool."""

    def __init__(self, pool: ConnectionPool[_Conn]) -> None:
        self._pool = pool

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[_Conn]:
        """See `Source.lend`."""
        _check_open(self._open)
        with self._pool.connection() as conn:
            yield conn

    async def mend(self) -> None:
        """See `Source.mend`."""
        self._pool.check()


class GivenAsyncPool(_Awaiting, _Given):
    """A program's own async pool."""

    def __init__(self, pool: AsyncConnectionPool[_AsyncConn]) -> None:
        self._pool = pool

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[_AsyncConn]:
        """See `Source.lend`."""
        _check_open(self._open)
        async with self._pool.connection() as conn:
            yield conn

    async def mend(self) -> None:
        """See `Source.mend`."""
        await self._pool.check()


class GivenConnection(_Blocking, _Given):
    """A program's own connection: one call at a time."""

    def __init__(self, conn: _Conn) -> None:
        self._conn = conn
        self._lock = threading.Lock()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[_Conn]:
        """See `Source.lend`."""
        with self._lock:
            _check_open(self._open)
            _check_connected(self._conn)
            yield self._conn


class GivenAsyncConnection(_Awaiting, _Given):
    """A program's own async connection: one call at a time."""

    def __init__(self, conn: _AsyncConn) -> None:
        self._conn = conn
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[_AsyncConn]:
        """See `Source.lend`."""
        async with self._lock:
            _check_open(self._open)
            _check_connected(self._conn)
            yield self._conn
