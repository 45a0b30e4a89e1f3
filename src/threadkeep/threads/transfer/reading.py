"""Reader of LangGraph's own databases: the reading methods of a saver, and nothing that writes.

Values are decoded without a class or code of a program: an object of another class, a pickle, an
encrypted or a damaged value is a `Raw`. Each call reads one consistent state, in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, _DeltaSnapshot

from threadkeep._core import arguments, validation
from threadkeep._core.codec.codecs import CLASS, PlainCodec, Raw
from threadkeep._core.engine.context import not_found
from threadkeep._core.engine.load import Loaded
from threadkeep._core.engine.operation import CheckpointRef, Operation
from threadkeep._core.engine.rows import created_at
from threadkeep._core.engine.thread_entry import Lifecycle, ThreadStatus
from threadkeep._core.engine.thread_summary import CONTROL, following, state_channels, tasks
from threadkeep._core.langgraph_internals import TASKS
from threadkeep._run.driver import each_and_aeach, external, is_awaited, sync_and_async
from threadkeep._run.lazy_values import LazyValues, LazyWrites, is_lazy
from threadkeep.errors import (
    CheckpointNotFoundError,
    ThreadkeepError,
    WrongKeyError,
    invalid,
)
from threadkeep.threads import finding
from threadkeep.threads.answering import PendingInterrupt, each_of, field_of
from threadkeep.threads.diff import ChannelDiff, DiffSide, StateDiff
from threadkeep.threads.diff.checkpoints import (
    NOTHING,
    ConfigOrPair,
    Pair,
    channel_diff,
    place_of,
)
from threadkeep.threads.diff.values import Effort
from threadkeep.threads.finding import FoundThreads
from threadkeep.threads.forks import BranchCheckpoint, Branches, tree
from threadkeep.threads.registry import (
    EPOCH,
    OrderName,
    ThreadInfo,
    ThreadPage,
    cursor_to,
    place_in,
)
from threadkeep.threads.transfer.opening import SharedSource, open_named
from threadkeep.threads.transfer.sources import (
    DatabaseSource,
    Payloads,
    SourceStep,
    SourceThread,
    SourceWindow,
)

T = TypeVar("T")

MOST = 200
"""Checkpoints without their values in one read."""
_CHANNELS = ("channel_values", "channel_versions")
_WHOLE = "(state)"  # the channel of a checkpoint whose state cannot be read
_WAIT_SECONDS = 20.0  # for other calls
_LARGEST_FOUND = 8 << 20  # bytes of a state in which words are looked for
_EAGER = 16  # checkpoints in one read
_ORDERS = ("updated_at", "created_at", "bytes", "thread")


class RawPayloads(Payloads):
    """Decoder that never fails: a value that cannot be read is a `Raw`."""

    def value(self, kind: str, data: bytes | None) -> Any:
        try:
            return super().value(kind, data)
        except ThreadkeepError as error:
            name = "encrypted" if isinstance(error, WrongKeyError) else "unreadable"
            whole = {CLASS: name, "type": str(kind), "bytes": len(data or b"")}
            return Raw({**whole, "why": error.message, "hint": error.hint})


class LangGraphReader:
    """Reads a database of LangGraph's SqliteSaver or PostgresSaver as a saver does.

    It has one connection and serves one call at a time. Others wait. It opens a lost connection
    again. A statement may take 2 seconds on a server, 10 on a file.

    Args:
        database: the URL or path.
        key: the key of encrypted values (LANGGRAPH_AES_KEY), 16, 24 or 32 bytes.

    Raises:
        NotLangGraphError: the database belongs to another program, or to threadkeep.
        OpenError: it cannot be opened.
        InvalidArgumentError: the key has an invalid length.
    """

    def __init__(self, database: str, key: str | bytes | None = None) -> None:
        self._database, payloads = database, RawPayloads(PlainCodec(), None, key)

        def opened() -> DatabaseSource:
            source = open_named(database, payloads)
            source.limit(source.seconds)
            return source

        self._shared = SharedSource(opened)
        self._shared.read(lambda _: None)
        self.threads = ReaderThreads(self)

    def close(self) -> None:
        """Close the connection."""
        self._shared.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, call: Callable[[DatabaseSource], T]) -> Operation[T]:
        """Read one state of the store.

        Raises:
            StatementTimeoutError: a statement took too long.
            LockedError: other calls took too long.
            BackendError: the store failed.
        """
        return external(partial(self._shared.read, call, _WAIT_SECONDS))

    def _bytes(self, thread_id: str, first: str, last: str) -> Operation[int]:
        """Return the bytes of a thread's checkpoints from an id to another, with their writes.

        A value that several checkpoints share counts once.
        """
        return self.read(lambda source: source.bytes(thread_id, first, last))

    bytes, abytes = sync_and_async(_bytes)

    def _total_bytes(self) -> Operation[int]:
        """Return the bytes of the tables on the disk, with indexes and free pages."""
        return self.read(lambda source: source.total_bytes())

    total_bytes, atotal_bytes = sync_and_async(_total_bytes)

    # -- checkpoints -------------------------------------------------------------------

    def _get_tuple(
        self, config: RunnableConfig, *, channels: Sequence[str] | None = None
    ) -> Operation[CheckpointTuple | None]:
        """Return a checkpoint, or the newest of a namespace, or None if it does not exist.

        With `channels`, it has the values and pending writes of these channels alone.
        """
        place = arguments.place(config)
        loaded = yield from self.read(partial(_loaded, place, channels))
        return None if loaded is None else arguments.checkpoint_tuple(loaded, config)

    get_tuple, aget_tuple = sync_and_async(_get_tuple)

    def _list(
        self,
        config: RunnableConfig,
        *,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        values: Literal["eager", "lazy"] = "eager",
    ) -> Iterator[Operation[Iterable[CheckpointTuple]]]:
        """Yield a thread's checkpoints, newest first, as `list` of a saver does."""
        wanted, lazy = arguments.listing(config, None, before, limit), is_lazy(values)
        older, left = wanted.before, wanted.limit
        most = MOST if lazy else _EAGER

        def page(window: SourceWindow) -> Operation[Iterable[CheckpointTuple]]:
            nonlocal older, left
            steps = yield from self.read(lambda source: _whole_ids(source, window))
            if left is not None:
                steps, left = steps[:left], left - len(steps)
            if len(steps) < window.limit:
                left = 0
            older = steps[-1].id if steps else None
            awaited = yield from is_awaited()
            if lazy:
                return [self._lazily(window.thread, one, awaited=awaited) for one in steps]
            places = [CheckpointRef(window.thread, one.ns, one.id) for one in steps]
            loaded = yield from self.read(
                lambda source: [_loaded(place, None, source) for place in places]
            )
            return [arguments.checkpoint_tuple(one) for one in loaded if one is not None]

        while left is None or left > 0:
            size = most if left is None else min(most, left)
            yield page(SourceWindow(str(wanted.thread), wanted.ns, wanted.id, older, size))

    list, alist = each_and_aeach(_list)

    def _lazily(self, thread: str, step: SourceStep, *, awaited: bool) -> CheckpointTuple:
        whole = _complete(step.id, {**step.checkpoint, "channel_values": {}})
        loaded = Loaded(thread, step.ns, step.id, step.parent, whole, _mapping(step.metadata), [])
        found = arguments.checkpoint_tuple(loaded)
        names = _by_text(step.names or {})
        values: Any = StepValues(self, found, names, {}, awaited=awaited, lengths=names)
        values.bytes, values.is_unknown = step.size, step.names is None
        listed: Any = found._replace(pending_writes=[(*one, None) for one in step.written])
        writes: Any = _StepWrites(self, listed, awaited=awaited)
        checkpoint: Any = {**whole, "channel_values": values}
        return found._replace(checkpoint=checkpoint, pending_writes=writes)


def _loaded(
    place: CheckpointRef, channels: Collection[str] | None, source: DatabaseSource
) -> Loaded | None:
    wanted = None if channels is None else frozenset(channels)
    found = source.checkpoint(SourceWindow(place.thread, place.ns, place.id, None, 1), wanted)
    if found is None:
        return None
    whole = _complete(found.id, found.checkpoint)
    if wanted is not None:
        values = whole["channel_values"]
        whole["channel_values"] = {name: values[name] for name in values if name in wanted}
    writes = [(one.task_id, one.channel, one.value) for one in found.writes]
    return Loaded(
        place.thread, found.ns, found.id, found.parent, whole, _mapping(found.metadata), writes
    )


class _ById:
    """A part of a listed checkpoint, whose time may be unknown until it is read."""

    def _is_listed(self, _found: CheckpointTuple) -> bool:
        return True


class StepValues(_ById, LazyValues):
    """See `LazyValues`.

    Attributes:
        bytes: size of the stored state.
        is_unknown: True while the names are not known: a large payload was not read yet.
    """

    bytes = 0
    is_unknown = False

    def _load(self, *names: str) -> Operation[None]:
        if not self.is_unknown:
            yield from LazyValues._load(self, *names)  # noqa: SLF001 - its own
            return
        found = yield from self._read(())
        self._values = dict(found.checkpoint["channel_values"])
        self._names, self.is_unknown = dict.fromkeys(self._values), False

    load, aload = sync_and_async(_load)


class _StepWrites(_ById, LazyWrites):
    """The writes of a step, found by its id."""


# -- threads ---------------------------------------------------------------------------


class ReaderThreads:
    """The reading methods of `saver.threads`."""

    def __init__(self, reader: LangGraphReader) -> None:
        self._reader = reader

    def _search(
        self, *, order: OrderName = "-updated_at", limit: int = 50, cursor: str | None = None
    ) -> Operation[ThreadPage]:
        """Return a page of threads (see `Threads.search`). There are no filters.

        Times come from the checkpoints' ids, `bytes` the size of all payloads.
        """
        if not isinstance(order, str) or order.removeprefix("-") not in _ORDERS:
            raise invalid("order", order, f"Use {', '.join(_ORDERS)}; a minus reverses the order.")
        if type(limit) is not int or not 1 <= limit <= MOST:
            raise invalid("limit", limit, f"Use 1 to {MOST}.")
        after = None if cursor is None else place_in(cursor, order, str, int)
        found = yield from self._reader.read(lambda source: source.page(order, after, limit + 1))
        rest = None
        if len(found) > limit:
            rest = cursor_to(order, found[limit - 1].key, found[limit - 1].id)
        return ThreadPage(tuple(map(_info, found[:limit])), rest)

    search, asearch = sync_and_async(_search)

    def _find(
        self, query: str, *, limit: int = 20, seconds: timedelta | float = 2.0
    ) -> Operation[FoundThreads]:
        """Find threads by words (see `Threads.find`). There are no filters.

        Threads whose head is larger than 8 MB are skipped.
        """

        def page(cursor: str | None) -> Operation[ThreadPage]:
            return self._search(limit=finding.PAGE, cursor=cursor)

        def read(threads: Sequence[str]) -> Operation[finding.KnownHeads]:
            return self._reader.read(lambda source: {one: _head(one, source) for one in threads})

        return finding.find(page, read, finding.QueryWords(query), limit, seconds)

    find, afind = sync_and_async(_find)

    def _counts(self) -> Operation[dict[str, int]]:
        """Return the number of checkpoints of each thread, by its id."""
        return self._reader.read(lambda source: source.threads())

    checkpoint_counts, acheckpoint_counts = sync_and_async(_counts)

    def _count(self) -> Operation[int]:
        """Return the number of threads."""
        return len((yield from self._counts()))

    count, acount = sync_and_async(_count)

    def _branches(self, thread_id: str, checkpoint_ns: str = "") -> Operation[Branches]:
        """Return the tree of a namespace's checkpoints (see `Threads.branches`)."""
        place = validation.place(thread_id, checkpoint_ns)
        return (yield from self._trees(place, place.ns))[place.ns]

    branches, abranches = sync_and_async(_branches)

    def _branches_by_ns(self, thread_id: str) -> Operation[dict[str, Branches]]:
        """Return the trees of all namespaces (see `Threads.branches_by_ns`).

        Nodes that a large checkpoint runs next are unknown, as it is not read.
        """
        place = validation.place(thread_id)
        return dict(sorted((yield from self._trees(place, None)).items()))

    branches_by_ns, abranches_by_ns = sync_and_async(_branches_by_ns)

    def _trees(self, place: CheckpointRef, ns: str | None) -> Operation[dict[str, Branches]]:
        """Return the trees of a thread's namespaces, or of one, without their values."""
        shown: dict[str, dict[str, BranchCheckpoint]] = {}
        window = SourceWindow(place.thread, ns, None, None, MOST)
        while True:
            steps = yield from self._reader.read(partial(_whole_ids, window=window))
            for one in steps:
                shown.setdefault(one.ns, {})[one.id] = _of_tree(one)
            if len(steps) < window.limit:
                break
            window = window._replace(before=steps[-1].id)
        if not shown:
            raise not_found(place)
        for ones in shown.values():
            for id in {one.parent for one in ones.values()} & ones.keys():
                ones[str(id)] = replace(ones[str(id)], waiting=())
        return {name: tree(place.thread, name, ones, {}) for name, ones in shown.items()}

    def _get(self, thread_id: str) -> Operation[ThreadInfo | None]:
        """Return a thread, or None if it has no checkpoint."""
        name = validation.thread_id(thread_id)
        found = yield from self._reader.read(lambda source: source.thread(name))
        return None if found is None else _info(found)

    get, aget = sync_and_async(_get)

    def _interrupts(self, thread_id: str) -> Operation[list[PendingInterrupt]]:
        """Return the interrupts that wait at a thread's head (see `Threads.interrupts`).

        Those of subgraphs have no namespace of their own. None is answered: LangGraph's savers
        store an answer when a run continues with it.
        """
        place = CheckpointRef(validation.thread_id(thread_id))
        found = yield from self._reader.read(partial(_loaded, place, CONTROL))
        if found is None:
            return []
        waiting = tasks([(task, channel) for task, channel, _ in found.writes]).waiting
        return [
            PendingInterrupt(
                str(field_of(one, "id", "")),
                field_of(one, "value", one),
                str(found.id),
                "",
                task,
                response_schema=field_of(one, "response_schema", None),
            )
            for task, channel, value in found.writes
            if task in waiting and channel == INTERRUPT
            for one in each_of(value)
        ]

    interrupts, ainterrupts = sync_and_async(_interrupts)

    def _diff_checkpoints(
        self,
        before: ConfigOrPair,
        after: ConfigOrPair,
        *,
        channels: Sequence[str] | None = None,
    ) -> Operation[StateDiff]:
        """Compare two checkpoints of any threads (see `Threads.diff_checkpoints`).

        Writes of a DeltaChannel are not compared.
        """

        def read(source: DatabaseSource) -> list[Loaded]:
            found = list[Loaded]()
            for place in map(place_of, (before, after)):
                if (one := _loaded(place, channels, source)) is None:
                    raise CheckpointNotFoundError(
                        thread=place.thread, namespace=place.ns or None, checkpoint=place.id
                    )
                found.append(one)
            return found

        found = yield from self._reader.read(read)
        return (yield from external(partial(_state_diff, found, channels)))

    diff_checkpoints, adiff_checkpoints = sync_and_async(_diff_checkpoints)


def _state_diff(both: Sequence[Loaded], wanted: Sequence[str] | None) -> StateDiff:
    a, b = both
    effort, encode = Effort(), PlainCodec().encode
    names = {name for one in (a, b) for key in _CHANNELS for name in one.checkpoint[key]}
    channels: dict[str, ChannelDiff] = {}
    for name in sorted(names if wanted is None else names.intersection(wanted)):
        before, after = (_value(one, name) for one in (a, b))
        versions = tuple(one.checkpoint["channel_versions"].get(name) for one in (a, b))
        pair = Pair(before, after, is_delta=False)
        channels[name] = channel_diff(name, pair, (versions[0], versions[1]), encode, effort)
    return StateDiff(_side(a), _side(b), channels)


def _value(one: Loaded, name: str) -> Any:
    value = one.checkpoint["channel_values"].get(name, NOTHING)
    return value.value if isinstance(value, _DeltaSnapshot) else value


def _side(one: Loaded) -> DiffSide:
    step, source = one.metadata.get("step"), one.metadata.get("source")
    return DiffSide(one.thread, one.ns, one.id, str(one.checkpoint["ts"]), step, source)


@dataclass(frozen=True, slots=True)
class LangGraphThread(ThreadInfo):
    """A thread of a LangGraph database, with the number of its checkpoints."""

    checkpoints: int = 0


# (LangGraph's tables do not tell a finished thread from an unfinished one)
_STATUSES = {ERROR: ThreadStatus.FAILED, INTERRUPT: ThreadStatus.WAITING}


def _info(found: SourceThread) -> LangGraphThread:
    channel, _, at = (found.shown or "").partition(" ")
    return LangGraphThread(
        id=found.id,
        state=Lifecycle.ACTIVE,
        created_at=_time_of(found.oldest),
        updated_at=_time_of(found.newest),
        bytes=int(found.size),
        status=_STATUSES.get(channel),
        status_checkpoint=at or None,
        checkpoints=found.checkpoints,
    )


def _head(thread: str, source: DatabaseSource) -> finding.HeadMessages | ThreadkeepError | None:
    step = next(iter(source.steps(SourceWindow(thread, "", None, None, 1))), None)
    if step is None:
        return None
    if step.size > _LARGEST_FOUND:
        return ThreadkeepError(f"Its newest checkpoint has {step.size:,} bytes.")
    try:
        loaded = _loaded(CheckpointRef(thread, "", step.id), None, source)
    except ThreadkeepError as error:
        return error
    return None if loaded is None else finding.head_of(loaded)


# -- steps -----------------------------------------------------------------------------


def _whole_ids(source: DatabaseSource, window: SourceWindow) -> list[SourceStep]:
    """Read a window, and all checkpoints of its last id, which several namespaces may have."""
    steps = source.steps(window)
    if len(steps) < window.limit or window.ns is not None:
        return steps
    last = source.steps(window._replace(id=steps[-1].id, before=None, limit=MOST))
    return [*[one for one in steps if one.id != last[0].id], *last]


def _complete(id: str, checkpoint: Any) -> dict[str, Any]:
    """Return a checkpoint with all of its fields, whatever is stored."""
    is_whole = type(checkpoint) is dict and type(checkpoint.get("channel_values")) is dict
    found: dict[str, Any] = checkpoint if is_whole else {"channel_values": {_WHOLE: checkpoint}}
    parts = "channel_versions", "versions_seen"
    empty = {"v": 1, "id": id, "ts": _time_of(id).isoformat(), **{name: {} for name in parts}}
    whole: dict[str, Any] = empty | {
        name: value
        for name, value in found.items()
        if isinstance(value, type(empty.get(name, value)))
    }
    return whole | {name: _by_text(whole[name]) for name in _CHANNELS}


def _by_text(channels: Mapping[Any, T]) -> dict[str, T]:
    """Return channels by name. Any key may be stored as one."""
    return {str(name): value for name, value in channels.items()}


def _mapping(value: Any) -> dict[str, Any]:
    """Return a dict, an empty one in place of another value."""
    return value if isinstance(value, dict) else {}


def _time_of(id: str) -> datetime:
    """Return the time in a checkpoint's id, or 1970 if it has none."""
    return EPOCH + timedelta(microseconds=created_at(id) or 0)


def _of_tree(step: SourceStep) -> BranchCheckpoint:
    whole, names = _complete(step.id, {**step.checkpoint, "channel_values": {}}), step.names or {}
    status, changed = tasks(step.written), whole.get("updated_channels")
    return BranchCheckpoint(
        step.id,
        step.parent,
        str(whole["ts"]),
        _mapping(step.metadata),
        next=tuple(following(map(str, names))),
        has_sends=names.get(TASKS, 0) != 0,
        written=tuple(state_channels(map(str, changed if isinstance(changed, list) else ()))),
        interrupted=status.asked,
        waiting=status.waiting,
        failed=status.failed,
    )
