"""The last statistics of a store, stored in it, for callers that accept older ones."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import DropThread
from threadkeep._core.engine.operation import Operation, commit
from threadkeep._core.engine.thread_sizes import ChannelStats, ThreadStats
from threadkeep._core.engine.usage import Hour, ThreadUsage
from threadkeep._core.validation import MICROSECOND
from threadkeep.errors import ThreadkeepError
from threadkeep.threads import documents, statistics
from threadkeep.threads.registry import EPOCH
from threadkeep.threads.statistics_report import DERIVED, Stats

THREAD = documents.thread_of("statistics")


def stats(engine: Engine, max_age: timedelta, *, counts_usage: bool) -> Operation[Stats]:
    """Return the stored statistics if they are not older than `max_age`, else count, and store."""
    found, generation = yield from _stored(engine)
    now = engine.now()
    # (a clock that was set back must not keep them for ever)
    if found is not None and timedelta() <= EPOCH + now * MICROSECOND - found.at <= max_age:
        return found
    counted = yield from statistics.count(now, counts_usage=counts_usage)
    # (suppressed: a full disk, a store that is only read, or others stored or removed them
    # meanwhile, as ours may name a thread that was erased since)
    with suppress(ThreadkeepError):
        yield from commit(_change(engine, counted, generation))
    return counted


def _change(engine: Engine, counted: Stats, generation: int | None) -> DropThread:
    return documents.replaced(engine, THREAD, counted.as_json(), generation)


def _stored(engine: Engine) -> Operation[tuple[Stats | None, int | None]]:
    """Return the stored statistics and their thread's generation, each None if unreadable."""
    found, generation = yield from documents.read(engine, THREAD)
    with suppress(*documents.UNREADABLE):
        return of_json(found), generation
    return None, generation


def forget() -> Operation[None]:
    """Remove the stored statistics, which name threads, and refuse those being counted."""
    yield from commit(documents.removed(THREAD))


def of_json(document: dict[str, Any]) -> Stats:
    """Return the statistics that `Stats.as_json` wrote.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: another release wrote them.
    """
    fields = {name: value for name, value in document.items() if name not in DERIVED}
    for name in ("largest", "busiest"):
        fields[name] = tuple([_usage(one) for one in fields[name]])
    return Stats(
        **{
            **fields,
            "at": datetime.fromisoformat(fields["at"]),
            "channels": tuple([ChannelStats(**one) for one in fields["channels"]]),
            "hours": tuple([Hour(one["checkpoints"], one["bytes"]) for one in fields["hours"]]),
            "by_thread": tuple([ThreadStats(**one) for one in fields["by_thread"]]),
            "missing_indexes": tuple(fields["missing_indexes"]),
        }
    )


def _usage(one: dict[str, Any]) -> ThreadUsage:
    updated_at = (datetime.fromisoformat(one["updated_at"]) - EPOCH) // MICROSECOND
    return ThreadUsage(**{**one, "updated_at": updated_at})
