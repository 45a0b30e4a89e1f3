"""Changes: tags, pins, forks, archives, deletions. Each is one call of the saver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.responses import Response

from threadkeep.errors import InvalidArgumentError, NotFoundError
from threadkeep.threads import Mark, ThreadStatus
from threadkeep.threads.diff import printable
from threadkeep.threads.steps import read_steps
from threadkeep.ui.audit import audited
from threadkeep.ui.page import Asked, PagePlace, route
from threadkeep.ui.pages.checkpoint import listed

Sent: TypeAlias = Mapping[str, str]
Action: TypeAlias = Callable[[Any, PagePlace, Sent], Awaitable[Any]]


def _mark(at: PagePlace) -> dict[str, Any]:
    """Return arguments of `tag` and `pin`, for a thread or a checkpoint of it."""
    return {"checkpoint_id": at.id or None, "checkpoint_ns": at.ns}


ACTIONS: Mapping[str, Action] = {
    "tag": lambda saver, at, given: saver.threads.atag(
        at.thread, given.get("tag", ""), **_mark(at)
    ),
    "untag": lambda saver, at, given: saver.threads.auntag(
        at.thread, given.get("tag", ""), **_mark(at)
    ),
    "pin": lambda saver, at, _: saver.threads.apin(at.thread, **_mark(at)),
    "unpin": lambda saver, at, _: saver.threads.aunpin(at.thread, **_mark(at)),
    "release": lambda saver, at, _: saver.runs.arelease(at.thread),
    "fork": lambda saver, at, given: saver.threads.afork(
        at.thread, at.id or None, given.get("name") or None
    ),
    "archive": lambda saver, at, _: saver.threads.aarchive(at.thread),
    "restore": lambda saver, at, _: saver.threads.arestore(at.thread),
    "delete": lambda saver, at, _: saver.adelete_thread(at.thread),
    "erase": lambda saver, at, given: saver.threads.aerase(at.thread, forks="forks" in given),
}
RUNS = ("resume", "replay")
"""Actions that run the graph: from the newest checkpoint, or from the one named."""
_LOGGED = ("tag", "name", "forks")  # fields in the audit log


@route("/actions")
async def shown(request: Asked) -> Response:
    """Show the actions of a thread or checkpoint."""
    return await _render(request, request.place())


@route("/actions", "POST")
async def act(request: Asked) -> Response:
    """Make a change, and show its result."""
    at, action, given = request.place(), request.needed("action"), await request.fields()
    if action not in ACTIONS and action not in RUNS:
        raise NotFoundError(f"There is no action {action!r}.")
    details = {name: given[name] for name in _LOGGED if name in given}
    with audited(request, action, at.thread, at.id or None, **details):
        if action in ("delete", "erase") and given.get("name") != printable(at.thread):
            hint = "Type it as it is shown."
            raise InvalidArgumentError("The name is not the thread's.", hint=hint)
        if action in RUNS:
            result = await run(request, at, action)
        else:
            result = await ACTIONS[action](request.page.writer, at, given)
    if action in ("delete", "archive"):  # (reading an archived thread would restore it)
        return Response(headers={"hx-redirect": request.address("/")})
    if action == "erase":
        place = {"hx-retarget": "#main", "hx-reswap": "innerHTML"}
        return request.render("erased.html", name=at.thread, report=result, headers=place)
    return await _render(request, at, action, result)


async def run(request: Asked, at: PagePlace, action: str) -> str:
    """Start a run of a thread, and return how far it got (see `PageGraph.start`).

    Raises:
        StateError: the graph lacks a node of the thread, or too many are under way.
        ThreadLockedError: another worker runs the thread.
    """
    page, graph = request.page, request.page.graph
    if graph is None or not graph.can_run:
        raise InvalidArgumentError("This page has no graph to run.", hint="Start it with --graph.")
    is_replay = action == "replay"
    if is_replay and (at.ns or not at.id):
        raise InvalidArgumentError("Only a step of the graph itself can run again.")
    place = at if is_replay else PagePlace(at.thread)
    (step,) = await read_steps(page.saver, [await listed(request, place)], 1)
    graph.check(step.next)
    if not is_replay and (await request.thread(at.thread)).status == ThreadStatus.HELD:
        await page.writer.runs.arelease(at.thread)
    return await graph.start(place.config)


async def _render(request: Asked, at: PagePlace, done: str = "", result: Any = None) -> Response:
    own = info = await request.thread(at.thread)
    if at.id:
        own = next((one for one in info.marks if one[:2] == at[1:]), Mark(at.ns, at.id))
    values = {"at": at, "info": info, "own": own, "done": done, "result": result}
    more = {"hx-trigger": "changed"} if done else None
    return request.render("acts.html", headers=more, name=printable(at.thread), **values)
