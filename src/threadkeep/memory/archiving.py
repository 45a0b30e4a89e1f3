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

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from threadkeep._core.engine.operation import External
from threadkeep._run.layers import driver
from threadkeep._run.layers.driver import Workflow
from threadkeep._stores.message_index import ArchiveIndex
from threadkeep.errors import SummaryError
from threadkeep.memory import records, window
from threadkeep.memory.archive import Archive
from threadkeep.memory.background import Background
from threadkeep.memory.policy import (
    ArchiveSuggestion,
    Layers,
    SplitSuggestion,
    Suggestion,
)
from threadkeep.memory.records import Group, Record, SummaryClaim
from threadkeep.memory.summaries import ExtractiveSummarizer, Summarizer, Summary

CHUNK = 50  # messages that are summarised at once
_EXTRACTIVE = ExtractiveSummarizer()

_log = logging.getLogger("threadkeep.memory")


@dataclass(frozen=True, slots=True)
class SeenCheckpoint:
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
        self._owner = uuid4()
        self._is_background = background
        self._background = Background()

    def _end(self) -> Workflow[None]:
        """Wait for summaries that are under way, and close the index."""
        yield from self._background.end()
        for index in self._indexes:
            yield from driver.external(index.close)

    # -- summaries -------------------------------------------------------------------

    def _advance(self, seen: SeenCheckpoint) -> Workflow[tuple[Record | None, list[BaseMessage]]]:
        """Return the record and the messages in full, after what is due has left the window.

        Without a summary nothing leaves. The caller waits for one call of a model at most; further
        calls, which a long conversation needs at first, are made in the background.
        """
        if not self._is_due(seen):
            return seen.record, seen.live
        if isinstance(self.summarizer, ExtractiveSummarizer) and not self._is_background:
            after = yield from self._catch_up(seen, until=bool)  # (never)
        else:
            after = yield from self._step(seen, is_asked=not self._is_background)
            if self._is_due(after) and (self._is_background or after is not seen):
                catch_up = partial(self._catch_up, after, until=self._background.is_ending)
                yield from self._background.submit(seen.thread, catch_up)
        return after.record, after.live

    def _catch_up(
        self, seen: SeenCheckpoint, *, until: Callable[[], bool]
    ) -> Workflow[SeenCheckpoint]:
        """Summarise all that is due, a part at a time.

        Ends early if that fails, if somebody else is doing it, or if `until` returns True.
        """
        before = None
        while before is not seen and self._is_due(seen) and not until():
            before, seen = seen, (yield from self._step(seen))
        return seen

    def _step(self, seen: SeenCheckpoint, *, is_asked: bool = True) -> Workflow[SeenCheckpoint]:
        """Return what is left in full after others have summarised, and then (`is_asked`) we.

        The same object if nothing was summarised.
        """
        newest = yield from self._call("get_tuple", records.place(seen.thread))
        seen = yield from self._made_by_others(seen, newest)
        if is_asked and self._is_due(seen):
            seen = yield from self._summarised(seen, newest)
        return seen

    def _is_due(self, seen: SeenCheckpoint) -> bool:
        return self._leaving(seen.record, seen.live) > 0

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
        self, seen: SeenCheckpoint, newest: CheckpointTuple | None
    ) -> Workflow[SeenCheckpoint]:
        """Return the state behind what is stored already for the messages that are to leave."""
        own = seen.record
        key = None if own is None else own.key
        record = None if newest is None else records.from_tuple(newest)
        if record is None or record.key == key or record.parent is None:
            return seen
        if record.groups != (own.groups if own is not None else ()):  # (another branch has others)
            return seen
        count = record.stop - (own.stop if own is not None else 0)
        before = own.digest if own is not None else ""
        if not 0 < count <= self._leaving(own, seen.live):
            return seen
        if window.digest(before, seen.live[:count]) != record.digest:
            return seen
        made: list[Record] = []
        above: Record | None = record
        while above is not None and above.key != key and not above.edits and above.step:
            made.append(above)
            above = yield from self._record(seen.thread, str(above.parent))
        if above is None or (above.key != key and (own is not None or above.step)):
            return seen
        ids = [one.id for each in reversed(made) for one in each.messages]
        if ids != [one.id for one in seen.live[:count]]:  # (another branch says the same)
            return seen
        self._records.put(seen.thread, record.key, record)
        return replace(seen, record=record, live=seen.live[count:])

    def _summarised(
        self, seen: SeenCheckpoint, newest: CheckpointTuple | None
    ) -> Workflow[SeenCheckpoint]:
        """Summarise and archive the oldest part of what leaves the window, one call's worth."""
        if seen.thread in self._background.busy:
            return seen
        self._background.busy.add(seen.thread)
        try:
            before = seen.record or (yield from self._first(seen))
            found = yield from self._claimed(seen.thread, before, newest)
            if found is None:
                return seen
            claim, newest = found
            after = yield from self._made_by_others(seen, newest)
            if after is not seen:  # (somebody was faster)
                return after
            return (yield from self._claimed_part(seen, claim, before))
        finally:
            self._background.busy.discard(seen.thread)

    def _claimed_part(
        self, seen: SeenCheckpoint, claim: SummaryClaim, before: Record
    ) -> Workflow[SeenCheckpoint]:
        """Summarise and archive a part; if that fails, nothing leaves and the claim is given up."""
        live, count = seen.live, self._leaving(before, seen.live)
        part = live[: window.oldest(live, min(count, CHUNK), count)]
        try:
            new = yield from self._next(seen, before, part, len(live))
            new = yield from self._add(seen.thread, before, new)
            left = live[len(part) :]
            yield from self._suggest(seen.thread, before, new, effective_count(new, len(left)))
        except Exception:  # noqa: BLE001 - a turn goes on without a summary, whatever failed
            _log.warning(
                "No summary was made of thread %r; its next turn tries again.",
                seen.thread,
                exc_info=True,
            )
            with suppress(Exception):  # (else the claim ends by its time)
                yield from self._claim_write(seen.thread, before, *claim.failure())
            return seen
        return replace(seen, record=new, live=left)

    def _first(self, seen: SeenCheckpoint) -> Workflow[Record]:
        """Return the record that the thread's first one continues."""
        found = yield from self._record(seen.thread, seen.key)
        if found is not None:
            return found
        return (yield from self._add(seen.thread, None, records.first(seen.key, seen.found)))

    def _claimed(
        self, thread: str, before: Record, newest: CheckpointTuple | None
    ) -> Workflow[tuple[SummaryClaim, CheckpointTuple | None] | None]:
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
        self, seen: SeenCheckpoint, before: Record, part: list[BaseMessage], left: int
    ) -> Workflow[Record]:
        """Return the record of messages that leave; `left` are in full before that."""
        summary = before.summary
        kept = window.staying(part, self.policy)
        ids = {id(one) for one in kept}
        told = [one for one in part if id(one) not in ids]
        if told:
            summary = yield from self._ask(told, summary)
        stop = before.stop + len(part)
        if summary is not None:
            summary = replace(summary, message_count=stop)
        closed = yield from self._closed(seen.thread, before, part)
        new = before.after(
            seen.key,
            messages=part,
            stop=stop,
            kept=[*before.kept, *map(window.with_id, kept)],
            summary=summary,
            closed=closed,
            group_start=closed[-1].stop if closed else before.group_start,
            digest=window.digest(before.digest, part),
            tokens=before.tokens + self.policy.counter(part),
            model=self.summarizer.model,
            prompt_version=self.summarizer.prompt_version,
        )
        return self._suggested(new, left - len(part))

    def _closed(
        self, thread: str, before: Record, part: list[BaseMessage]
    ) -> Workflow[tuple[Group, ...]]:
        """Return the groups that a part fills. No model is asked for their summaries."""
        start, stop, size = before.group_start, before.stop + len(part), self.policy.group_size
        if stop - start <= size:
            return ()
        found = [(at, one) for at, one, _ in (yield from self._archived(thread, before, start))]
        found += enumerate(part, before.stop)
        closed = []
        for begin, end, messages in window.full_groups(found, start, stop, size):
            summary = _EXTRACTIVE.summarize(messages, None)
            topic = ", ".join(summary.key_topics[:3])
            group = Group(str(uuid4()), begin, end, topic, "archived", summary.content)
            closed.append(group)
        return tuple(closed)

    def _ask(self, messages: Sequence[BaseMessage], previous: Summary | None) -> Workflow[Summary]:
        summarizer: Any = self.summarizer
        call = partial(summarizer.summarize, messages, previous)
        acall = partial(driver.in_thread, call)
        if hasattr(summarizer, "asummarize"):
            acall = partial(summarizer.asummarize, messages, previous)
        summary = yield External(call, acall)  # (a turn that is cancelled does not wait)
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
                    yield from driver.sync_or_async(tag, partial(threads.atag, thread, kind.tag))
                if self._on_suggestion is not None:
                    self._on_suggestion(event)


def effective_count(record: Record | None, left: int) -> int:
    """Return the number of messages in which a group that was collapsed counts as one."""
    if record is None:
        return left
    collapsed = [group.messages - 1 for group in record.groups if group.status == "summarized"]
    return record.stop - len(record.removed) + left - sum(collapsed)
