"""Operations behind `saver.threads`: gc, retain."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from threadkeep import validation
from threadkeep.engine import labels, registration
from threadkeep.engine.calls import Operation
from threadkeep.engine.context import Engine
from threadkeep.engine.entries import Entry
from threadkeep.errors import InvalidArgumentError, invalid
from threadkeep.progress import Progress
from threadkeep.registry.info import ThreadInfo, info
from threadkeep.retention import collect, policy
from threadkeep.retention.collect import GcReport
from threadkeep.retention.policy import Retention


def gc(
    engine: Engine,
    given: Retention | None,
    threads: Iterable[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Operation[GcReport]:
    """See `Threads.gc`."""
    store = _checked(given) if given is not None else engine.retention or policy.EVERYTHING
    names = None if threads is None else validation.ids("threads", threads)
    tell = None if progress is None else partial(progress, "threads")
    return collect.collect(engine, store, names, dry_run=dry_run, progress=tell)


def retain(engine: Engine, thread: str, given: Retention | None) -> Operation[ThreadInfo]:
    """See `Threads.retain`."""
    if given is not None and _checked(given).max_count is not None:
        raise InvalidArgumentError(
            "max_count is an option of a store, not of one thread.", hint="Use threads.gc(...)."
        )
    own = () if given is None else (labels.of_record(policy.RECORD, given.as_json()),)

    def retained(entry: Entry) -> Entry:
        beginning = labels.of_kind(policy.RECORD)
        others = [label for label in entry.labels if not label.startswith(beginning)]
        return entry._replace(labels=tuple(sorted((*others, *own))))

    return info((yield from registration.change(engine, validation.thread_id(thread), retained)))


def _checked(value: object) -> Retention:
    if not isinstance(value, Retention):
        hint = "Use a threadkeep.Retention, such as Retention(keep_last=10)."
        raise invalid("policy", value, hint)
    return value
