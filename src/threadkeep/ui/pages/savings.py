"""The bytes that threadkeep would save over LangGraph's own savers."""

from __future__ import annotations

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.monitor.savings import measure
from threadkeep.ui.page import page_of, render

_ONE_AT_A_TIME = CapacityLimiter(1)


async def savings(request: Request) -> Response:
    """Show the size of a LangGraph store; with `measure`, copy a sample and compare."""
    page, found = page_of(request), None
    if page.is_own:
        raise HTTPException(404, "This store is threadkeep's own.")
    if "measure" in request.query_params:
        found = await to_thread.run_sync(measure, page.saver, limiter=_ONE_AT_A_TIME)
    return render(request, "savings.html", found=found, total=await page.saver.atotal_bytes())


ROUTES = [Route("/savings", savings)]
