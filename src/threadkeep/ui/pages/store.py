"""The store: its size, statuses and growth, advice, sessions, findings, counters, savings."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.responses import Response

from threadkeep.errors import CorruptionError, WrongKeyError
from threadkeep.monitor.advice import aadvise
from threadkeep.monitor.savings import measure
from threadkeep.sessions.records import workflow_of
from threadkeep.threads.repair.repair import HINTS
from threadkeep.ui.page import Asked, route
from threadkeep.ui.work import Work, work

_AGING = ("waiting", "unfinished")  # statuses whose oldest thread is shown
_SESSIONS = ("active", "forked")  # states of threads that are read


@route("/store")
async def overview(request: Asked) -> Response:
    """Show the statistics of the store, and the proposals of `advise`."""
    page = request.own

    async def count(_: Work) -> Any:
        stats = await page.saver.astats()
        first = partial(page.saver.threads.asearch, order="updated_at", limit=1)
        oldest = {name: one for name in _AGING for one in (await first(status=name)).threads}
        return stats, await aadvise(page.saver, url=page.command, stats=stats), oldest

    found = await work(request, "statistics", count, again="again" in request.query_params)
    return request.render("store.html", work=found)


@route("/store/sessions")
async def sessions(request: Asked) -> Response:
    """Show the sessions among a page of threads, with the workflow of the newest checkpoint."""
    saver, rows = request.own.saver, []
    cursor = request.query_params.get("cursor")
    found = await saver.threads.asearch(state=_SESSIONS, limit=50, cursor=cursor)
    for one in found.threads:
        with suppress(CorruptionError, WrongKeyError):  # (its own page says so)
            newest = saver.alist({"configurable": {"thread_id": one.id}}, limit=1, values="lazy")
            rows += [(one, workflow_of(each)) async for each in newest if workflow_of(each)]
    return request.render("sessions.html", cursor=found.cursor, rows=rows)


@route("/store/check")
async def check(request: Asked) -> Response:
    """Check the store on demand, and show the findings."""
    saver, starts = request.own.saver, "run" in request.query_params
    examine = (lambda found: saver.acheck(found.progress)) if starts else None
    found = await work(request, "check", examine, again=True)
    return request.render("check.html", work=found, hints=HINTS)


@route("/store/metrics")
async def metrics(request: Asked) -> Response:
    """Show the counters of the application's own saver in this process."""
    page = request.own
    if page.origin is None:  # (the page has a process of its own, which saves nothing)
        raise HTTPException(404, "Only the page of an application has counters.")
    counters = asdict(page.origin.counters())
    rates = {} if page.window is None else asdict(page.window.rates())
    return request.render("metrics.html", counters=counters, rates=rates)


@route("/savings")
async def savings(request: Asked) -> Response:
    """Show the size of a LangGraph store. With `measure`, copy a sample and compare."""
    page, starts = request.page, "measure" in request.query_params
    if page.is_own:
        raise HTTPException(404, "This store is threadkeep's own.")
    sample = (lambda _: to_thread.run_sync(measure, page.saver)) if starts else None
    found = await work(request, "savings", sample, again=True)
    return request.render("savings.html", work=found, total=await page.saver.atotal_bytes())
