"""What is kept: `gc` goes through the store, `retain` says it of one thread.

`retention.policy` says what can be said, `retention.selection` what it means and
`retention.collect` does it. Invariant: each method is one operation.
"""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep import validation
from threadkeep.engine import (
    registration,
    thread_entry,
)
from threadkeep.engine.operation import Operation
from threadkeep.engine.thread_entry import ThreadEntry
from threadkeep.errors import InvalidArgumentError
from threadkeep.retention import collect, policy
from threadkeep.retention.collect import (
    GcReport,
    Progress,
)
from threadkeep.retention.policy import Retention
from threadkeep.retention.thin import Collected
from threadkeep.threads import queries
from threadkeep.threads.info import ThreadInfo, info
from threadkeep.threads.running import Running

__all__ = ["Collected", "GcReport", "Retaining"]


class Retaining(Running):
    """What is kept of threads."""

    def gc(
        self,
        policy: Retention | None = None,
        *,
        threads: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> GcReport:
        """Remove what does not have to be kept, in every thread of the store.

        Runs may be under way. What was interrupted can be done again. A thread that was not
        written since the last time is not read again.

        Args:
            policy: what is kept where nothing was said of a thread itself (`retain`); None for
                the saver's own (`retention=`), or else everything.
            threads: go through these alone, and do not look at `max_count`.
            dry_run: change nothing, and tell what would go.
            progress: called with how many threads are done, and how many there are.

        Raises:
            InvalidArgumentError: the policy is none, or the threads are no list.
            ThreadNotFoundError: one of the threads is not there; nothing was done.
            BackendError: the store failed; what went before is gone.
        """
        return self._run(self._gc(policy, threads, progress, dry_run=dry_run))

    async def agc(
        self,
        policy: Retention | None = None,
        *,
        threads: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> GcReport:
        """See `gc`."""
        return await self._arun(self._gc(policy, threads, progress, dry_run=dry_run))

    def _gc(
        self,
        given: Retention | None,
        threads: Iterable[str] | None,
        progress: Progress | None,
        *,
        dry_run: bool,
    ) -> Operation[GcReport]:
        ours = self._engine.retention or policy.EVERYTHING
        store = ours if given is None else _checked("policy", given)
        names = None if threads is None else validation.ids("threads", threads)
        return collect.collect(self._engine, store, names, dry_run=dry_run, progress=progress)

    def retain(self, thread: str, policy: Retention | None) -> ThreadInfo:
        """Say what is kept of one thread, in place of what is said of the store.

        Args:
            thread: its name.
            policy: what is kept, wholly; None for what is said of the store.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: it is no Retention, or one with `max_count`, which is of a store.
        """
        return self._run(self._retain(thread, policy))

    async def aretain(self, thread: str, policy: Retention | None) -> ThreadInfo:
        """See `retain`."""
        return await self._arun(self._retain(thread, policy))

    def _retain(self, thread: str, given: Retention | None) -> Operation[ThreadInfo]:
        said = (
            ()
            if given is None
            else (thread_entry.record_label(policy.RECORD, _own(given).as_json()),)
        )

        def how(entry: ThreadEntry) -> ThreadEntry:
            beginning = thread_entry.record_prefix(policy.RECORD)
            others = [label for label in entry.labels if not label.startswith(beginning)]
            return entry._replace(labels=tuple(sorted((*others, *said))))

        entry = yield from registration.change(self._engine, queries.thread(thread), how)
        return info(entry)


def _own(given: Retention) -> Retention:
    """What is said of a thread."""
    if _checked("policy", given).max_count is not None:
        raise InvalidArgumentError(
            "max_count cannot be said of one thread.", hint="Say it of the store: threads.gc(...)."
        )
    return given


def _checked(name: str, given: object) -> Retention:
    if not isinstance(given, Retention):
        validation.refuse(
            name, given, "Give a threadkeep.Retention, such as Retention(keep_last=10)."
        )
    return given
