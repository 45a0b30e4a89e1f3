"""The first question and the last message of threads, read after a list of them is drawn.

A preview stays until its thread changes. Archived threads are not read: it would restore them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR

from threadkeep._core.engine.thread_summary import continues, following
from threadkeep._core.langgraph_internals import JOIN, TASKS
from threadkeep._core.lru import Lru
from threadkeep.errors import ThreadkeepError
from threadkeep.threads import ThreadInfo, ThreadStatus
from threadkeep.threads.messages import CHANNEL, are_messages, message
from threadkeep.threads.steps import errors_of
from threadkeep.ui.messages import SIDES
from threadkeep.ui.page import AWAY, PagePlace, StorePage
from threadkeep.ui.pages.live import seen
from threadkeep.ui.values import one_line

_KEPT = 2000  # previews
_SECONDS = 1.0  # in one answer
_LARGEST = 64 << 20  # bytes of a thread that is read
_STATE = 8 << 20  # bytes of a state in a store of LangGraph's
_BEGINNING = 50  # messages among which the first question is
_READ = 2000  # characters of a message


class Preview(NamedTuple):
    """The first question, the last message and so on of a thread's newest checkpoint.

    `status` and `node`, the one that failed, are of a store of LangGraph's, whose entries lack
    them. `status` is None if the state is too large to be read.
    """

    question: str = ""
    role: str = ""
    last: str = ""
    step: int | None = None
    error: str = ""
    status: ThreadStatus | None = None
    node: str | None = None


class Previews:
    """Previews of a page's threads."""

    def __init__(self, page: StorePage) -> None:
        self._page = page
        self._kept = Lru[str, tuple[str, Preview]](_KEPT)

    def of(self, info: ThreadInfo) -> Preview | None:
        """Return the newest preview that was read, or None."""
        kept = self._kept.get(info.id)
        return None if kept is None else kept[1]

    def is_current(self, info: ThreadInfo) -> bool:
        """Return True if the thread has not changed since its preview was read."""
        kept = self._kept.get(info.id)
        return kept is not None and kept[0] == seen(info)

    def shown(self, info: ThreadInfo) -> ThreadInfo:
        """Return an entry with the status that was read, if it has none."""
        kept = self.of(info)
        if kept is None or self._page.is_own or not self.is_current(info):
            return info
        return replace(info, status=kept.status, failed_node=kept.node)

    async def read(self, found: Iterable[ThreadInfo]) -> None:
        """Read previews that are missing or old, in this order, until a second has passed."""
        end = time.monotonic() + _SECONDS
        for info in [one for one in found if not self.is_current(one)]:
            self._kept.put(info.id, (seen(info), await self._read(info)))
            if time.monotonic() >= end:
                return

    async def _read(self, info: ThreadInfo) -> Preview:
        if info.state in AWAY:
            return Preview()
        try:
            return await (self._own(info) if self._page.is_own else self._theirs(info))
        except ThreadkeepError:  # (the thread's page says so)
            return Preview(status=info.status)

    async def _own(self, info: ThreadInfo) -> Preview:
        channels = [CHANNEL, ERROR] if info.bytes <= _LARGEST else [ERROR]
        found = await self._page.saver.aget_tuple(PagePlace(info.id).config, channels=channels)
        return Preview() if found is None else _preview(found)

    async def _theirs(self, info: ThreadInfo) -> Preview:
        """Read a state of LangGraph's, which may be one payload."""
        saver, status = self._page.saver, info.status
        head = await anext(saver.alist(PagePlace(info.id).config, limit=1, values="lazy"), None)
        if head is None:
            return Preview(status=status)
        names = head.checkpoint["channel_values"]
        more = [one for one in names if one == TASKS or one.startswith(JOIN)]
        found = None
        if not names.is_unknown and names.bytes <= _STATE:
            found = await saver.aget_tuple(head.config, channels=[CHANNEL, ERROR, *more])
        if found is None:
            status = status or (ThreadStatus.UNFINISHED if following(names) else None)
            return Preview(step=_step(head), status=status)
        values = {**dict.fromkeys(names), **found.checkpoint["channel_values"]}
        nodes, is_next = following(values), continues(values)
        is_sure = status == ThreadStatus.FAILED and len(nodes) == 1 and not values.get(TASKS)
        return _preview(found)._replace(
            status=status or (ThreadStatus.UNFINISHED if is_next else ThreadStatus.DONE),
            node=nodes[0] if is_sure else None,
        )


def _preview(found: Any) -> Preview:
    said = found.checkpoint["channel_values"].get(CHANNEL)
    question = role = last = ""
    if are_messages(said):
        first = next((one for one in islice(said, _BEGINNING) if _role(one) == "human"), None)
        question = "" if first is None else _text(first)
        if said[-1] is not first:
            role, last = _role(said[-1]), _text(said[-1])
    errors = errors_of(found.pending_writes or ())
    error = one_line(errors[0].partition("\n")[0]) if errors else ""
    return Preview(question, role, last, _step(found), error)


def _step(found: Any) -> int | None:
    step = found.metadata.get("step")
    return step if isinstance(step, int) else None


def _role(value: Any) -> str:
    role = message(value).role
    return SIDES.get(role, role)


def _text(value: Any) -> str:
    """Return a message in a line: its first paragraph, and the names of its calls."""
    read = message(value)
    said = "\n".join([one.text for one in read.blocks if one.kind == "text" and one.text])
    first = (said or read.text)[:_READ].strip().partition("\n\n")[0].replace("**", "")
    return one_line((first + "".join([f" → {one.name}" for one in read.tool_calls])).strip())
