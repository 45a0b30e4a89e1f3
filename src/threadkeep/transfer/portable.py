"""Threads into bundles, and bundles into stores: of any kind, into any kind.

Only the files around a bundle and the order of things live here. Invariants: nothing is
written to a store before the whole bundle was read and found sound; a bundle is there whole
or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace as replaced
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from threadkeep.cold.stubs import STUB
from threadkeep.engine.thread_entry import is_archived
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    ThreadkeepError,
    ThreadNotFoundError,
)
from threadkeep.progress import Progress
from threadkeep.store.workflows import (
    Plan,
    Store,
    aside,
    on,
)
from threadkeep.transfer import (
    bundling,
    digest,
)
from threadkeep.transfer.bundle_format import (
    BundleWriter,
    read_bundle,
)
from threadkeep.transfer.bundling import WholeThread
from threadkeep.transfer.files import replacing, told

Add: TypeAlias = Callable[[BundleWriter, str], Plan[int]]


class Exported(NamedTuple):
    """How many threads were written to a bundle, their checkpoints (hidden ones too), its bytes.

    `archived` are those that were not, as they are in the cold store and were not named.
    """

    threads: int
    checkpoints: int
    size: int
    archived: tuple[str, ...] = ()


class Imported(NamedTuple):
    """What was put, or (of a dry run) is to be put: the ids of threads with checkpoints.

    `known` are those of which nothing was missing; `replaced` are those of `put` that took the
    place of what would else have been in the way.
    """

    put: tuple[str, ...]
    known: tuple[str, ...]
    checkpoints: int
    replaced: tuple[str, ...] = ()


# -- out of a store --------------------------------------------------------------------


def back_up(store: Store, file: Path, progress: Progress) -> Plan[int]:
    """Write all threads of a store to a bundle, each as it is when its turn comes.

    Nothing is looked into: what is damaged is backed up as it is.

    Returns:
        How many hold checkpoints.

    Raises:
        OpenError, DiskFullError: the file cannot be written.
        ConflictError, CorruptionError: a thread could not be read.
    """
    names = yield from on(store, bundling.all_threads())
    counts = yield from _written(file, names, partial(_add_as_it_is, store), progress)
    return sum(map(bool, counts))


def export(
    store: Store, names: Sequence[str] | None, file: Path, progress: Progress
) -> Plan[Exported]:
    """Write threads to a bundle, each with its checkpoints' digests; read it back.

    Args:
        store: where they are.
        names: their ids; None for all that hold checkpoints.
        file: the bundle; another one that stands there is replaced.
        progress: see `Progress`.

    Raises:
        ThreadNotFoundError: one of them is not there.
        CorruptionError: one is damaged.
        OpenError, DiskFullError: the file cannot be written.
    """
    archived: list[str] = []
    add = partial(_add_digested, store, archived=None if names is not None else archived)
    if names is None:
        names = yield from on(store, bundling.all_threads())
    counts = yield from _written(file, names, add, progress, check=True)
    size = yield from aside(lambda: file.stat().st_size)
    return Exported(sum(map(bool, counts)), sum(counts), size, tuple(archived))


def _written(
    file: Path, names: Sequence[str], add: Add, progress: Progress, *, check: bool = False
) -> Plan[list[int]]:
    """Write a bundle; how many checkpoints each thread has."""
    counts = []
    with told(file), ExitStack() as stack:
        beside = yield from aside(partial(stack.enter_context, replacing(file)))
        with beside.open("wb") as opened:
            bundle = BundleWriter(opened)
            for done, name in enumerate(names, 1):
                counts.append((yield from add(bundle, name)))
                progress("threads read", done, len(names))
            yield from aside(bundle.end)
        if check:
            yield from verified(beside, progress, digests=True)
        yield from aside(stack.close)  # waits for the disk
    return counts


def _add_as_it_is(store: Store, bundle: BundleWriter, name: str) -> Plan[int]:
    whole = yield from on(store, bundling.read_thread(name, stubs=True))
    if not whole.is_nothing:
        yield from aside(partial(bundle.add, whole))
    return len(whole.checkpoints)


def _add_digested(
    store: Store, bundle: BundleWriter, name: str, *, archived: list[str] | None
) -> Plan[int]:
    """Write a thread that was named, or (with `archived`) one of all: then it may be missing."""
    whole = yield from on(store, bundling.read_thread(name, stub=archived is not None))
    if not whole.checkpoints and archived is not None:
        archived += [name] if is_archived(whole.entry) else []
        return 0
    if not whole.checkpoints:
        hint = "Look for its id: saver.threads.search(), or `threadkeep threads`."
        raise ThreadNotFoundError(hint=hint, thread=name)
    digests = yield from aside(partial(digest.of_checkpoints, whole))
    whole = replaced(whole, digests=tuple(digests.values()))
    yield from aside(partial(bundle.add, whole))
    return len(whole.checkpoints)


# -- into a store ----------------------------------------------------------------------


def verified(file: Path, progress: Progress, *, digests: bool = False) -> Plan[list[str]]:
    """The ids of a bundle's threads, once all of it is known to be sound.

    Args:
        file: the bundle.
        progress: see `Progress`.
        digests: whether each checkpoint must have the digest that is noted of it, if one is.

    Raises:
        NotOursError, NewerFormatError, CorruptionError: the bundle cannot be read.
    """
    names: list[str] = []
    with closing(_threads(file)) as threads:
        while (whole := (yield from aside(partial(next, threads, None)))) is not None:
            if digests:
                yield from aside(partial(_own_digests, whole))
            names.append(whole.thread)
            progress("threads verified", len(names), 0)
    return names


def fill(  # noqa: PLR0913 - they are given by name
    store: Store,
    file: Path,
    names: Sequence[str],
    progress: Progress,
    *,
    replace: bool,
    thread: str | None = None,
    digests: bool = False,
    dry_run: bool = False,
    stubs: bool = False,
) -> Plan[Imported]:
    """Put all threads of a bundle into a store; others that are there are left alone.

    Args:
        store: the store; its tables are there.
        file: the bundle.
        names: what `verified` has told of it.
        progress: see `Progress`.
        replace: whether threads of the same ids may be removed for it, one after the other.
        thread: another id for the only thread of the bundle.
        digests: whether each thread is read back, and its checkpoints' digests compared.
        dry_run: whether to only look.
        stubs: whether what was offloaded is left where it is, as in a backup.

    Raises:
        ThreadExistsError: the store holds a thread that would be lost; nothing was changed,
            but where somebody put it there meanwhile.
        CorruptionError: a thread is not in the store as it was in the bundle.
        ThreadkeepError: the store failed; a note of the error says which threads it has.
    """
    if not replace:
        yield from _refuse_losses(store, file, names, thread, stubs=stubs)
    done: list[_Done] = []
    try:
        with closing(_threads(file)) as threads:
            while (whole := (yield from aside(partial(next, threads, None)))) is not None:
                whole = whole if thread is None else _renamed(whole, thread)
                how = _How(replace, digests, dry_run, stubs)
                done.append((yield from _put_or_looked(store, whole, how)))
                progress(f"threads {'looked at' if dry_run else 'written'}", len(done), len(names))
    except ThreadkeepError as exc:
        exc.add_note(_so_far([one.thread for one in done], len(names)))
        raise
    return _imported([one for one in done if one.checkpoints])


class _How(NamedTuple):
    """What `fill` was told."""

    replace: bool
    check: bool
    dry_run: bool
    stubs: bool


def _put_or_looked(store: Store, whole: WholeThread, how: _How) -> Plan[_Done]:
    is_new, loses = True, False  # (without `replace` nothing is lost)
    if how.replace or how.dry_run:
        is_new, loses = yield from on(store, bundling.outlook(whole, stubs=how.stubs))
    if not how.dry_run:
        is_new = yield from _put(store, whole, how)
    return _Done(whole.thread, is_new, is_new and loses, len(whole.checkpoints))


class _Done(NamedTuple):
    thread: str
    is_new: bool
    replaced: bool
    checkpoints: int


def _imported(done: Sequence[_Done]) -> Imported:
    return Imported(
        tuple([one.thread for one in done if one.is_new]),
        tuple([one.thread for one in done if not one.is_new]),
        sum([one.checkpoints for one in done]),
        tuple([one.thread for one in done if one.replaced]),
    )


def _so_far(done: Sequence[str], total: int) -> str:
    names = ", ".join(map(repr, done)) or "none"
    return (
        f"Put so far, of {total} threads: {names}. The next one may be there in an older state;"
        " to do all again completes it."
    )


def _renamed(whole: WholeThread, thread: str) -> WholeThread:
    """The thread under another id, which was never deleted."""
    return replaced(whole, thread=thread, deleted_at=0)


def _put(store: Store, whole: WholeThread, how: _How) -> Plan[bool]:
    """Put a thread; whether anything of it was missing."""
    wanted = (yield from aside(partial(_own_digests, whole))) if how.check else {}
    now = time.time_ns() // 1000
    put = bundling.put_thread(whole, now, replace=how.replace, stubs=how.stubs)
    is_new = yield from on(store, put)
    if how.check:
        there = yield from on(store, bundling.read_thread(whole.thread))
        found = yield from aside(partial(digest.of_checkpoints, there))
        compare(whole.thread, wanted, found)
    return is_new


def _own_digests(whole: WholeThread) -> dict[digest.Key, bytes]:
    """The digests of a bundle's thread, which are those that were noted.

    Raises:
        InvalidArgumentError: what it holds lies in a cold store.
        CorruptionError: they are others.
    """
    if any(segment.data.startswith(STUB) for segment in whole.segments):
        raise InvalidArgumentError(
            "This bundle is a backup, and values of this thread lie in the cold store.",
            hint="Restore it: threadkeep restore FILE STORE. What can go elsewhere is an export.",
            thread=whole.thread,
        )
    found = digest.of_checkpoints(whole)
    if whole.digests is not None:
        compare(whole.thread, dict(zip(found, whole.digests, strict=True)), found)
    return found


def compare(thread: str, wanted: dict[digest.Key, bytes], found: dict[digest.Key, bytes]) -> None:
    """Check that all that is wanted is found (others may have gone on with the thread since)."""
    for (ns, id), one in wanted.items():
        if found.get((ns, id)) != one:
            raise CorruptionError(
                "A checkpoint is not what it was where it comes from: its digest is another one.",
                hint="Take the bundle again, and look after what lies between: disk, memory.",
                thread=thread,
                namespace=ns or None,
                checkpoint=id,
            )


def _refuse_losses(
    store: Store, file: Path, names: Sequence[str], thread: str | None, *, stubs: bool
) -> Plan[None]:
    new = set(names) if thread is None else {thread}
    both = new.intersection((yield from on(store, bundling.all_threads())))
    if not both:
        return
    with closing(_threads(file)) as threads:
        while (whole := (yield from aside(partial(next, threads, None)))) is not None:
            whole = whole if thread is None else _renamed(whole, thread)
            if whole.thread in both:
                yield from on(store, bundling.refuse_loss(whole, stubs=stubs))


def _threads(file: Path) -> Generator[WholeThread, None, None]:
    with told(file), file.open("rb") as opened:
        yield from map(bundling.trimmed, read_bundle(opened))
