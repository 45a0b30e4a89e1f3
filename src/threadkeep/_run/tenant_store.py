"""The threads of one tenant in a layered backend (design note 0028).

Names are mapped above all layers: caches, archives and groups of commits belong to the whole
store, and know threads by their stored names.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine.model import Change
from threadkeep._core.engine.operation import (
    Call,
    Commit,
    CommitMany,
    External,
    Fetch,
    Operation,
    Request,
)
from threadkeep._core.engine.usage import Counters
from threadkeep._run.first_change import FirstChange
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.tenant import Names, for_tenant
from threadkeep.errors import ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._stores.cold_store import ColdStore


class TenantStore(LayeredBackend):
    """A view of a layered backend, which it never closes."""

    def __init__(self, whole: LayeredBackend, names: Names) -> None:
        # (no super().__init__(): all parts are the whole's)
        self._whole = whole
        self._first = FirstChange(is_due=False)  # (the whole looks)
        self.names = names
        self.backend = for_tenant(whole.backend, names)
        self._blocking = self.backend if isinstance(self.backend, Backend) else None
        self._awaited: AsyncBackend | None = (
            self.backend.asynchronous if isinstance(self.backend, Backend) else self.backend
        )
        self._home = whole._home  # noqa: SLF001 - the same backend's
        self.cold, self.tiering, self.retention = whole.cold, whole.tiering, whole.retention
        self._archives = self._writer = self._loop_writers = None
        self.working_set = whole.working_set.part(names.prefix)
        self._use(())

    @property
    def whole(self) -> LayeredBackend:
        return self._whole

    # -- requests ------------------------------------------------------------------------

    def _carry_out(self, request: Request) -> Any:
        if type(request) is External:
            return request.call()
        if type(request) is Call:
            return self.call(request)
        try:
            reply = self._whole.answer(self._mapped(request))
        except ThreadkeepError as error:
            self.names.named(error)
            raise
        return self._from_store(request, reply)

    async def _acarry_out(self, request: Request) -> Any:
        if type(request) is External or type(request) is Call:
            return await super()._acarry_out(request)
        try:
            reply = await self._whole.aanswer(self._mapped(request))
        except ThreadkeepError as error:
            self.names.named(error)
            raise
        return self._from_store(request, reply)

    def _mapped(self, request: Request) -> Request:
        if type(request) is Fetch:
            return Fetch([*map(self.names.to_store, request.reads)])
        if type(request) is Commit:
            return Commit(self.names.change(request.change))
        assert type(request) is CommitMany  # noqa: S101 - the last kind
        return CommitMany([*map(self.names.change, request.changes)])

    def _from_store(self, request: Request, reply: Any) -> Any:
        if type(request) is Fetch:
            return [*map(self.names.from_store, request.reads, reply)]
        if type(request) is CommitMany:
            return [None if error is None else self.names.named(error) for error in reply]
        return reply

    def commit(self, change: Change) -> None:
        if type(change) in self._routes:
            self.answer(Commit(change))
            return
        try:
            self._whole.commit(self.names.change(change))
        except ThreadkeepError as error:
            self.names.named(error)
            raise

    def submit(self, change: Change) -> Awaitable[None] | None:
        if type(change) in self._routes:
            return self.aanswer(Commit(change))
        try:
            waiting = self._whole.submit(self.names.change(change))
        except ThreadkeepError as error:
            self.names.named(error)
            raise
        return None if waiting is None else self._submitted(waiting)

    async def _submitted(self, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except ThreadkeepError as error:
            self.names.named(error)
            raise

    # -- parts of the whole --------------------------------------------------------------

    def own_cold(self) -> Operation[ColdStore | None]:
        """See `LayeredBackend.own_cold`. Folders have the stored names of threads."""
        cold = yield from super().own_cold()
        return None if cold is None else cold.under(self.names.prefix)

    def clear_cache(self, thread: str | None, prefix: str = "") -> None:
        name = None if thread is None else self.names.stored(thread)
        return self._whole.clear_cache(name, self.names.stored(prefix))

    def counters(self, forked_runs: int) -> Counters:
        """Return the counters of this view alone. Layers' counters are the whole store's."""
        counts = self.working_set.counts
        return Counters(
            written_bytes=counts.written,
            saved_bytes=counts.saved,
            working_set_hits=counts.hits,
            working_set_misses=counts.loads - counts.hits,
            conflicts=forked_runs + counts.conflicts,
            retries=counts.retries,
        )

    def opening(self) -> Operation[None]:
        return self._whole.opening()

    def closing(self) -> Operation[None]:
        """Close nothing."""
        yield from ()

    def close(self) -> None:
        """Close nothing."""

    async def aclose(self) -> None:
        """Close nothing."""
