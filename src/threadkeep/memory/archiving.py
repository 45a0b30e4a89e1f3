"""Archiving of messages that leave the window: claims, summaries, suggestions.

`archive.py` stores the records and finds them again, and `view.py` shows them to graphs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from threadkeep._core.engine.operation import External, Operation
from threadkeep._run import driver
from threadkeep._stores.process_forks import ResetInChild, running_loop
from threadkeep.errors import ClosedError, SummaryError
from threadkeep.memory import records, window
from threadkeep.memory.archive import Archive
from threadkeep.memory.policy import ArchiveSuggestion, Layers, SplitSuggestion, Suggestion
from threadkeep.memory.records import Group, Record, SummaryClaim
from threadkeep.memory.summaries import Summarizer, Summary
from threadkeep.memory.summarizers import ExtractiveSummarizer

CHUNK = 50  # messages in one call of the summarizer
_EXTRACTIVE = ExtractiveSummarizer()
_WORKERS = 4
_MAX_QUEUED = 64  # threads with summaries under way in the background

_log = logging.getLogger("threadkeep.memory")


@dataclass(frozen=True, slots=True)
class SeenCheckpoint:
    """A checkpoint as it is stored: the messages in full, and the record before them."""

    found: CheckpointTuple
    thread: str
    live: list[BaseMessage]
    record: Record | None
    run: object = None  # of a call on a conversation that is not stored

    @property
    def key(self) -> str:
        """Id of the checkpoint."""
        return self.found.checkpoint["id"]

    @property
    def behind(self) -> int:
        """Position of the first message in full."""
        return self.record.stop if self.record is not None else 0

    @property
    def stop(self) -> int:
        """Position after the last message of the conversation."""
        return self.behind + len(self.live)

    @property
    def removed(self) -> int:
        """Number of archived messages that were removed."""
        return len(self.record.removed) if self.record is not None else 0


class Archiving(Archive):
    """A saver that archives the messages that leave the windows of its threads."""

    policy: Layers
    summarizer: Summarizer
    _owner: UUID
    _is_background: bool
    _background: Background
    _on_suggestion: Callable[[Suggestion], None] | None

    def _end(self) -> Operation[None]:
        """Wait for summaries that are under way, and close the index."""
        yield from self._background.end()
        for index in self._indexes:
            yield from driver.external(index.close)

    # -- summaries -------------------------------------------------------------------

    def _advance(self, seen: SeenCheckpoint) -> Operation[SeenCheckpoint]:
        """Archive the messages that are due, and return the state after that.

        Messages leave only with a summary. The caller waits for one call of a model at most. The
        further calls that a long conversation needs at first are made in the background.
        """
        if not self._is_due(seen):
            return seen
        if isinstance(self.summarizer, ExtractiveSummarizer) and not self._is_background:
            return (yield from self._catch_up(seen, until=bool))  # (never)
        after = yield from self._step(seen, is_asked=not self._is_background)
        if self._is_due(after) and (self._is_background or after is not seen):
            catch_up = partial(self._catch_up, after, until=self._background.is_ending)
            yield from self._background.submit(seen.thread, catch_up)
        return after

    def _catch_up(
        self, seen: SeenCheckpoint, *, until: Callable[[], bool]
    ) -> Operation[SeenCheckpoint]:
        """Summarize all messages that are due, a part at a time.

        Ends early if a summary fails, if another process is at it, or if `until` returns True.
        """
        before = None
        while before is not seen and self._is_due(seen) and not until():
            before, seen = seen, (yield from self._step(seen))
        return seen

    def _step(self, seen: SeenCheckpoint, *, is_asked: bool = True) -> Operation[SeenCheckpoint]:
        """Use a summary of another process, else (`is_asked`) make one.

        Returns `seen` itself if no messages left the window.
        """
        newest = yield from self._call("get_tuple", records.place(seen.thread))
        seen = yield from self._made_by_others(seen, newest)
        if is_asked and self._is_due(seen):
            seen = yield from self._summarized(seen, newest)
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
    ) -> Operation[SeenCheckpoint]:
        """Return the state after the thread's newest record, if it archives only due messages."""
        own = seen.record
        key = None if own is None else own.key
        record = None if newest is None else records.from_tuple(newest)
        if record is None or record.key == key or record.parent is None:
            return seen
        if record.groups != (own.groups if own is not None else ()):  # (of another branch)
            return seen
        count = record.stop - seen.behind
        before = own.digest if own is not None else ""
        if count <= 0 or window.digest(before, seen.live[:count]) != record.digest:
            return seen
        made: list[Record] = []
        above: Record | None = record
        while above is not None and above.key != key and not above.edits and above.step:
            made.append(above)
            above = yield from self._record(seen.thread, str(above.parent))
        if above is None or (above.key != key and (own is not None or above.step)):
            return seen
        ids = [one.id for each in reversed(made) for one in each.messages]
        if ids != [one.id for one in seen.live[:count]]:  # (equal messages of another branch)
            return seen
        if not self._were_due(seen, made[::-1]):
            return seen
        self._records.put(seen.thread, record.key, record)
        return replace(seen, record=record, live=seen.live[count:])

    def _were_due(self, seen: SeenCheckpoint, made: Sequence[Record]) -> bool:
        """Return True if records archive only due messages. More may be due after that."""
        before, at, due = seen.record, 0, 0
        for record in made:
            stop = record.stop - seen.behind
            if stop > due:
                due = at + self._leaving(before, seen.live[at:])
            if stop > due:
                return False
            before, at = record, stop
        return True

    def _summarized(
        self, seen: SeenCheckpoint, newest: CheckpointTuple | None
    ) -> Operation[SeenCheckpoint]:
        """Summarize and archive the oldest messages that are due, with one call."""
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
            if after is not seen:
                return after
            return (yield from self._claimed_part(seen, claim, before))
        finally:
            self._background.busy.discard(seen.thread)

    def _claimed_part(
        self, seen: SeenCheckpoint, claim: SummaryClaim, before: Record
    ) -> Operation[SeenCheckpoint]:
        """Summarize and archive a part. If that fails, give the claim up: no messages leave."""
        live, count = seen.live, self._leaving(before, seen.live)
        part = live[: window.oldest(live, min(count, CHUNK), count)]
        try:
            new = yield from self._next(seen, before, part, len(live))
            new = yield from self._add(seen.thread, before, new)
            left = live[len(part) :]
            yield from self._suggest(seen.thread, before, new, effective_count(new, len(left)))
        except Exception:  # noqa: BLE001 - a turn continues without a summary
            _log.warning(
                "Thread %r was not summarized; its next turn tries again.",
                seen.thread,
                exc_info=True,
            )
            with suppress(Exception):  # (else the claim expires)
                yield from self._claim_write(seen.thread, before, *claim.failure())
            return seen
        return replace(seen, record=new, live=left)

    def _first(self, seen: SeenCheckpoint) -> Operation[Record]:
        """Return the empty record that a thread begins with, the same in all processes."""
        found = yield from self._call("get_tuple", records.place(seen.thread, seen.key))
        if found is not None:
            return records.from_tuple(found)
        first = Record(key=seen.key, root=seen.key, created_at=seen.found.checkpoint["ts"])
        return (yield from self._add(seen.thread, None, first, seen.run))

    def _claimed(
        self, thread: str, before: Record, newest: CheckpointTuple | None
    ) -> Operation[tuple[SummaryClaim, CheckpointTuple | None] | None]:
        """Claim to continue a record, or return None if another process has claimed that.

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

    def _claim_write(self, thread: str, before: Record, writes: Any, task: str) -> Operation[None]:
        yield from self._call("put_writes", records.place(thread, before.key), writes, task)

    def _next(
        self, seen: SeenCheckpoint, before: Record, part: list[BaseMessage], left: int
    ) -> Operation[Record]:
        """Return the record of a part that leaves. `left` messages are in full before that."""
        summary = before.summary
        kept = window.staying(part, self.policy)
        ids = {id(one) for one in kept}
        rest = [one for one in part if id(one) not in ids]
        if rest:
            summary = yield from self._ask(rest, summary)
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
        count = effective_count(new, left - len(part))
        limits = {
            ArchiveSuggestion.tag: self.policy.summary_window,
            SplitSuggestion.tag: self.policy.archive_threshold,
        }
        due = [tag for tag, limit in limits.items() if count > limit]
        return replace(new, suggested=tuple(dict.fromkeys((*new.suggested, *due))))

    def _closed(
        self, thread: str, before: Record, part: list[BaseMessage]
    ) -> Operation[tuple[Group, ...]]:
        """Return the groups that a part fills, with summaries made without a model."""
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

    def _ask(self, messages: Sequence[BaseMessage], previous: Summary | None) -> Operation[Summary]:
        call = partial(self.summarizer.summarize, messages, previous)
        variant = getattr(self.summarizer, "asummarize", None)
        acall = None if variant is None else partial(variant, messages, previous)
        summary = yield External(call, acall)  # (a cancelled turn does not wait)
        if not isinstance(summary, Summary) or not isinstance(summary.content, str):
            raise SummaryError(
                f"The summarizer returned {type(summary).__name__} instead of Summary."
            )
        return summary

    def _suggest(self, thread: str, before: Record, record: Record, count: int) -> Operation[None]:
        """Report suggestions that a record makes first: log them, tag the thread, call back."""
        for kind in (ArchiveSuggestion, SplitSuggestion):
            if kind.tag not in record.suggested or kind.tag in before.suggested:
                continue
            _log.info("Thread %r has more than %d messages: %s", thread, count, kind.tag)
            yield from self._call_threads("tag", thread, kind.tag)
            if self._on_suggestion is not None:
                self._on_suggestion(kind(thread, count))


def effective_count(record: Record | None, left: int) -> int:
    """Return the number of messages. A collapsed group counts as one."""
    if record is None:
        return left
    collapsed = [group.messages - 1 for group in record.groups if group.status == "summarized"]
    return record.stop - len(record.removed) + left - sum(collapsed)


class Background(ResetInChild):
    """Workflows that run concurrently with their callers, at most one for each thread."""

    def _reset(self) -> None:
        self._pool = ThreadPoolExecutor(_WORKERS, "threadkeep-memory")
        self._running: dict[str, Future[Any] | asyncio.Task[Any]] = {}
        self._lock = threading.Lock()
        self._is_ended = False
        self.busy: set[str] = set()  # threads that this process is summarizing

    def is_ending(self) -> bool:
        """Return True after `end`, and at the exit of the program: begin no further call then."""
        if not self._is_ended:
            try:
                self._pool.submit(int)  # (refused at exit, which waits for the pool)
            except RuntimeError:
                self._is_ended = True
        return self._is_ended

    def submit(self, thread: str, make: Callable[[], Operation[Any]]) -> Operation[None]:
        """Begin a workflow, unless this thread has one already or too many are under way."""

        async def abegin() -> None:
            self._begin(thread, lambda: asyncio.ensure_future(driver.arun(make())))

        begin = partial(self._begin, thread, lambda: self._pool.submit(driver.run, make()))
        yield External(begin, abegin)

    def _begin(self, thread: str, start: Callable[[], Any]) -> None:
        with self._lock:
            if self.is_ending() or thread in self._running or len(self._running) >= _MAX_QUEUED:
                return
            running = self._running[thread] = start()
        running.add_done_callback(partial(self._done, thread))

    def _done(self, thread: str, running: Future[Any] | asyncio.Task[Any]) -> None:
        with self._lock:
            self._running.pop(thread, None)
        error = None if running.cancelled() else running.exception()
        if error is not None and not (self._is_ended and isinstance(error, ClosedError)):
            _log.error("Summary of thread %r failed.", thread, exc_info=error)

    def end(self) -> Operation[None]:
        """Wait for the calls under way, and begin no further ones.

        A blocking caller cannot wait for tasks: it cancels them.
        """
        with self._lock:
            self._is_ended = True
            running = list(self._running.values())
        futures = [one for one in running if isinstance(one, Future)]
        tasks = [one for one in running if isinstance(one, asyncio.Task)]

        def end() -> None:
            here = running_loop()
            for task in tasks:
                if task.get_loop() is here:
                    task.cancel()
                    continue
                with suppress(RuntimeError):  # its loop is closed
                    task.get_loop().call_soon_threadsafe(task.cancel)
            wait(futures)
            self._pool.shutdown(wait=False)

        async def ended() -> None:
            await asyncio.gather(*tasks, *map(asyncio.wrap_future, futures), return_exceptions=True)
            self._pool.shutdown(wait=False)

        yield External(end, ended)
