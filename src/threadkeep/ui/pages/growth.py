"""The growth of a thread: plots of its bytes and of its channels', beside full copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.responses import Response

from threadkeep.threads import GrowthStep
from threadkeep.ui.page import Asked, route
from threadkeep.ui.text import cut
from threadkeep.ui.work import Work, work

POINTS = 1_000
_CHANNELS = 6  # lines of a plot


class GrowthPoint(NamedTuple):
    """A checkpoint in the plots: sums over all checkpoints up to it."""

    number: int
    step: GrowthStep
    stored: int
    full_copies: int
    channels: Counter[str]


@route("/growth")
async def growth(request: Asked) -> Response:
    """Show the growth of a thread."""
    page, name = request.own, request.needed("id")
    await request.thread(name)
    await request.check_is_here(name)

    async def read(found: Work) -> Any:
        grown = await page.saver.threads.agrowth(name, progress=found.progress)
        points = thinned(grown.steps)
        largest = points[-1].channels.most_common(_CHANNELS)
        return points, [
            {"name": cut(channel, 60), "values": [one.channels[channel] for one in points]}
            for channel, _ in largest
        ]

    return request.render(
        "growth.html", name=name, work=await work(request, f"growth {name}", read)
    )


def thinned(steps: Sequence[GrowthStep], most: int = POINTS) -> list[GrowthPoint]:
    """Return at most `most` points, evenly spread, with the first and the last checkpoint."""
    last = len(steps) - 1
    kept = {round(at * last / (most - 1)) for at in range(most)} if last >= most else None
    channels, stored, full = Counter[str](), 0, 0
    points = []
    for number, one in enumerate(steps):
        channels.update(one.channels)
        stored += one.bytes
        full += one.full_copy_bytes
        if kept is None or number in kept:
            points.append(GrowthPoint(number + 1, one, stored, full, channels.copy()))
    return points
