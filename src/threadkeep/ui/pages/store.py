"""The store: its size and growth, advice, archives, findings, metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.monitor.advice import aadvise
from threadkeep.threads.repair.repair import HINTS
from threadkeep.ui.page import MOST, page_of, render
from threadkeep.ui.work import Work, work

_ROWS = 50  # of archives


async def overview(request: Request) -> Response:
    """Show the statistics of the store, and the proposals of `advise`."""
    own(request)
    page = page_of(request)

    async def count(_: Work) -> Any:
        stats = await page.saver.astats()
        return stats, await aadvise(page.saver, url=page.command, stats=stats)

    found = await work(request, "statistics", count, again="again" in request.query_params)
    return render(request, "store.html", work=found)


async def archives(request: Request) -> Response:
    """Show archived threads."""
    own(request)
    found = await page_of(request).saver.threads.asearch(
        state="archived", limit=_ROWS, cursor=request.query_params.get("cursor")
    )
    return render(request, "archives.html", found=found)


async def check(request: Request) -> Response:
    """Check the store on demand, and show the findings."""
    own(request)
    saver = page_of(request).saver

    async def examine(found: Work) -> Any:
        return await saver.acheck(found.progress)

    starts = "run" in request.query_params
    found = await work(request, "check", examine if starts else None, again=True)
    return render(request, "check.html", work=found, most=MOST, hints=HINTS)


async def metrics(request: Request) -> Response:
    """Show the counters of this process."""
    own(request)
    page = page_of(request)
    saver = page.origin or page.writer or page.saver
    rates = None if page.window is None else page.window.rates()
    counted = asdict(saver.counters())
    return render(request, "metrics.html", counters=counted, rates=rates)


def own(request: Request) -> None:
    """Refuse a page that LangGraph's own stores do not have."""
    if not page_of(request).is_own:
        raise HTTPException(404, "Only threadkeep's stores have this page.")


ROUTES = [
    Route("/store", overview),
    Route("/store/archives", archives),
    Route("/store/check", check),
    Route("/store/metrics", metrics),
]
