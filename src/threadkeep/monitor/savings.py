"""The bytes that threadkeep would save over LangGraph's own savers, measured on a sample."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple

from threadkeep._core.codec.codecs import Raw
from threadkeep.errors import StatementTimeoutError, ThreadkeepError
from threadkeep.savers.savers import MemorySaver
from threadkeep.threads.transfer.reading import LangGraphReader, LangGraphThread

_MOST_BYTES = 200_000_000  # of states that are read
_MOST_SECONDS = 10.0


class Sample(NamedTuple):
    """The newest checkpoints of a thread: LangGraph's bytes, and the same checkpoints' here."""

    thread: str
    checkpoints: int
    of: int
    theirs: int
    ours: int


class Savings(NamedTuple):
    """Samples of the largest threads, else of the newest.

    Attributes:
        samples: one for each thread.
        left_out: number of threads that could not be copied without their classes.
        is_largest: False if the largest threads could not be found in time.
    """

    samples: list[Sample]
    left_out: int
    is_largest: bool

    @property
    def theirs(self) -> int:
        """LangGraph's bytes of all samples."""
        return sum([one.theirs for one in self.samples])

    @property
    def ours(self) -> int:
        """The bytes of all samples here."""
        return sum([one.ours for one in self.samples])


def measure(reader: LangGraphReader, most: int = 10) -> Savings:
    """Copy a sample of at most so many threads into memory. Takes about 10 seconds at most."""
    is_largest = True
    try:
        threads = [*reader.threads.search(order="-bytes", limit=most)]
    except StatementTimeoutError:  # (many threads)
        is_largest, threads = False, [*reader.threads.search(limit=most)]
    start, left, samples, left_out = time.monotonic(), _MOST_BYTES, list[Sample](), 0
    for number, thread in enumerate(threads):
        now = time.monotonic() - start
        share = (_MOST_SECONDS - now) / 2 if number < len(threads) - 1 else _MOST_SECONDS - now
        newest = _newest(reader, thread.id, left // 2)
        if share <= 0:
            break
        if not newest:  # (one state has more bytes than are left)
            continue
        try:
            samples.append(_sample(reader, thread, newest, time.monotonic() + share))
        except ThreadkeepError:
            left_out += 1
        left -= sum([size for _, size in newest])
    return Savings(samples, left_out, is_largest)


def _newest(reader: LangGraphReader, thread: str, most: int) -> list[tuple[Any, int]]:
    """Return the configs of a thread's newest checkpoints, newest first, with their bytes."""
    left = most

    def fits(one: tuple[Any, int]) -> bool:
        nonlocal left
        left -= one[1]
        return left >= 0

    listed = reader.list({"configurable": {"thread_id": thread}}, values="lazy")
    sizes: Iterator[tuple[Any, int]] = (
        (one.config, getattr(one.checkpoint["channel_values"], "bytes", 0)) for one in listed
    )
    return [*takewhile(fits, sizes)]


def _sample(
    reader: LangGraphReader, thread: LangGraphThread, newest: list[tuple[Any, int]], end: float
) -> Sample:
    """Copy checkpoints, oldest first, until a moment."""
    versions: dict[str, Any] = {}
    count, first, last = 0, "", ""
    with MemorySaver() as saver:
        for config, _ in reversed(newest):
            found = reader.get_tuple(config)
            if found is not None:
                _copy(saver, found, versions)
                last, count = config["configurable"]["checkpoint_id"], count + 1
                first = first or last
            if time.monotonic() > end:
                break
        info = saver.threads.get(thread.id)
    theirs = reader.bytes(thread.id, first, last)
    return Sample(thread.id, count, thread.checkpoints, theirs, 0 if info is None else info.bytes)


def _copy(saver: MemorySaver, found: CheckpointTuple, known: dict[str, Any]) -> None:
    checkpoint: Any = {**found.checkpoint}
    checkpoint["channel_values"] = _plain(checkpoint["channel_values"])
    own, parent = found.config["configurable"], found.parent_config
    place = {"thread_id": own["thread_id"], "checkpoint_ns": own["checkpoint_ns"]}
    if parent is not None:
        place["checkpoint_id"] = parent["configurable"]["checkpoint_id"]
    before = known.get(place.get("checkpoint_id", ""), {})
    versions = known[checkpoint["id"]] = checkpoint["channel_versions"]
    new = {name: versions[name] for name in versions if versions[name] != before.get(name)}
    stored = saver.put({"configurable": place}, checkpoint, found.metadata, new)
    for task, writes in groupby(found.pending_writes or (), itemgetter(0)):
        saver.put_writes(stored, [(name, _plain(value)) for _, name, value in writes], task)


def _plain(value: Any) -> Any:
    """Return a value with dicts in place of objects of unknown classes."""
    if type(value) in (list, tuple):
        parts = [_plain(one) for one in value]
        is_same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if is_same else type(value)(parts)
    if isinstance(value, dict | Raw):
        made = {name: _plain(one) for name, one in value.items()}
        is_same = type(value) is dict and all(made[name] is value[name] for name in made)
        return value if is_same else made
    return value
