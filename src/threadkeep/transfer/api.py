"""Workflows behind `saver.threads`: export, import, adopt, mirror."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep import validation
from threadkeep.engine.context import Engine
from threadkeep.errors import InvalidArgumentError
from threadkeep.progress import Progress, no_progress
from threadkeep.saver import Saver, store_of
from threadkeep.store.store import LayeredStore
from threadkeep.store.workflows import Plan, aside, either
from threadkeep.transfer import adopting, portable, syncing
from threadkeep.transfer.adopting import Adopted
from threadkeep.transfer.kinds import check_is_bundle, check_may_be_replaced
from threadkeep.transfer.portable import Exported, Imported
from threadkeep.transfer.sources import open_source
from threadkeep.transfer.syncing import Mirrored


def export(
    store: LayeredStore,
    threads: str | Iterable[str] | None,
    file: str | os.PathLike[str],
    progress: Progress | None,
) -> Plan[Exported]:
    """See `Threads.export_bundle`."""
    names, path = validation.thread_ids(threads), Path(file)
    yield from aside(lambda: check_may_be_replaced(path))
    return (yield from portable.export(store.beneath(), names, path, progress or no_progress))


def import_(
    store: LayeredStore,
    file: str | os.PathLike[str],
    thread: str | None,
    progress: Progress | None,
    *,
    replace: bool,
    dry_run: bool,
) -> Plan[Imported]:
    """See `Threads.import_bundle`."""
    path, tell = Path(file), progress or no_progress
    new = None if thread is None else validation.text("thread", thread)
    yield from aside(lambda: check_is_bundle(path))
    names = yield from portable.verified(path, tell, digests=True)
    if new is not None and len(names) != 1:
        raise InvalidArgumentError(
            f"{path} holds {len(names)} threads: they cannot all get the id {new!r}.",
            hint="Leave the new id out, or export that thread alone.",
        )
    return (
        yield from portable.fill(
            store.beneath(),
            path,
            names,
            tell,
            replace=replace,
            thread=new,
            digests=True,
            dry_run=dry_run,
        )
    )


def adopt(
    store: LayeredStore,
    engine: Engine,
    source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
    threads: str | Iterable[str] | None,
    key: str | bytes | None,
    wishes: adopting.Wishes,
    progress: Progress | None,
) -> Plan[Adopted]:
    """See `Threads.adopt`."""
    if wishes.replace and wishes.as_fork:
        raise InvalidArgumentError("Both replace and as_fork are given.", hint="Use one of them.")
    opening = partial(open_source, source, engine.codec, key)
    names, tell = validation.thread_ids(threads), progress or no_progress
    done = yield from adopting.adopt(store, engine, opening, names, wishes, tell)
    yield from either(store.flush, store.aflush)
    return done


def mirror(
    store: LayeredStore,
    other: Saver,
    threads: str | Iterable[str] | None,
    wishes: syncing.Wishes,
    progress: Progress | None,
) -> Plan[Mirrored]:
    """See `Threads.mirror`."""
    if not isinstance(other, Saver):
        raise InvalidArgumentError(
            f"{type(other).__name__} is no saver of threadkeep.",
            hint="Open the other store: threadkeep.open_saver(url).",
        )
    there = store_of(other)
    if there.backend is store.backend:
        raise InvalidArgumentError("The other store is this one.", hint="Use another saver.")
    names, tell = validation.thread_ids(threads), progress or no_progress
    return syncing.sync(store.beneath(), there.beneath(), names, wishes, tell)
