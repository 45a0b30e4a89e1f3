"""`saver.for_tenant`: savers that show the threads of one tenant."""

from __future__ import annotations

import copy
import logging
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from threadkeep._core.engine.context import Engine
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.tenant_store import TenantStore
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.tenant import Names
from threadkeep.errors import InvalidArgumentError

if TYPE_CHECKING:
    from weakref import WeakSet

    from threadkeep.threads.retention.background import Collector, Gained
    from threadkeep.threads.transfer.rolling import Rolling

_log = logging.getLogger("threadkeep")
_VIEWS = 1000  # tenants' savers that are kept for the next call


class ForkedRuns(ResetInChild):
    """Counter and log of concurrent runs that forked a thread.

    Args:
        whole: the saver's, for the part of a tenant.
        prefix: the beginning of the tenant's stored names.
    """

    def __init__(self, whole: ForkedRuns | None = None, prefix: str = "") -> None:
        self._whole, self._prefix = whole, prefix
        super().__init__()

    def _reset(self) -> None:
        self.count = 0
        self._lock = Lock()

    def note(self, thread: str, head: str, checkpoint: str) -> None:
        with self._lock:
            self.count += 1
        if self._whole is not None:
            self._whole.note(self._prefix + thread, head, checkpoint)
            return
        _log.warning(
            "Concurrent runs forked thread %r: checkpoint %s does not descend from %s. Both"
            ' branches are kept; conflicts="raise" refuses the later run.',
            thread,
            checkpoint,
            head,
        )


class ForTenants:
    """A saver whose threads may belong to tenants."""

    _store: LayeredBackend
    _engine: Engine
    _forked: ForkedRuns
    _gained: Gained | None
    _collector: Collector | None
    _family: WeakSet[Any]
    _clones: dict[Any, Any]
    _rolling: Rolling | None
    _views: dict[str, Self]

    @property
    def tenant(self) -> str | None:
        """The tenant whose threads this saver shows, or None for a saver that shows all threads."""
        return None if self._store.names is None else self._store.names.tenant

    def for_tenant(self, tenant: str) -> Self:
        """Return a saver that shows, writes and removes only the threads of one tenant.

        It shares connections, options, caches and their limits with this saver. Tenants may have
        threads of the same id. A call for the same tenant returns the same saver (of the last
        1,000), so you can call it for each request. Its `close` leaves the store open. Its
        `counters` are its own, without the shared parts'.

        This saver, without a tenant, is the operator's: it shows the threads of all tenants by
        their stored names (`threadkeep@tenant NAME ID`), and `gc`, `check`, `tier`, `stats` and
        `gc_every` cover them.

        Args:
            tenant: the tenant's name, a text of 1 to 200 bytes in UTF-8.

        Raises:
            InvalidArgumentError: the name is invalid, or this saver is a tenant's.
        """
        view = self._views.get(tenant) if isinstance(tenant, str) else None
        if view is None:
            self._check_is_whole("for_tenant")
            if self._rolling is not None:
                hint = "Open another saver without migrate_from for tenants."
                raise InvalidArgumentError("LangGraph's threads have no tenants.", hint=hint)
            view = self._view(Names(tenant))
            if len(self._views) >= _VIEWS:
                self._views.clear()
            self._views[tenant] = view
        return view

    def _check_is_whole(self, method: str) -> None:
        if self.tenant is not None:
            raise InvalidArgumentError(
                f"This is the saver of the tenant {self.tenant!r}.",
                hint=f"Call {method} of the saver without a tenant.",
            )

    def _view(self, names: Names) -> Self:
        store, forked = TenantStore(self._store, names), ForkedRuns(self._forked, names.prefix)
        view = copy.copy(self)
        vars(view).update(
            _store=store,
            _engine=self._engine._replace(working_set=store.working_set, forked=forked.note),
            _forked=forked,
            _gained=None if self._gained is None else self._gained.under(names.prefix),
            _collector=None,
            _clones={},
            _views={},
        )
        self._family.add(view)
        return view
