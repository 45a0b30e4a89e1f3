"""The list of threads."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.ui.page import page_of, render

_PAGE = 50  # threads


async def threads(request: Request) -> Response:
    """Show threads, newest first or by another order."""
    asked = request.query_params
    order: Any = asked.get("order", "-updated_at")
    found = await page_of(request).saver.threads.asearch(
        order=order, limit=_PAGE, cursor=asked.get("cursor")
    )
    return render(request, "threads.html", found=found, order=order)


ROUTES = [Route("/", threads)]
