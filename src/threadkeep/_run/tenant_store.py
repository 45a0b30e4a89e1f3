"""The threads of one tenant in a layered backend (design note 0028).

Names are mapped above all layers: caches, archives and groups of commits belong to the whole
store, and know threads by their stored names.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine.model import Change
from threadkeep._core.engine.operation import (
    CommitMany,
    Fetch,
    Operation,
    Request,
)
from threadkeep._run.first_change import FirstChange
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.tenant import Names, for_tenant
from threadkeep.errors import ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._stores.cold_store import ColdStore


class TenantStore(LayeredBackend):
    """A view of a layered backend, which it never closes."""

    names: Names

    def __init__(self, whole: LayeredBackend, names: Names) -> None:
        vars(self).update(vars(whole))
        self._whole = whole
        self._first = FirstChange(is_due=False)  # (the whole looks)
        self._archives = self._writer = self._loop_writers = None
        self._use(None)
        self.names = names
        self._set_backend(for_tenant(whole.backend, names))
        self.working_set = whole.working_set.part(names.prefix)

    @property
    def whole(self) -> LayeredBackend:
        return self._whole

    # -- requests ------------------------------------------------------------------------

    def _carry_out(self, request: Request) -> Any:
        names = self.names
        if type(request) is Fetch:
            with names:
                replies = self._whole.answer(Fetch([*map(names.to_store, request.reads)]))
            return [*map(names.from_store, request.reads, replies)]
        if type(request) is CommitMany:
            with names:
                refusals = self._whole.answer(CommitMany([*map(names.change, request.changes)]))
            return [*map(names.named, refusals)]
        return super()._carry_out(request)

    async def _acarry_out(self, request: Request) -> Any:
        names = self.names
        if type(request) is Fetch:
            with names:
                replies = await self._whole.aanswer(Fetch([*map(names.to_store, request.reads)]))
            return [*map(names.from_store, request.reads, replies)]
        if type(request) is CommitMany:
            changes = [*map(names.change, request.changes)]
            with names:
                refusals = await self._whole.aanswer(CommitMany(changes))
            return [*map(names.named, refusals)]
        return await super()._acarry_out(request)

    def commit(self, change: Change) -> None:
        try:  # (cheaper than `with self.names`)
            self._whole.commit(self.names.change(change))
        except ThreadkeepError as error:
            self.names.named(error)
            raise

    def submit(self, change: Change) -> Awaitable[None] | None:
        with self.names:
            waiting = self._whole.submit(self.names.change(change))
        return None if waiting is None else self._submitted(waiting)

    async def _submitted(self, waiting: Awaitable[None]) -> None:
        with self.names:
            await waiting

    # -- parts of the whole --------------------------------------------------------------

    def own_cold(self) -> Operation[ColdStore | None]:
        """Folders have the stored names of threads."""
        cold = yield from super().own_cold()
        return None if cold is None else cold.under(self.names.prefix)

    def clear_cache(self, thread: str | None, prefix: str = "") -> None:
        name = None if thread is None else self.names.stored(thread)
        return self._whole.clear_cache(name, self.names.stored(prefix))

    def close(self) -> None:
        """Close nothing."""

    async def aclose(self) -> None:
        """Close nothing."""
