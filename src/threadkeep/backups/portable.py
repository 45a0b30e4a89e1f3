"""Backups as bundles: of any store, into any store.

Only the files around a bundle and the order of things live here. Invariant: nothing is
written to a store before the whole bundle was read and found sound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from threadkeep import drive
from threadkeep.backends.base import Backend, MigratingBackend
from threadkeep.backups.files import replacing, told
from threadkeep.bundles import BundleWriter, read_bundle
from threadkeep.engine.operations import bundling
from threadkeep.engine.operations.bundling import WholeThread

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is in all."""


class Restored(NamedTuple):
    """How many threads that hold checkpoints were put, and how many were there already."""

    threads: int
    known: int


def back_up(backend: Backend, file: Path, progress: Progress) -> int:
    """Write all threads of a store to a bundle, each as it is when its turn comes.

    Returns:
        How many hold checkpoints.

    Raises:
        OpenError, DiskFullError: the file cannot be written.
        ConflictError, CorruptionError: a thread could not be read.
    """
    with replacing(file) as beside, told(file), beside.open("wb") as opened:
        return _write(backend, opened, progress)


def _write(backend: Backend, file: BinaryIO, progress: Progress) -> int:
    bundle = BundleWriter(file)
    names = drive.run(bundling.all_threads(), backend)
    threads = 0
    for done, name in enumerate(names, 1):
        whole = drive.run(bundling.read_thread(name), backend)
        if not whole.is_nothing:
            bundle.add(whole)
        threads += bool(whole.checkpoints)
        progress("threads read", done, len(names))
    bundle.end()
    return threads


def verified(file: Path, progress: Progress) -> list[str]:
    """The ids of a bundle's threads, once all of it is known to be sound.

    Raises:
        NotOursError, NewerFormatError, CorruptionError: the bundle cannot be read.
    """
    names: list[str] = []
    for whole in _threads(file):
        names.append(whole.thread)
        progress("threads verified", len(names), 0)
    return names


def restore(
    file: Path, names: list[str], backend: Backend, progress: Progress, *, replace: bool
) -> Restored:
    """Put all threads of a bundle into a store; others that are there are left alone.

    Args:
        file: the bundle.
        names: what `verified` has told of it.
        backend: the store; its tables are made where they are not there.
        progress: see `Progress`.
        replace: whether threads of the same ids may be removed for it, one after the other.

    Raises:
        ThreadExistsError: the store holds a thread that would be lost; nothing was changed,
            but where somebody put it there meanwhile.
    """
    if isinstance(backend, MigratingBackend):
        backend.migrate()
    if not replace:
        _refuse_losses(file, names, backend)
    put = known = 0
    for done, whole in enumerate(_threads(file), 1):
        now = time.time_ns() // 1000
        is_new = drive.run(bundling.put_thread(whole, now, replace=replace), backend)
        if whole.checkpoints:
            put, known = put + is_new, known + (not is_new)
        progress("threads written", done, len(names))
    return Restored(put, known)


def _refuse_losses(file: Path, names: list[str], backend: Backend) -> None:
    both = set(names).intersection(drive.run(bundling.all_threads(), backend))
    for whole in _threads(file) if both else ():
        if whole.thread in both:
            drive.run(bundling.refuse_loss(whole), backend)


def _threads(file: Path) -> Iterator[WholeThread]:
    with told(file), file.open("rb") as opened:
        yield from read_bundle(opened)
