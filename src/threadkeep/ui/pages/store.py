"""The store: its size and growth, advice, archives, findings, metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep._core.texts import size
from threadkeep.monitor.advice import aadvise
from threadkeep.threads.repair.repair import HINTS
from threadkeep.ui.page import page_of, render
from threadkeep.ui.work import Work, work


def own(request: Request) -> None:
    """Refuse a page that LangGraph's own stores do not have."""
    if not page_of(request).is_own:
        raise HTTPException(404, "Only threadkeep's stores have this page.")


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
    search, cursor = page_of(request).saver.threads.asearch, request.query_params.get("cursor")
    found = await search(state="archived", limit=50, cursor=cursor)
    return render(request, "archives.html", found=found)


async def check(request: Request) -> Response:
    """Check the store on demand, and show the findings."""
    own(request)
    saver, starts = page_of(request).saver, "run" in request.query_params
    examine = (lambda found: saver.acheck(found.progress)) if starts else None
    found = await work(request, "check", examine, again=True)
    return render(request, "check.html", work=found, hints=HINTS)


async def metrics(request: Request) -> Response:
    """Show the counters of this process."""
    own(request)
    page = page_of(request)
    counters = (page.origin or page.saver).counters()
    rates = {} if page.window is None else _texts(page.window.rates())
    return render(request, "metrics.html", counters=_texts(counters), rates=rates)


def _texts(measures: Any) -> dict[str, str]:
    """Return measures with their units."""
    found = {}
    for name, value in asdict(measures).items():
        if name.endswith("bytes"):
            found[name] = size(value)
        elif name.startswith("p") and value is not None:
            found[name] = f"{value * 1000:,.1f} ms"
        elif value is not None:
            found[name] = f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
    return found


ROUTES = [
    Route("/store", overview),
    Route("/store/archives", archives),
    Route("/store/check", check),
    Route("/store/metrics", metrics),
]
