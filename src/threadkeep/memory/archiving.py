"""Archiving what leaves the window: who does so, summaries, suggestions.

`archive.py` stores the records and finds them again; `view.py` shows them to graphs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage, SystemMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from threadkeep.engine.operation import Aside
from threadkeep.errors import SummaryError
from threadkeep.layers import driver
from threadkeep.layers.driver import Workflow
from threadkeep.memory import records, window
from threadkeep.memory.archive import Archive
from threadkeep.memory.background import Background
from threadkeep.memory.index import ArchiveIndex
from threadkeep.memory.policy import (
    ArchiveSuggestion,
    Layers,
    SplitSuggestion,
    Suggestion,
)
from threadkeep.memory.records import Claim, Group, Record
from threadkeep.memory.summaries import Summarizer, Summary

CHUNK = 50  # messages that are summarised at once


_log = logging.getLogger("threadkeep.memory")


@dataclass(frozen=True, slots=True)
class Seen:
    """A checkpoint as it is stored: the messages in full, and the record before them."""

    found: CheckpointTuple
    thread: str
    live: list[BaseMessage]
    record: Record | None

    @property
    def key(self) -> str:
        """Id of the checkpoint."""
        return self.found.checkpoint["id"]

    @property
    def stop(self) -> int:
        """Position behind the last message of the conversation."""
        return len(self.live) + (self.record.stop if self.record is not None else 0)


class Archiving(Archive):
    """A saver that archives what leaves the windows of its threads."""

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        *,
        channel: str,
        policy: Layers,
        summarizer: Summarizer,
        index: ArchiveIndex | None,
        background: bool,
        on_suggestion: Callable[[Suggestion], None] | None,
    ) -> None:
        super().__init__(saver, channel=channel, index=index)
        self.policy = policy
        self.summarizer = summarizer
        self._on_suggestion = on_suggestion
        self._busy: set[str] = set()  # threads whose summary is being made here
        self._owner = uuid4()
        self._background = Background() if background else None

    def _end(self) -> Workflow[None]:
        """Wait for summaries that are under way, and close the index."""
        if self._background is not None:
            yield from self._background.end()
        for index in self._indexes:
            yield from driver.aside(index.close)

    # -- summaries -------------------------------------------------------------------

    def _advance(self, seen: Seen) -> Workflow[tuple[Record | None, list[BaseMessage]]]:
        """Return the record and the messages in full, after what is due has left the window.

        Without a summary nothing leaves.
        """
        if not self._leaving(seen.record, seen.live):
            return seen.record, seen.live
        newest: CheckpointTuple | None
        newest = yield from self._call("get_tuple", records.place(seen.thread))
        record, live = yield from self._made_by_others(seen, newest)
        if not self._leaving(record, live):
            return record, live
        summarise = partial(self._summarised, seen, record, live, newest)
        if self._background is not None:
            yield from self._background.submit(seen.thread, summarise)
            return record, live
        return (yield from summarise())

    def _leaving(self, record: Record | None, live: Sequence[BaseMessage]) -> int:
        """Return the number of messages that leave the window now."""
        if record is None or not record.groups:
            return window.leaving(live, self.policy)
        spans = [
            range(max(group.start - record.stop, 0), min(group.stop - record.stop, len(live)))
            for group in record.groups
            if group.status == "summarized" and group.stop > record.stop
        ]
        return window.leaving(live, self.policy, [span for span in spans if span])

    def _made_by_others(
        self, seen: Seen, newest: CheckpointTuple | None
    ) -> Workflow[tuple[Record | None, list[BaseMessage]]]:
        """Return the state behind what is stored already for the messages that are to leave."""
        own = seen.record
        key = None if own is None else own.key
        record = None if newest is None else records.from_tuple(newest)
        if record is None or record.key == key or record.parent is None:
            return own, seen.live
        if record.groups != (own.groups if own is not None else ()):  # (another branch has others)
            return own, seen.live
        count = record.stop - (own.stop if own is not None else 0)
        before = own.digest if own is not None else ""
        if not 0 < count <= self._leaving(own, seen.live):
            return own, seen.live
        if window.digest(before, seen.live[:count]) != record.digest:
            return own, seen.live
        made: list[Record] = []
        above: Record | None = record
        while above is not None and above.key != key and not above.edits and above.step:
            made.append(above)
            above = yield from self._record(seen.thread, str(above.parent))
        if above is None or (above.key != key and (own is not None or above.step)):
            return own, seen.live
        ids = [one.id for each in reversed(made) for one in each.messages]
        if ids != [one.id for one in seen.live[:count]]:  # (another branch says the same)
            return own, seen.live
        self._records.put(seen.thread, record.key, record)
        return record, seen.live[count:]

    def _summarised(
        self,
        seen: Seen,
        record: Record | None,
        live: list[BaseMessage],
        newest: CheckpointTuple | None,
    ) -> Workflow[tuple[Record | None, list[BaseMessage]]]:
        """Summarise what leaves the window, and archive it."""
        if seen.thread in self._busy:
            return record, live
        self._busy.add(seen.thread)
        try:
            begin = record or (yield from self._first(seen))
            found = yield from self._claimed(seen.thread, begin, newest)
            if found is None:
                return record, live
            claim, newest = found
            made, left = yield from self._made_by_others(seen, newest)
            if len(left) < len(live):  # (somebody was faster)
                return made, left
            return (yield from self._claimed_part(seen, claim, record, live, begin))
        finally:
            self._busy.discard(seen.thread)

    def _claimed_part(
        self,
        seen: Seen,
        claim: Claim,
        record: Record | None,
        live: list[BaseMessage],
        begin: Record,
    ) -> Workflow[tuple[Record | None, list[BaseMessage]]]:
        """Summarise and archive what leaves; where that fails, what was archived before stays."""
        before, count = begin, self._leaving(begin, live)
        try:
            while count:
                part = _chunk(live, count)
                new = yield from self._next(seen, before, part, len(live))
                new = yield from self._add(seen.thread, before, new)
                left = len(live) - len(part)
                yield from self._suggest(seen.thread, before, new, effective_count(new, left))
                before = new
                live, count = live[len(part) :], count - len(part)
        except Exception:  # noqa: BLE001 - a turn goes on without a summary, whatever failed
            _log.warning(
                "No summary was made of thread %r; its next turn tries again.",
                seen.thread,
                exc_info=True,
            )
            with suppress(Exception):  # (else the claim ends by its time)
                yield from self._claim_write(seen.thread, begin, *claim.failure())
        return (record if before is begin else before), live

    def _first(self, seen: Seen) -> Workflow[Record]:
        """Return the record that the thread's first one continues."""
        found = yield from self._record(seen.thread, seen.key)
        if found is not None:
            return found
        return (yield from self._add(seen.thread, None, records.first(seen.key, seen.found)))

    def _claimed(
        self, thread: str, before: Record, newest: CheckpointTuple | None
    ) -> Workflow[tuple[Claim, CheckpointTuple | None] | None]:
        """Claim to continue a record; None if somebody else is doing that.

        Returns:
            The claim, and the thread's newest record after it.
        """
        is_newest = newest is None or newest.checkpoint["id"] == before.key
        found = newest
        if newest is None or not is_newest:
            found = yield from self._call("get_tuple", records.place(thread, before.key))
        owner = f"{os.getpid()} {self._owner}"
        claim = records.open_claim(found, owner, is_continued=not is_newest)
        if claim is None:
            return None
        yield from self._claim_write(thread, before, *claim.write())
        newest = found = yield from self._call("get_tuple", records.place(thread))
        if newest is None or newest.checkpoint["id"] != before.key:
            found = yield from self._call("get_tuple", records.place(thread, before.key))
        return (claim, newest) if claim.is_held(found) else None

    def _claim_write(self, thread: str, before: Record, writes: Any, task: str) -> Workflow[None]:
        yield from self._call("put_writes", records.place(thread, before.key), writes, task)

    def _next(
        self, seen: Seen, before: Record, part: list[BaseMessage], left: int
    ) -> Workflow[Record]:
        """Return the record of messages that leave; `left` are in full before that."""
        changes: dict[str, Any] = {}
        summary = before.summary
        if before.stop - before.group_start >= self.policy.group_size:
            group, base = yield from self._closed(seen.thread, before)
            if before.base is not None:  # a summary of summaries
                text = SystemMessage(f"{group.topic}: {group.summary}")
                base = yield from self._ask([text], before.base)
            summary = base
            changes = {"closed": group, "base": base, "group_start": before.stop}
        kept = window.staying(part, self.policy)
        ids = {id(one) for one in kept}
        told = [one for one in part if id(one) not in ids]
        if told:
            summary = yield from self._ask(told, summary)
        stop = before.stop + len(part)
        if summary is not None:
            summary = replace(summary, message_count=stop)
        new = before.after(
            seen.key,
            messages=part,
            stop=stop,
            kept=[*before.kept, *map(window.with_id, kept)],
            summary=summary,
            digest=window.digest(before.digest, part),
            tokens=before.tokens + self.policy.counter(part),
            model=self.summarizer.model,
            prompt_version=self.summarizer.prompt_version,
            **changes,
        )
        return self._suggested(new, left - len(part))

    def _closed(self, thread: str, before: Record) -> Workflow[tuple[Group, Summary]]:
        """Return the group that ends with a record, and its summary."""
        start = before.group_start
        found = yield from self._archived(thread, before, start)
        summary = yield from self._ask([message for _, message, _ in found], None)
        topic = ", ".join(summary.key_topics[:3])
        group = Group(before.key, start, before.stop, topic, "archived", summary.content)
        return group, summary

    def _ask(self, messages: Sequence[BaseMessage], previous: Summary | None) -> Workflow[Summary]:
        summarizer: Any = self.summarizer
        call = partial(summarizer.summarize, messages, previous)
        acall = partial(driver.in_thread, call)
        if hasattr(summarizer, "asummarize"):
            acall = partial(summarizer.asummarize, messages, previous)
        summary = yield Aside(call, acall)  # (a turn that is cancelled does not wait)
        if not isinstance(summary, Summary) or not isinstance(summary.content, str):
            raise SummaryError(f"The summarizer returned {type(summary).__name__}, no Summary.")
        return summary

    # -- suggestions -----------------------------------------------------------------

    def _suggested(self, record: Record, left: int) -> Record:
        """The record, which says what was suggested up to it."""
        count = effective_count(record, left)
        limits = {
            ArchiveSuggestion.tag: self.policy.summary_window,
            SplitSuggestion.tag: self.policy.archive_threshold,
        }
        due = [tag for tag, limit in limits.items() if count > limit]
        suggested = tuple(dict.fromkeys((*record.suggested, *due)))
        return replace(record, suggested=suggested)

    def _suggest(self, thread: str, before: Record, record: Record, count: int) -> Workflow[None]:
        """Tell of suggestions that a record makes first: a log line, an event, a tag."""
        for kind in (ArchiveSuggestion, SplitSuggestion):
            if kind.tag in record.suggested and kind.tag not in before.suggested:
                event = kind(thread, count)
                _log.info(
                    "Thread %r has more than %d messages: %s", thread, event.messages, kind.tag
                )
                threads = getattr(self._inner, "threads", None)
                if threads is not None:
                    tag = partial(threads.tag, thread, kind.tag)
                    yield from driver.either(tag, partial(threads.atag, thread, kind.tag))
                if self._on_suggestion is not None:
                    self._on_suggestion(event)


def effective_count(record: Record | None, left: int) -> int:
    """Return the number of messages in which a group that was collapsed counts as one."""
    if record is None:
        return left
    collapsed = [group.messages - 1 for group in record.groups if group.status == "summarized"]
    return record.stop - len(record.removed) + left - sum(collapsed)


def _chunk(live: list[BaseMessage], count: int) -> list[BaseMessage]:
    """The oldest messages that are summarised at once: whole exchanges."""
    stop = min(count, CHUNK)
    cut = window.whole(live, stop)
    while not cut:  # (one exchange is longer)
        stop += 1
        cut = stop if stop >= count else window.whole(live, stop)
    return live[:cut]
