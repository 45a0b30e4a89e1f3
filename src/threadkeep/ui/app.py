"""The ASGI application: its routes and its errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from langgraph.store.base import InvalidNamespaceError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from threadkeep import errors
from threadkeep._run.delegate import behind
from threadkeep.errors import InvalidArgumentError, NotFoundError, StateError, WrongKeyError
from threadkeep.monitor.exports import Observed
from threadkeep.monitor.observe import backend_of
from threadkeep.monitor.probes import Window
from threadkeep.savers.saver import Saver
from threadkeep.savers.showing import as_stored
from threadkeep.ui import pages
from threadkeep.ui.guard import Authorize, LocalAccess, MountedAccess, PageGuard
from threadkeep.ui.page import ROUTES, Asked, OnAnswer, StorePage, said
from threadkeep.ui.pages.live import Watcher
from threadkeep.ui.pages.threads import counts_of
from threadkeep.ui.previews import Previews

if TYPE_CHECKING:
    from threadkeep.ui.graphs import PageGraph

for _one in iter_modules(pages.__path__):  # (each adds its routes)
    import_module(f"{pages.__name__}.{_one.name}")

_WINDOW = 300  # seconds of operations that the metrics show
_STATUSES: dict[type[Exception], int] = {
    NotFoundError: 404,
    **dict.fromkeys((InvalidArgumentError, InvalidNamespaceError), 400),
    **dict.fromkeys((StateError, WrongKeyError), 409),
}
_OURS = (errors.ThreadkeepError, InvalidNamespaceError)
_log = logging.getLogger("threadkeep")


def app(
    saver: Any,
    *,
    authorize: Authorize | None = None,
    write: bool = False,
    secret: str | None = None,
    on_answer: OnAnswer | None = None,
    graph: Any = None,
) -> PageGuard:
    """Return the page as an ASGI application, to be mounted in your own service.

    The page reads the saver's store, and shows values of your classes as they are stored: only the
    graph that you give runs code of yours. With a saver of `for_tenant`, the page shows this tenant
    alone.

    Args:
        saver: a saver of threadkeep. It stays open.
        authorize: gets each request (Starlette's `Request`, which has your cookies and headers) and
            returns the user's name, or None to refuse. It may be async. Without it, the page
            refuses every request.
        write: True also allows changes, which the log `threadkeep.audit` names with their user.
        secret: a random text for tokens against CSRF, the same in all processes that serve the
            page, or None if there is only one.
        on_answer: awaited with a thread's id and a dict of answers by interrupt id, to continue the
            thread at once: `graph.ainvoke(Command(resume=answers), config)`, in a task if that
            takes long. Without it, the inbox stores answers for the next run. Needs `write`.
        graph: the threads' graph, which the page draws. With `write`, it also resumes and replays
            threads, with this saver as the graph's checkpointer, in tasks of the event loop.

    Raises:
        InvalidArgumentError: the saver is not threadkeep's, or `graph` is no graph.
    """
    inner = behind(saver)
    if not isinstance(inner, Saver):
        hint = "Use a saver of threadkeep, or `threadkeep ui URL` for a store of LangGraph's."
        raise errors.invalid("saver", saver, hint)
    window = None
    if isinstance(saver, Observed) and inner.tenant is None:  # (it measures all tenants together)
        window = Window(_WINDOW, time.monotonic)
        saver.add_sink(window)
    page = StorePage(
        saver=as_stored(inner),
        title=backend_of(inner) + (f", tenant {inner.tenant}" if inner.tenant else ""),
        writer=inner if write else None,
        origin=inner,
        on_answer=on_answer,
        window=window,
        graph=None if graph is None else _graph(graph, saver if write else None),
    )
    return build(page, MountedAccess(authorize, secret))


def _graph(graph: Any, saver: Any) -> PageGraph:
    from threadkeep.ui.graphs import PageGraph  # noqa: PLC0415 - the page works without LangGraph

    return PageGraph(graph, saver)


def build(
    page: StorePage, access: LocalAccess | MountedAccess, routes: Sequence[BaseRoute] = ()
) -> PageGuard:
    """Return the application of a page, with more routes before its own."""
    static = Mount("/static", StaticFiles(packages=[("threadkeep.ui", "static")]))
    failing: Any = dict.fromkeys((*_OURS, HTTPException, Exception), _failed)
    made = Starlette(routes=[*routes, *ROUTES, static], exception_handlers=failing)
    made.state.page, made.state.work, made.state.previews = page, {}, Previews(page)
    made.state.counts = Watcher(partial(counts_of, page))
    return PageGuard(made, access, writes=page.writer is not None)


async def _failed(request: Request, error: Exception) -> Response:
    shown: Exception | str = error
    is_post = request.method == "POST"
    if isinstance(error, HTTPException):
        shown, status = error.detail, error.status_code
    elif isinstance(error, _OURS):
        other = 409 if is_post else 500
        status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), other)
    else:
        _log.error("The page failed at %s.", request.url.path, exc_info=error)
        shown, status = "The page failed here; the log says why.", 500
    asked = Asked(request.scope)
    if is_post:  # (the script shows it next to the form)
        return PlainTextResponse(said(shown, asked.language), status)
    return asked.render("error.html", status, error=shown)
