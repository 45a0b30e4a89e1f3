"""Operations behind `saver.threads`: gc, retain."""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep import validation
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import Operation
from threadkeep.errors import InvalidArgumentError, invalid
from threadkeep.progress import Progress
from threadkeep.registry.info import ThreadInfo, info
from threadkeep.retention import gc as collecting
from threadkeep.retention.gc import GcReport
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
    own = None if given is None else _checked(given)
    names = None if threads is None else validation.ids("threads", threads)
    return collecting.gc(engine, own, names, dry_run=dry_run, progress=progress)


def retain(engine: Engine, thread: str, given: Retention | None) -> Operation[ThreadInfo]:
    """See `Threads.retain`."""
    if given is not None and _checked(given).max_count is not None:
        raise InvalidArgumentError(
            "max_count is an option of a store, not of one thread.", hint="Use threads.gc(...)."
        )
    return info((yield from collecting.retain(engine, validation.thread_id(thread), given)))


def _checked(value: object) -> Retention:
    if not isinstance(value, Retention):
        hint = "Use a threadkeep.Retention, such as Retention(keep_last=10)."
        raise invalid("policy", value, hint)
    return value
