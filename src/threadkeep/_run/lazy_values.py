"""Values and pending writes of listed checkpoints, read when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from threadkeep._core import arguments
from threadkeep._core.engine.operation import External, Operation
from threadkeep._run.driver import is_awaited, sync_and_async
from threadkeep.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    NotFoundError,
    ThreadkeepError,
    invalid,
)

_NONE: Mapping[str, int | None] = MappingProxyType({})


def is_lazy(values: object) -> bool:
    """Return True for "lazy", False for "eager"."""
    if values not in ("eager", "lazy"):
        raise invalid("values", values, 'Use "eager" or "lazy".')
    return values == "lazy"


class _Unread:
    """A part of a listed checkpoint. An `awaited` one reads only in `load` and `aload`."""

    def __init__(self, saver: Any, found: CheckpointTuple, *, awaited: bool) -> None:
        self._saver, self._listed, self._awaited = saver, found, awaited

    def _read(self, channels: Iterable[str]) -> Operation[CheckpointTuple]:
        saver, config, names = self._saver, self._listed.config, [*channels] or None
        found: CheckpointTuple | None = yield External(
            partial(saver.get_tuple, config, channels=names),
            partial(saver.aget_tuple, config, channels=names),
        )
        if found is None or not self._is_listed(found):
            raise self._at(
                CheckpointNotFoundError(
                    "The checkpoint was removed after it was listed.", hint="List it again."
                )
            )
        return found

    def _is_listed(self, found: CheckpointTuple) -> bool:
        return bool(found.checkpoint["ts"] == self._listed.checkpoint["ts"])

    def _at(self, error: ThreadkeepError, channel: str | None = None) -> ThreadkeepError:
        thread, ns, checkpoint = arguments.place(self._listed.config)
        return error.at(thread=thread, namespace=ns or None, checkpoint=checkpoint, channel=channel)

    def _check(self, hint: str, channel: str | None = None) -> None:
        if self._awaited:
            raise self._at(InvalidArgumentError("This is not loaded yet.", hint=hint), channel)


class LazyValues(_Unread, Mapping[str, Any]):
    """The channel values of a listed checkpoint. Each is read when it is first used.

    The names are known without reading: use `in`, `len` and loops freely. `values[name]` reads one
    channel, `load` several at once. A value that was read stays.

    Values from `alist` are loaded by `await values.aload(...)` alone: `values[name]` would block
    the event loop, and raises `InvalidArgumentError` if the channel is not loaded.

    If the checkpoint was removed after it was listed, reading raises `CheckpointNotFoundError`, or
    `NotFoundError` if retention has removed the value.
    """

    def __init__(
        self,
        saver: Any,
        found: CheckpointTuple,
        names: Iterable[str],
        known: Mapping[str, Callable[[], Any]],
        *,
        awaited: bool,
        lengths: Mapping[str, int | None] = _NONE,
    ) -> None:
        super().__init__(saver, found, awaited=awaited)
        self._names = dict.fromkeys(names)
        self._known = known  # channels whose bytes came with the listing
        self._lengths = lengths
        self._values: dict[str, Any] = {}

    def __repr__(self) -> str:
        names = [name if name in self._values else f"{name} (not read)" for name in self._names]
        return f"<{type(self).__name__}: {', '.join(names)}>"

    @property
    def unread(self) -> dict[str, int | None]:
        """The channels that a use must read from the store.

        With each, the number of its elements, if it is a list, tuple or dict that is stored element
        by element, else None.
        """
        unread = [n for n in self._names if n not in self._known and n not in self._values]
        return {name: self._lengths.get(name) for name in unread}

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            if name not in self._names:
                raise KeyError(name)
            self._check(f"Load it first: await values.aload({name!r}).", name)
            self.load(name)
        return self._values[name]

    def _load(self, *names: str) -> Operation[None]:
        """Read channels that were not read yet, all in one go.

        Args:
            *names: the channels, none for all. Names without a value are ignored.

        Raises:
            CheckpointNotFoundError: the checkpoint was removed after it was listed.
            NotFoundError: the value was removed or replaced since.
            CorruptionError, UnknownTypeError: a value cannot be read back exactly.
        """
        wanted = [n for n in names or self._names if n in self._names and n not in self._values]
        missing = [name for name in wanted if name not in self._known]
        found = (yield from self._read(missing)) if missing else None
        for name in wanted:
            self._values.setdefault(name, self._of(found, name))

    load, aload = sync_and_async(_load)

    def _of(self, found: CheckpointTuple | None, name: str) -> Any:
        if found is None or name in self._known:
            try:
                return self._known[name]()
            except ThreadkeepError as error:
                self._at(error, name)
                raise
        checkpoint, before = found.checkpoint, self._listed.checkpoint["channel_versions"]
        is_same = checkpoint["channel_versions"].get(name) == before.get(name)
        if not is_same or name not in checkpoint["channel_values"]:
            text = "The value was removed or replaced after the checkpoint was listed."
            raise self._at(NotFoundError(text, hint="List it again."), name)
        return checkpoint["channel_values"][name]


class LazyWrites(_Unread, Sequence[tuple[str, str, Any]]):
    """The pending writes of a listed checkpoint, read when they are first used, all at once.

    They are those at the time of reading. See `LazyValues` for `alist` and errors.

    Attributes:
        names: the task's id and the channel of each write when it was listed, known without a read.
    """

    def __init__(
        self, saver: Any, found: CheckpointTuple, *, awaited: bool, read: bool = False
    ) -> None:
        super().__init__(saver, found, awaited=awaited)
        writes = [*(found.pending_writes or ())]
        self.names = tuple([(task, channel) for task, channel, _ in writes])
        self._found = writes if read or not writes else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'not read' if self._found is None else self._found}>"

    def _all(self) -> Sequence[Any]:
        if self._found is None:
            self._check("Load them first: await pending_writes.aload().")
            self.load()
        return self._found or ()

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def _load(self) -> Operation[None]:
        """Read the pending writes. Raises as `LazyValues.load`."""
        if self._found is None:
            found = yield from self._read(dict.fromkeys(channel for _, channel in self.names))
            self._found = [*(found.pending_writes or ())]

    load, aload = sync_and_async(_load)


def each_lazily(saver: Any, found: Iterable[CheckpointTuple]) -> Operation[list[CheckpointTuple]]:
    """Return checkpoints from `load.listed`, whose values and writes `saver` reads when used."""
    awaited = yield from is_awaited()
    return [_lazily(saver, one, awaited=awaited) for one in found]


def one_lazily(saver: Any, config: RunnableConfig) -> Operation[CheckpointTuple | None]:
    """Return the checkpoint that `saver.get_tuple` returns, with lazy values."""
    thread, ns, checkpoint = arguments.place(config)
    named = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}
    options: Any = {"config": {"configurable": named}, "limit": 1, "values": "lazy"}
    found: CheckpointTuple | None = yield External(
        lambda: next(iter(saver.list(**options)), None),
        lambda: anext(saver.alist(**options), None),
    )
    return found


def _lazily(saver: Any, found: CheckpointTuple, *, awaited: bool) -> CheckpointTuple:
    unread: Any = found.checkpoint["channel_values"]
    known = {name: decode for name, decode in unread.items() if callable(decode)}
    lengths = {name: count for name, count in unread.items() if name not in known}
    values = LazyValues(saver, found, unread, known, awaited=awaited, lengths=lengths)
    return _with(found, values, LazyWrites(saver, found, awaited=awaited))


def through(
    saver: Any, found: CheckpointTuple, values: LazyValues, own: str, names: Iterable[str]
) -> LazyValues:
    """Return the values of a wrapped saver as `saver` shows them, which changes channel `own`."""
    known = {name: decode for name, decode in values._known.items() if name != own}  # noqa: SLF001 - of this module
    lengths = {name: count for name, count in values.unread.items() if name != own}
    awaited = values._awaited  # noqa: SLF001 - likewise
    return LazyValues(saver, found, names, known, awaited=awaited, lengths=lengths)


def loaded(saver: Any, found: CheckpointTuple, *, awaited: bool) -> CheckpointTuple:
    """Return a checkpoint of a saver that reads all values, with the interface of lazy ones."""
    values = found.checkpoint["channel_values"]
    known = {name: partial(values.get, name) for name in values}
    own = LazyValues(saver, found, values, known, awaited=awaited)
    return _with(found, own, LazyWrites(saver, found, awaited=awaited, read=True))


def _with(found: CheckpointTuple, values: Any, writes: Any) -> CheckpointTuple:
    checkpoint: Any = {**found.checkpoint, "channel_values": values}
    return found._replace(checkpoint=checkpoint, pending_writes=writes)
