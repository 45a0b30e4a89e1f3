"""A checkpoint: its values, and the changes of its step."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.errors import CheckpointNotFoundError
from threadkeep.ui.page import needed, page_of, render


async def checkpoint(request: Request) -> Response:
    """Show a checkpoint."""
    name, id = needed(request, "thread"), needed(request, "id")
    place = {"thread_id": name, "checkpoint_ns": request.query_params.get("ns", "")}
    config = {"configurable": {**place, "checkpoint_id": id}}
    found = await page_of(request).saver.aget_tuple(config)
    if found is None:
        raise CheckpointNotFoundError(thread=name, checkpoint=id)
    return render(request, "checkpoint.html", name=name, found=found)


ROUTES = [Route("/checkpoint", checkpoint)]
