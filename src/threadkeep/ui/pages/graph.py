"""The graph, drawn in a frame of its own: Mermaid needs styles that no other page allows."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from threadkeep.ui.page import Asked, route

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


@route("/graph")
async def graph(request: Asked) -> Response:
    """Show the graph. The page around it names marked nodes in the address's fragment."""
    shown = request.page.graph
    if shown is None:
        raise HTTPException(404, "This page has no graph: start it with --graph.")
    return request.render(
        "graph.html", text=shown.text, headers={"content-security-policy": _POLICY}
    )
