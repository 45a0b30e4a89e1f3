"""The growth of a thread: plots of its bytes and of its channels', beside full copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.threads import GrowthStep, ThreadGrowth
from threadkeep.ui.page import MOST, needed, page_of, render
from threadkeep.ui.pages.store import own
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


async def growth(request: Request) -> Response:
    """Show the growth of a thread."""
    own(request)
    page, name = page_of(request), needed(request, "id")

    async def read(found: Work) -> Plots:
        return Plots(await page.saver.threads.agrowth(name, progress=found.progress))

    found = await work(request, f"growth {name}", read, again="again" in request.query_params)
    return render(request, "growth.html", name=name, work=found)


class Plots:
    """The growth of a thread as the page shows it.

    Attributes:
        count: number of checkpoints.
        points: at most 1,000 of them, with the first and the last.
        channels: the largest channels, with their bytes.
        others: bytes that are in no channel: rows, small values, pending writes.
    """

    def __init__(self, found: ThreadGrowth) -> None:
        self.count = len(found.steps)
        self.points = thinned(found.steps)
        last = self.points[-1]
        self.bytes = found.bytes
        self.full_copies = last.full_copies
        self.channels = last.channels.most_common(_CHANNELS)
        self.others = found.bytes - last.channels.total()

    @property
    def rows(self) -> list[GrowthPoint]:
        """The points of the table, newest first."""
        every = max(-(-len(self.points) // MOST), 1)
        return self.points[::-1][::every]

    def plot(self, series: Sequence[tuple[str, list[int]]]) -> dict[str, Any]:
        """Return the data of a plot of some series."""
        lines = [{"name": name, "values": values} for name, values in series]
        x = [one.number for one in self.points]
        return {"kind": "lines", "bytes": True, "x": x, "series": lines}

    def of_channel(self, name: str) -> list[int]:
        """Return the bytes of a channel at each point."""
        return [one.channels[name] for one in self.points]


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


ROUTES = [Route("/growth", growth)]
