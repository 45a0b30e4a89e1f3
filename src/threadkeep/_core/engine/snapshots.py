"""Records of loads, values and checkpoints that this process saw or stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from sys import getrefcount
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from threadkeep._core.codec import Codec
from threadkeep._core.engine.differences import SeenSequence
from threadkeep._core.engine.model import Span
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.refs import Manifest, Numbers, Ref
from threadkeep._core.engine.shadow import Shadow, is_leaf
from threadkeep._core.engine.tips import BatchSegments, Proof

_LEAST = 128  # entries before the first sweep
_MOST_LIVES = 4096  # threads of one object, which a program may pass to all of its runs
_STORED = 64  # checkpoints at least remembered per run, without their values


@dataclass(slots=True, eq=False)
class LoadEntry:
    """One load, by the id that it returned."""

    id: str
    run: int
    seen: int
    flags: int

    @property
    def ended(self) -> bool:
        """True once the program no longer holds the id, and never can again."""
        return _references(self) <= _UNHELD


Task: TypeAlias = tuple[str, int]
"""A task's id, and the run of its writes: another run of the task may have stored some too."""

ITSELF: Task = ("", 0)
"""Stands for the checkpoint among its tasks: their writes may be stored before it."""


@quick
class Noted(NamedTuple):
    """Parts of a checkpoint that a run has seen stored."""

    tasks: set[Task]
    proof: Proof | None  # proves all of it (None: no single one does)


@dataclass(slots=True, eq=False)
class RunEntry:
    """One run of a graph, by an object that belongs to it alone."""

    id: Any
    lives: dict[Any, int]  # of the threads that it has loaded
    is_inner: bool = False  # a subgraph's, before LangGraph 1.2
    # The last checkpoints that it has loaded or stored, or has stored writes on.
    stored: dict[tuple[Any, str, str], Noted] = field(default_factory=dict)
    mark: object = field(default_factory=object)  # names the run without keeping its object

    def note(self, place: tuple[Any, str, str], tasks: Iterable[Task], proof: Proof) -> None:
        """Note that the store has these of a checkpoint, as `proof` proves."""
        stored = self.stored
        known = stored.get(place)
        if known is not None:
            known.tasks.update(tasks)
            if known.proof is not proof:
                stored[place] = Noted(known.tasks, None)
            return
        stored[place] = Noted(set(tasks), proof)
        if len(stored) > 2 * _STORED:
            for oldest in [*stored][:-_STORED]:
                stored.pop(oldest, None)

    @property
    def ended(self) -> bool:
        """As in `LoadEntry`."""
        return _references(self) <= _UNHELD


def _references(entry: LoadEntry | RunEntry) -> int:
    return getrefcount(entry.id)


def own_copy(text: str) -> str:
    """Return an equal text that is a separate object, if it has two characters or more."""
    return text[:1] + text[1:]


_UNHELD = _references(LoadEntry(own_copy("id"), 1, 0, 0))
"""Reference count of an id that only its entry holds. It depends on the version of Python."""


E = TypeVar("E", LoadEntry, RunEntry)


class _ByIdentity(Generic[E]):
    """Table of entries by the identity of an object, as long as the program holds the object.

    Invariants: of our objects only the entry holds it, so its reference count shows if the program
    still does. Only operations that are atomic in CPython touch the table, so it needs no lock.
    """

    def __init__(self) -> None:
        self._entries: dict[int, E] = {}
        self._room = _LEAST

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, key: object) -> E | None:
        """Return the entry of this very object, or None."""
        entry = self._entries.get(id(key))
        return entry if entry is not None and entry.id is key else None

    def sweep(self) -> None:
        """Remove the entries of unused objects. The next ones share the cost."""
        for key, entry in self._entries.copy().items():
            if entry.ended:
                self._entries.pop(key, None)
        self._room = max(_LEAST, 2 * len(self._entries))


class Loads(_ByIdentity[LoadEntry]):
    """Table of loads, by the checkpoint ids that they returned.

    LangGraph carries the `str` object that a load returned into the first `put` and into every
    `put_writes` on the checkpoint. If an id is not in the table, as in a later `put`, the run that
    put the parent continues.
    """

    def add(self, text: str, run: int, seen: int, flags: int) -> str:
        """Remember a load, and return its id, if longer than a character as a separate object."""
        if len(text) < 2:  # noqa: PLR2004 - see above
            return text
        found = own_copy(text)
        self._entries[id(found)] = LoadEntry(found, run, seen, flags)
        if len(self._entries) > self._room:
            self.sweep()
        return found


class KnownRuns(_ByIdentity[RunEntry]):
    """Table of the runs of graphs, with the lives of the threads that they have loaded.

    A run's first read of a thread decides, also if the thread has no checkpoint yet.
    """

    def begin(self, run: object, thread: Any, life: int, *, first: bool, inner: bool) -> RunEntry:
        """Note the life that a run has loaded, and return its entry. `first`: its first read.

        `inner`: a subgraph's read, which belongs to the run around it.
        """
        entry = self._entries.get(id(run))
        if entry is None or entry.id is not run or len(entry.lives) > _MOST_LIVES:
            if entry is not None:
                self._entries.pop(id(run), None)  # (the newest comes last)
            found = self._around(thread, life) if inner else life
            entry = self._entries[id(run)] = RunEntry(run, {thread: found}, inner)
            if len(self._entries) > self._room:
                self.sweep()
        elif first:
            entry.lives[thread] = life
        else:
            entry.lives.setdefault(thread, life)
        return entry

    def _around(self, thread: Any, life: int) -> int:
        """Return the life that the run around a subgraph has loaded: the thread's last run."""
        for entry in reversed([*self._entries.copy().values()]):
            if thread in entry.lives and not entry.is_inner and not entry.ended:
                return entry.lives[thread]
        return life


LOADS = Loads()
"""The only table of the process, as ids may pass from one saver to another."""

RUNS = KnownRuns()
"""Likewise the only one."""


_PART_MOST = 64  # most elements of a value by which it is found again
NO_RAWS: Mapping[int, bytes] = MappingProxyType({})
_PART_OVER = 16  # least average bytes of such elements


@quick
class RunValue(NamedTuple):
    """A list, tuple or dict as last seen, and the spans it is stored in."""

    kind: int
    spans: tuple[Span, ...]
    seen: SeenSequence
    weight: int
    raws: Mapping[int, bytes] = NO_RAWS  # opaque elements' bytes, by index


@quick
class RawElement(NamedTuple):
    """The full bytes of a stored element."""

    data: bytes
    log: int
    pos: int
    depth: int = 0  # patches after the last whole version
    uses: tuple[Span, ...] = ()  # other positions that reading it needs
    anchor: RawElement | None = None  # an earlier version as base of the next patch

    @property
    def span(self) -> Span:
        """The element's own position."""
        return Span(self.log, self.pos, self.pos + 1)


@quick
class CellValue(NamedTuple):
    """A single value as last seen. `raw` is None for a value stored inline."""

    value: Any
    shadow: Shadow
    data: bytes
    uses: tuple[Span, ...]
    raw: RawElement | None
    weight: int


def cell_value(
    value: Any,
    shadow: Shadow,
    data: bytes,
    uses: tuple[Span, ...] = (),
    raw: RawElement | None = None,
) -> CellValue:
    """Return the record of a single value, with its weight."""
    anchor = None if raw is None else raw.anchor
    weight = len(data) if anchor is None else len(data) + len(anchor.data)
    return CellValue(value, shadow, data, uses, raw, weight)


ChannelValue: TypeAlias = RunValue | CellValue

_CELL_FACTOR = 6  # memory of a value that is no text, with its bytes, per encoded byte
_LEAF, _ELEMENT = 60, 1200  # bytes of an element with its shadow, beside its texts: of a message
_ELEMENT_FACTOR = 10  # the most of these per encoded byte


@quick
class Keyframe(NamedTuple):
    """A whole manifest and its position. `used` counts the checkpoints encoded against it."""

    manifest: Manifest
    log: int
    pos: int
    used: int
    numbers: Numbers
    size: int  # bytes


@quick
class CheckpointSnapshot(NamedTuple):
    """A stored checkpoint with the values that this process knows."""

    ns: str
    id: str
    flags: int
    manifest: Manifest
    keyframe: Keyframe
    values: Mapping[str, ChannelValue]
    data: bytes  # the manifest as stored, to notice a replaced row
    codec: Codec  # the codec of the values: others may load other types
    owner: LoadEntry | None = None  # the load of the run that borrowed the values
    fresh: int = 0  # bytes not shared with the previous snapshot
    complete: bool = False  # no value is unknown
    by: object = None  # the `mark` of the run that has loaded or stored it

    @property
    def size(self) -> int:
        """Estimated bytes of the values in memory."""
        size = 0
        for held in self.values.values():
            weight = held.weight
            if isinstance(held, RunValue):
                seen = held.seen
                each = _LEAF if seen.size and is_leaf(seen.every[0]) else _ELEMENT
                size += weight + min(seen.size * each, weight * _ELEMENT_FACTOR)
            else:
                size += weight if isinstance(held.value, str | bytes) else weight * _CELL_FACTOR
        return size


@quick
class StoredObject(NamedTuple):
    """An object in a log (for example a message), found again by its identity."""

    value: Any
    shadow: Shadow
    span: Span
    size: int
    home: BatchSegments


@quick
class StoredValue(NamedTuple):
    """A whole value of a channel that was just stored, for example as a pending write."""

    value: Any
    ref: Ref
    held: ChannelValue
    home: BatchSegments
    size: int  # bytes newly stored for it

    @property
    def is_long(self) -> bool:
        """True if it has more elements than a task usually writes."""
        return isinstance(self.held, RunValue) and self.held.seen.size > _PART_MOST

    def parts(self) -> Iterable[tuple[int, Any]]:
        """Return the elements by which the value is found again, with their indexes."""
        if not isinstance(self.held, RunValue):
            return ()
        seen = self.held.seen
        if seen.size > _PART_MOST or self.held.weight < _PART_OVER * seen.size:
            return ()
        return enumerate(seen.items)

    def holds(self, value: Any) -> bool:
        """Return True if the value is unchanged at this instant."""
        if isinstance(self.held, CellValue):
            return self.held.shadow.holds()
        seen = self.held.seen
        return not seen.shadow.is_opaque and seen.is_now(value)
