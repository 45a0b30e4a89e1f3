"""A saver taken apart for the tests of the engine.

Backends that count, refuse or die; operations run request by request; checkpoints built
by hand; and an exact form of values, in which 1, True and 1.0 are different.
"""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import attrs
from pydantic import BaseModel

from threadkeep import MemorySaver
from threadkeep._core import arguments, tenants
from threadkeep._core.codec import NativeCodec
from threadkeep._core.engine import put, thread_summary
from threadkeep._core.engine.model import Batch, Change, Read, ReadThread
from threadkeep._core.engine.operation import Call, Fetch, Operation, fetch
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.base import Backend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import BackendError, ThreadkeepError
from threadkeep.savers.saver import Saver

# -- backends --------------------------------------------------------------------------


class Passing(Backend):
    """Passes everything on to another backend; a subclass may meet each request."""

    has_identity = True

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def meet(self, asked: Sequence[Any], request: Callable[[], Any]) -> Any:
        """Carry out a request: some reads, one change, or none of these."""
        return request()

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        found: list[Any] = self.meet(reads, lambda: self.inner.fetch(reads))
        return found

    def commit(self, change: Change) -> None:
        self.meet([change], lambda: self.inner.commit(change))

    def scrub(self, *, rewrite: bool) -> Any:
        return self.meet((), lambda: self.inner.scrub(rewrite=rewrite))

    def identity(self) -> str:
        return str(self.inner.identity())

    def close(self) -> None:
        self.inner.close()


class Interrupting(Passing):
    """Runs a function before each of the first commits."""

    def __init__(self, inner: Any, what: Callable[[], Any], count: int) -> None:
        super().__init__(inner)
        self.what, self.left = what, count

    def commit(self, change: Change) -> None:
        if self.left:
            self.left -= 1
            self.what()
        super().commit(change)


class Counted(Backend):
    """Passes everything on to another backend and records the requests.

    The one read before a saver's first change is left out.
    """

    def __init__(self, inner: Any = None) -> None:
        self.inner = MemoryBackend() if inner is None else inner
        self.fetches: list[Sequence[Read]] = []
        self.commits: list[Change] = []
        self.growth = 0  # bytes that the last commit added
        self._sizes: dict[tuple[str, int, int], int] = {}

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        if ReadThread(tenants.STORE) not in reads:
            self.fetches.append(reads)
        return self.inner.fetch(reads)

    def commit(self, change: Change) -> None:
        self.commits.append(change)
        self.inner.commit(change)
        if isinstance(change, Batch):
            self.growth = self._grown(change)

    def close(self) -> None:
        self.inner.close()

    def asked(self) -> tuple[int, int]:
        """Return the numbers of fetches and commits since the last call."""
        counts = len(self.fetches), len(self.commits)
        self.fetches.clear()
        self.commits.clear()
        return counts

    def _grown(self, batch: Batch) -> int:
        """The bytes that the batch added, less those of the segments that it replaced."""
        rows = batch.checkpoints
        size = sum(len(r.metadata) + len(r.exact or b"") + len(r.manifest) for r in rows)
        size += sum(len(w.body) for w in batch.writes)
        for log, start, _ in batch.drop_segments:
            size -= self._sizes.pop((batch.thread, log, start), 0)
        for segment in batch.segments:
            place = (batch.thread, segment.log, segment.start)
            size += len(segment.data) - self._sizes.get(place, 0)
            self._sizes[place] = len(segment.data)
        return size


def get_operation(saver: Saver, at: Any) -> Operation[Any]:
    """The operation of a get_tuple."""
    return saver._get_tuple(arguments.load(at), at)


def put_operation(saver: Saver, *given: Any) -> Operation[Any]:
    """The operation of a put with these arguments; its result is the config."""
    call = arguments.put(*given)
    yield from put.save(saver._engine, call)
    return arguments.stored(call)


class Dying(Passing):
    """A backend that fails after this many commits."""

    has_identity, scrub = False, Backend.scrub

    def __init__(self, inner: Any, commits: int) -> None:
        super().__init__(inner)
        self.left = commits

    def commit(self, change: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise BackendError("killed")
        super().commit(change)

    def close(self) -> None:
        """Keep the inner backend open."""


class Recording(MemoryBackend):
    """A store in memory that keeps its commits, to repeat them on others."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Any] = []

    def commit(self, change: Any) -> None:
        super().commit(change)
        self.changes.append(change)

    def commit_many(self, changes: Any) -> Any:
        results = super().commit_many(changes)
        self.changes += [one for one, error in zip(changes, results, strict=True) if error is None]
        return results


def recorded(build: Callable[[Saver], None], **options: Any) -> list[Any]:
    """Return the changes that `build` commits, in order."""
    backend = Recording()
    build(Saver(backend, **options))
    return backend.changes


class CountedCodec:
    """Passes everything on to another codec and records the encoded values."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner or NativeCodec()
        self.encoded: list[Any] = []
        self.decoded = 0

    def encode(self, value: Any, intern: Any = None) -> bytes:
        self.encoded.append(value)
        return self.inner.encode(value, intern)

    def decode(self, data: bytes, resolve: Any = None) -> Any:
        self.decoded += 1
        return self.inner.decode(data, resolve)

    def decode_many(self, items: Sequence[bytes], resolve: Any = None) -> list[Any]:
        self.decoded += len(items)
        return self.inner.decode_many(items, resolve)

    def divides(self, value: Any) -> bool:
        return self.inner.divides(value)

    def with_allowlist(self, extra: Any) -> Any:
        return self.inner.with_allowlist(extra)


def run_on(operation: Operation[Any], backend: Any) -> Any:
    """Run an operation on a backend with nothing in front of it."""
    return LayeredBackend(backend).run(operation)


def use_backend(saver: Saver, backend: Any) -> Any:
    """Let an open saver use this backend from now on; returns it."""
    bare = LayeredBackend(backend)
    for level in (saver._store, saver._store._below):
        for name in ("backend", "_blocking", "_awaited", "_writer", "_loop_writers", "_home"):
            setattr(level, name, getattr(bare, name))
    return backend


def counted_saver(inner: Any = None, **options: Any) -> tuple[Saver, Counted, CountedCodec]:
    """A saver, its backend and its codec, which count. It knows that the rows are plain."""
    backend, codec = Counted(inner), CountedCodec()
    saver = Saver(backend, **options)
    saver._store._first.is_due = False
    saver._engine = saver._engine._replace(codec=codec)
    return saver, backend, codec


# -- operations, request by request ----------------------------------------------------


class Steps:
    """An operation that is driven by hand: `request` waits to be carried out."""

    def __init__(self, operation: Operation[Any], backend: Any) -> None:
        self._operation = operation
        self._backend = backend
        self.result: Any = None
        self.request: Any = None
        self._send(lambda: next(operation))

    def step(self) -> Any:
        """Carry out the request that waits; the next one, or None at the end."""
        assert self.request is not None
        try:
            answer = self.carry_out()
        except ThreadkeepError as exc:
            error = exc
            return self._send(lambda: self._operation.throw(error))
        return self._send(lambda: self._operation.send(answer))

    def carry_out(self) -> Any:
        """Do what the operation waits for, without telling it."""
        if isinstance(self.request, Fetch):
            return self._backend.fetch(self.request.reads)
        if isinstance(self.request, Call):
            return getattr(self._backend, self.request.method)(*self.request.args)
        return self._backend.commit(self.request.change)

    def tell(self, answer: Any = None) -> Any:
        """Continue with the answer to a request that was carried out."""
        return self._send(lambda: self._operation.send(answer))

    def fail(self, error: ThreadkeepError) -> Any:
        """Throw an error in place of the answer."""
        return self._send(lambda: self._operation.throw(error))

    def finish(self) -> Any:
        """Run to the end; what the operation returned."""
        while self.request is not None:
            self.step()
        return self.result

    def close(self) -> None:
        """End it where it stands, as a cancellation does."""
        self.request = None
        self._operation.close()

    def _send(self, resume: Callable[[], Any]) -> Any:
        try:
            self.request = resume()
        except StopIteration as stop:
            self.request, self.result = None, stop.value
        return self.request


def until_commit(steps: Steps) -> Steps:
    """Continue until the operation waits for a commit."""
    while isinstance(steps.request, Fetch):
        steps.step()
    return steps


# -- checkpoints -----------------------------------------------------------------------


def config(thread: str = "t", ns: str = "", checkpoint_id: str | None = None) -> Any:
    """A config as LangGraph passes it."""
    place = {"thread_id": thread, "checkpoint_ns": ns}
    return {
        "configurable": place
        if checkpoint_id is None
        else {**place, "checkpoint_id": checkpoint_id}
    }


def run_config(thread: str = "t", ns: str = "") -> Any:
    """The config with which a run loads the head."""
    return {
        "configurable": {"thread_id": thread, "checkpoint_ns": ns, "__pregel_runtime": object()}
    }


def checkpoint(
    number: int | str, values: dict[str, Any], versions: dict[str, Any], **more: Any
) -> Any:
    """A checkpoint; ids of numbers are ordered as the numbers are."""
    return {
        "v": 4,
        "id": f"{number:08d}" if isinstance(number, int) else number,
        "ts": "2024-05-01T10:20:30.123456+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
        **more,
    }


class Chain:
    """Puts one checkpoint after another on one thread: each channel given is a new version."""

    def __init__(self, saver: Saver, thread: str = "t", ns: str = "", start: int = 0) -> None:
        self.saver = saver
        self.at = config(thread, ns)
        self.number = start
        self.versions: dict[str, int] = {}
        self.values: dict[str, Any] = {}

    def follow(self) -> Self:
        """Continue from the thread's current head, if any."""
        head = self.saver.get_tuple(self.at)
        if head is not None:
            self.at = head.config
            self.values = dict(head.checkpoint["channel_values"])
            self.versions = dict(head.checkpoint["channel_versions"])
        return self

    def put(self, **changed: Any) -> Any:
        """The config of a new checkpoint in which these channels have these values."""
        self.at = self.saver.put(*self.arguments(**changed))
        return self.at

    def arguments(self, **changed: Any) -> tuple[Any, Any, Any, Any]:
        """The arguments of `put` for the next checkpoint."""
        self.number += 1
        new = {name: self.versions.get(name, 0) + 1 for name in changed}
        self.versions |= new
        self.values |= changed
        made = checkpoint(self.number, dict(self.values), dict(self.versions))
        return self.at, made, {"source": "loop", "step": self.number}, new


def values_of(saver: Saver, at: Any) -> dict[str, Any]:
    """The channel values of a checkpoint, as any reader gets them."""
    found = saver.get_tuple(at)
    assert found is not None
    return found.checkpoint["channel_values"]


def shown(found: Any) -> dict[str, Any]:
    """All that a reader sees of a checkpoint, exactly; the order of its channels is free."""
    checkpoint, place, parent = found.checkpoint, found.config["configurable"], found.parent_config
    assert checkpoint["id"] == place["checkpoint_id"]
    return {
        "place": (place["thread_id"], place["checkpoint_ns"], str(checkpoint["id"])),
        "parent": None if parent is None else str(parent["configurable"]["checkpoint_id"]),
        "values": {c: exactly(v) for c, v in checkpoint["channel_values"].items()},
        "versions": {c: exactly(v) for c, v in checkpoint["channel_versions"].items()},
        "metadata": exactly(found.metadata),
        "rest": rest_of(checkpoint),
        "writes": [(task, channel, exactly(v)) for task, channel, v in found.pending_writes],
    }


def rest_of(checkpoint: Any) -> Any:
    """A checkpoint without its channels; the order of `versions_seen` is free."""
    seen = checkpoint["versions_seen"]
    seen = {node: dict(sorted(seen[node].items())) for node in sorted(seen)}
    rest = {k: checkpoint[k] for k in ("v", "ts", "updated_channels")}
    return exactly({**rest, "versions_seen": seen})


def everything(saver: Saver) -> dict[tuple[str, str, str], dict[str, Any]]:
    """All visible checkpoints of all threads, by place."""
    return {one["place"]: one for one in map(shown, saver.list(None))}


def elements_stored(backend: Any, thread: str = "t") -> int:
    """The number of log elements that the thread holds."""
    (rows,) = backend.fetch([ReadThread(thread)])
    return sum(segment.count for segment in rows.segments)


def bytes_held(saver: Saver, thread: str) -> int:
    """The bytes of a thread's rows and segments, as the registry counts them."""
    rows = saver._store.run(fetch(ReadThread(thread)))
    segments = sum(segment.size for segment in rows.segments)
    return thread_summary.of_rows(rows.checkpoints, rows.orphans, segments).size


def rows_in_memory(saver: Saver) -> Any:
    """All threads of a saver in memory, as they are stored, also below keys."""
    backend: Any = saver._store.backend
    return getattr(backend, "below", backend)._rows.threads


def fresh(saver: Saver) -> Saver:
    """Another saver on the same backend, which remembers nothing but that the rows are plain."""
    other = Saver(saver._store.backend, conflicts=saver._engine.conflicts)
    other._store._first.is_due = False
    return other


def interrupted(saver: Saver, what: Callable[[], Any], count: int = 1) -> Saver:
    """Another saver on the same backend, before whose first commits something happens."""
    other = fresh(saver)
    use_backend(other, Interrupting(saver._store.backend, what, count))
    return other


def memory_saver(**options: Any) -> Saver:
    return MemorySaver(**options)


# -- values, exactly -------------------------------------------------------------------


def exactly(value: Any) -> Any:
    """The value as nested tuples with the names of all types in it; order of dicts counts."""
    kind = type(value).__qualname__
    if isinstance(value, BaseModel):
        parts = (value.__dict__, value.__pydantic_extra__, value.__pydantic_private__)
        return (kind, sorted(value.model_fields_set), *map(exactly, parts))
    if attrs.has(type(value)):
        return (kind, *(exactly(getattr(value, a.name)) for a in attrs.fields(type(value))))
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
        return (kind, *(exactly(getattr(value, name, None)) for name in names))
    if isinstance(value, dict | OrderedDict):
        return (kind, *((exactly(k), exactly(v)) for k, v in value.items()))
    if isinstance(value, set | frozenset):
        return (kind, *sorted(map(exactly, value), key=repr))
    if isinstance(value, list | tuple | deque):
        return (kind, *map(exactly, value))
    if isinstance(value, float):
        return (kind, value.hex())
    return (kind, value if isinstance(value, bytes) and len(value) > 64 else repr(value))


def difference(a: Any, b: Any, path: str = "") -> str:
    """The first difference of two exact forms, in a few words; "" if there is none."""
    if type(a) is type(b) and isinstance(a, dict | tuple | list):
        if not isinstance(a, dict):
            a, b = dict(enumerate(a)), dict(enumerate(b))
        if a.keys() != b.keys():
            return f"{path}: {sorted(a.keys() - b.keys())} is not {sorted(b.keys() - a.keys())}"
        if a != b:
            return next((d for k in a if (d := difference(a[k], b[k], f"{path}/{k}"))), "")
    return "" if a == b else f"{path}: {str(a)[:200]} is not {str(b)[:200]}"
