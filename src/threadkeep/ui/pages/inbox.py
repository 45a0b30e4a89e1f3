"""Threads that wait for an answer, their questions, and answers."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from threadkeep.errors import StateError, ThreadkeepError
from threadkeep.threads import PendingInterrupt, ThreadInfo, ThreadPage, ThreadStatus
from threadkeep.ui.answers import actions_of, answer_of, value_of
from threadkeep.ui.audit import audited
from threadkeep.ui.messages import Room
from threadkeep.ui.page import MOST, WAITING, Asked, PagePlace, StorePage, route
from threadkeep.ui.pages.actions import run

_PAGE, _QUESTIONS = 20, 20  # threads, and questions of each


@route("/inbox")
async def inbox(request: Asked) -> Response:
    """Show the threads that wait, the longest first, or one thread."""
    page, asked = request.page, request.query_params
    search, cursor, among = page.saver.threads.asearch, asked.get("cursor"), 0
    if (name := asked.get("id")) is not None:
        await request.check_is_here(name)
        found = ThreadPage((await request.thread(name),), None)
    elif page.is_own:
        found = await search(order="updated_at", limit=_PAGE, cursor=cursor, **WAITING)
    else:
        newest, first = await search(limit=MOST), request.number("cursor")
        waiting = [one for one in newest if one.status == ThreadStatus.WAITING][::-1]
        more = str(first + _PAGE) if waiting[first + _PAGE :] else None
        found = ThreadPage(tuple(waiting[first : first + _PAGE]), more)
        among = len(newest) if newest.cursor else 0
    cards, room = [await card_of(page, info) for info in found], Room()
    values: dict[str, Any] = {"cards": cards, "among": among, "room": room}
    return request.render("inbox.html", cursor=found.cursor, done=False, **values)


async def card_of(page: StorePage, info: ThreadInfo) -> dict[str, Any]:
    """Return the values of `answer.html`. A thread that cannot be read does not hide the others."""
    error, found = None, list[PendingInterrupt]()
    try:
        if info.status == ThreadStatus.WAITING:
            found = await page.saver.threads.ainterrupts(info.id)
    except ThreadkeepError as unread:
        error = unread
    first = sorted(found, key=lambda one: one.answered)[:_QUESTIONS]
    asked = [(one, actions_of(one), value_of(one)) for one in first]
    return {"info": info, "error": error, "asked": asked, "more": len(found) - len(first)}


@route("/inbox/answer", "POST")
async def answer(request: Asked) -> Response:
    """Store an answer, or hand it to the application, and show the thread again."""
    page, given = request.page, await request.fields()
    thread, id, checkpoint = [request.needed(one) for one in ("thread", "id", "checkpoint")]
    with audited(request, "answer", thread, checkpoint, interrupt=id):
        await request.check_is_here(thread)
        found = {one.id: one for one in await page.saver.threads.ainterrupts(thread)}
        if id not in found or found[id].checkpoint_id != checkpoint:
            raise StateError("The thread has moved on.", hint="Reload the page.")
        answers = {id: answer_of(found[id], given)}
        if page.on_answer is None:
            again = "replace" in given
            by = request.scope["threadkeep.user"].name
            await page.writer.threads.aanswer(
                *(thread, answers, checkpoint), replace=again, by=by, resume=page.can_run
            )
        else:
            await page.on_answer(thread, answers)
    continued, refusal = False, None
    if page.can_run and page.on_answer is None:
        try:
            with audited(request, "resume", thread):
                continued = bool(await run(request, PagePlace(thread), "resume"))
        except ThreadkeepError as error:  # (the answer is stored all the same)
            refusal = error
    request.scope.pop("threadkeep.threads", None)  # (its status may have changed)
    card = await card_of(page, await request.thread(thread))
    more = {"hx-trigger": "changed"} if continued else None
    done = "continued" if continued else "stored"
    values: dict[str, Any] = {"card": card, "done": done, "refusal": refusal, "room": Room()}
    return request.render("answer.html", headers=more, **values)
