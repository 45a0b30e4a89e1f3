"""The growth of a thread: plots of its bytes and of its channels', compared with full copies."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from threadkeep.ui.page import Asked, route
from threadkeep.ui.text import cut
from threadkeep.ui.work import Work, work

_CHANNELS = 6  # lines of a plot


@route("/growth")
async def growth(request: Asked) -> Response:
    """Show the growth of a thread."""
    name = request.needed("id")
    await request.thread(name)
    return request.render("growth.html", name=name, work=await growth_of(request, name))


async def growth_of(request: Asked, name: str) -> Work | None:
    """Return work whose result has the bytes of a thread's steps, and the plots' data."""
    page = request.own
    await request.check_is_here(name)

    async def read(doing: Work) -> Any:
        grown = await page.saver.threads.agrowth(name, progress=doing.progress)
        added = {(one.namespace, one.checkpoint): one.bytes for one in grown.steps}
        points = grown.points()
        names = [name for name, _ in points[-1].channels.most_common(_CHANNELS)]
        rest = [one.stored - sum([one.channels[name] for name in names]) for one in points]
        each = [{"name": cut(x, 60), "values": [at.channels[x] for at in points]} for x in names]
        return added, points, rest, each

    return await work(request, f"growth {name}", read)
