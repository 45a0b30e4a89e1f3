"""Advice: proposals from the statistics of a store."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core.engine.operation import Operation
from threadkeep._core.engine.thread_sizes import ChannelStats
from threadkeep._core.langgraph_internals import is_internal
from threadkeep._core.policies import Retention
from threadkeep._core.texts import plural, size
from threadkeep._run import driver
from threadkeep._run.delegate import behind
from threadkeep.errors import NotFoundError
from threadkeep.savers.maintenance import Maintenance
from threadkeep.threads.statistics import IDLE_DAYS, of_saver
from threadkeep.threads.statistics_report import Stats

KEEP_LAST = 10
_LEAST_BYTES = 1 << 20  # of a proposal
_LEAST_SHARE = 0.1  # of all bytes
_LONG_LIST = 100  # items. `Layers` suggests an archive from as many messages
_LARGE_VALUE = 256  # bytes of a change


@dataclass(frozen=True, slots=True)
class Advice:
    """One proposal.

    Attributes:
        topic: "channel", "retention", "tiering", "items", "cache", "index" or "adopt".
        text: the finding and the proposal.
        frees: estimated bytes that it frees, or None if it frees none.
        command: the command to run, or "" if it needs code.
        code: the line of Python, or "" if it needs a command.
    """

    topic: str
    text: str
    frees: int | None = None
    command: str = ""
    code: str = ""


def propose(
    stats: Stats, freed: Mapping[str, int], *, url: str = "URL", is_own: bool = True
) -> list[Advice]:
    """Return proposals from statistics, by the bytes that they free.

    Args:
        stats: the statistics.
        freed: bytes that retention would free: under "" if each thread keeps ten checkpoints,
            under a channel's name if it keeps only its latest value.
        url: the store in commands, quoted for the shell.
        is_own: False for savers that are not of threadkeep.
    """
    found = [*_of_database(stats, url), *_of_items(stats)]
    if is_own:
        found += _of_old_checkpoints(stats, freed.get("", 0), url)
    for channel in stats.channels:
        if _counts(stats, channel.bytes) and not is_internal(channel.name):
            found += _of_channel(channel, freed.get(channel.name), url, is_own=is_own)
    return sorted(found, key=lambda one: -(one.frees or 0))


def _counts(stats: Stats, count: int) -> bool:
    return count >= max(_LEAST_BYTES, stats.bytes * _LEAST_SHARE)


def _of_channel(
    channel: ChannelStats, frees: int | None, url: str, *, is_own: bool
) -> Iterator[Advice]:
    takes = f"Channel {channel.name!r} takes {size(channel.bytes)}"
    each = channel.bytes / max(channel.changes, 1)
    name = channel.name if channel.name.isidentifier() else "value"
    if channel.longest >= _LONG_LIST and not is_own:
        yield Advice(
            "adopt",
            f"{takes}: a list of up to {channel.longest:,} items, stored whole at each change."
            " Store changes alone: move the threads to threadkeep, or use a DeltaChannel.",
            command="threadkeep adopt OLD sqlite:///threads.db",
            code=f"{name}: Annotated[list, DeltaChannel(lambda old, new: old + sum(new, []))]",
        )
    elif channel.longest >= _LONG_LIST and channel.name == "messages":
        yield Advice(
            "channel",
            f"{takes}: a growing list, up to {channel.longest:,} messages. Layered memory gives the"
            " graph only the newest messages, and stores older ones once.",
            code="saver = LayeredCheckpointSaver(saver, Layers(full_window=20))",
        )
    elif channel.longest >= _LONG_LIST:
        yield Advice(
            "channel",
            f"{takes}: a growing list, up to {channel.longest:,} items. Let its reducer keep the"
            " newest items.",
            code=f"{name}: Annotated[list, lambda old, new: (old + new)[-{_LONG_LIST}:]]",
        )
    elif each >= _LARGE_VALUE and 2 * channel.bytes >= channel.full_copy_bytes:
        yield Advice(
            "channel",
            f"{takes}: a value that is stored whole at nearly each of its {channel.changes:,}"
            f" changes, {size(each)} each. Store only the latest value (older checkpoints lose it),"
            " or keep it outside the state.",
            frees,
            command=f"threadkeep gc {url} --latest {shlex.quote(channel.name)}" if is_own else "",
            code="" if is_own else f"{name}: Annotated[str, UntrackedValue]",
        )


def _of_old_checkpoints(stats: Stats, frees: int, url: str) -> Iterator[Advice]:
    if _counts(stats, frees):
        yield Advice(
            "retention",
            f"Keep the newest {KEEP_LAST} checkpoints of each thread, and tagged ones.",
            frees,
            command=f"threadkeep gc {url} --keep-last {KEEP_LAST}",
        )
    if _counts(stats, stats.idle_bytes):
        yield Advice(
            "tiering",
            f"{plural(stats.idle_threads, 'thread')} not written for {IDLE_DAYS} days."
            " Move them into a cold store; reading one restores it.",
            stats.idle_bytes,
            command=f"threadkeep tier {url} --warm {IDLE_DAYS}d --cold file:///cold",
        )


def _of_items(stats: Stats) -> Iterator[Advice]:
    if stats.waiting_items:
        yield Advice(
            "items",
            f"{plural(stats.waiting_items, 'item')} without vectors, as the embedding model failed:"
            " semantic searches do not find them. Embed them now.",
            code="store.embed_pending()",
        )
    expired = stats.item_bytes * stats.expired_items // max(stats.items, 1)
    if expired >= _LEAST_BYTES:
        yield Advice(
            "items",
            f"{plural(stats.expired_items, 'item')} expired and still stored. Remove expired items"
            " every five minutes.",
            expired,
            code='store = Store(saver.backend, ttl={"sweep_interval_minutes": 5})',
        )
    others = stats.bytes + stats.item_bytes + stats.vector_bytes
    if stats.cache_bytes >= max(_LEAST_BYTES, others):
        yield Advice(
            "cache",
            f"{plural(stats.cache_entries, 'cached result')} of nodes take"
            f" {size(stats.cache_bytes)}, more than all threads and items. Lower the limit.",
            stats.cache_bytes // 2,
            code=f"cache = NodeCache(saver.backend, max_bytes={stats.cache_bytes // 2})",
        )


def _of_database(stats: Stats, url: str) -> Iterator[Advice]:
    for statement in stats.missing_indexes:
        program = f"sqlite3 {url}" if " ON tk_" in statement else f"psql {url} -c"
        name = statement.split()[2]
        text = f"The index {name} is missing, so its queries scan the whole table."
        yield Advice("index", text, command=f"{program} {shlex.quote(statement)}")


def _advise(
    saver: BaseCheckpointSaver[Any], *, url: str = "URL", stats: Stats | None = None
) -> Operation[list[Advice]]:
    """Return proposals for the store of any saver.

    The bytes that retention frees come from a dry run on the sampled threads of the statistics.

    Args:
        saver: the saver.
        url: the store in commands, quoted for the shell.
        stats: statistics of the saver that were counted before, or None to count them.
    """
    if stats is None:
        stats = yield from of_saver(saver)
    inner = behind(saver)
    freed: dict[str, int] = {}
    if isinstance(inner, Maintenance) and stats.bytes >= _LEAST_BYTES:
        policies = {"": Retention(keep_last=KEEP_LAST)}
        for channel in stats.channels:
            if _counts(stats, channel.bytes) and not (channel.longest or is_internal(channel.name)):
                policies[channel.name] = Retention(channels={channel.name: "latest"})
        for name, policy in policies.items():
            freed[name] = yield from _dry_run(inner, policy, stats)
    return propose(stats, freed, url=url, is_own=isinstance(inner, Maintenance))


advise, aadvise = driver.sync_and_async(_advise)


def _dry_run(saver: Any, policy: Retention, stats: Stats) -> Operation[int]:
    """Return the bytes that a policy would free, extrapolated from the sampled threads."""
    weights = {one.thread: one.weight for one in stats.by_thread}
    run = {"thread_ids": list(weights), "dry_run": True}
    try:
        report = yield from driver.sync_or_async(
            partial(saver.threads.gc, policy, **run), partial(saver.threads.agc, policy, **run)
        )
    except NotFoundError:  # (a thread was deleted meanwhile)
        return 0
    freed: float = sum([one.bytes * weights[one.thread] for one in report.threads])
    return round(freed)
