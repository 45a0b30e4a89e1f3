"""Rotation: every stored value gets the current key."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep._core.codec import FormerSerde
from threadkeep._core.engine import registration
from threadkeep._core.engine.cold_references import WITH_COLD, archive_of
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import Operation, Progress, call
from threadkeep._core.engine.thread_entry import ThreadEntry, is_archived
from threadkeep._run.driver import external, on
from threadkeep._run.first_change import WITH_KEYS
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.sealers import asked
from threadkeep._stores.base import ScrubReport
from threadkeep.errors import (
    ConflictError,
    InvalidArgumentError,
    StateError,
    ThreadkeepError,
    ThreadNotFoundError,
)
from threadkeep.threads import upgrading
from threadkeep.threads.archives import tiering
from threadkeep.threads.statistics_report import Stats

if TYPE_CHECKING:
    from threadkeep._stores.message_index import ArchiveIndex

_PASSES = 3
_INDEXES = (
    "Indexes of layered memory that programs opened themselves (index=), or over connections of"
    " their own: remove them."
)
_OBJECTS = (
    "Objects in the cold store from before: each is removed when its thread is archived or"
    " offloaded an hour later or more. Archives of threads that were restored: remove them."
)


class RotationReport(NamedTuple):
    """The result of a rotation.

    Attributes:
        threads: the number of threads read.
        changed: the number of values that were encrypted again, or would be.
        key_bytes: the bytes of values in the store before the rotation, by the id of their key, ""
            for values that were not encrypted.
        dry_run: True if nothing was changed.
        archives: the number of threads with values in the cold store, which `key_bytes` does not
            count. Objects that an older key may have encrypted are written again.
        cleared: places that were cleared of old plain text, after a rotation of plain values.
        remains: places that may still hold some, each with a remedy.
    """

    threads: int
    changed: int
    key_bytes: dict[str, int]
    dry_run: bool
    archives: int = 0
    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()


def rotate(
    store: LayeredBackend,
    engine: Engine,
    progress: Progress | None,
    *,
    dry_run: bool,
    rewrite: bool = False,
) -> Operation[RotationReport]:
    if store.backend.keys is None:
        raise InvalidArgumentError("The saver has no keys.", hint=WITH_KEYS)
    codec = engine.codec
    if isinstance(codec, FormerSerde) and not dry_run:
        rewritten = yield from upgrading.rewrite(
            store, engine, codec, None, progress, dry_run=False
        )
        for failure in rewritten.failed:
            raise failure
    archives = yield from _cold(store, engine, dry_run=dry_run)
    first = None
    for _ in range(_PASSES):
        found = yield from _pass(store, progress, dry_run=dry_run)
        first = first or found._replace(archives=archives)
        if dry_run:
            return first
        if not found.changed:
            engine.working_set.forget(None)
            if not store.backend.keys.allow_plaintext:
                return first
            left = yield from _clear_plain(store, rewrite=rewrite)
            return first._replace(cleared=left.cleared, remains=left.remains)
    raise ConflictError(
        "Other processes still write with an older key.",
        hint="Give all of them the new keys, and run the rotation again.",
    )


def _cold(store: LayeredBackend, engine: Engine, *, dry_run: bool) -> Operation[int]:
    """Seal objects again that an older key may have sealed. Return the number of their threads."""

    def cold(entry: ThreadEntry) -> ThreadEntry | None:
        archive = archive_of(entry)
        return entry if is_archived(entry) or (archive and archive.offloaded) else None

    entries = yield from on(store, registration.of_all(registration.ALL, cold))
    keys = store.backend.keys
    yield from asked(keys, "refresh")
    if dry_run or not entries or not keys.has_older_objects:
        return len(entries)
    if store.cold is None:
        raise InvalidArgumentError(
            "Values in the cold store may be encrypted with an older key.", hint=WITH_COLD
        )
    for entry in entries:
        with suppress(StateError, ThreadNotFoundError):  # (restored or deleted meanwhile)
            yield from tiering.write_again(store, engine, entry)
    return len(entries)


def _clear_plain(store: LayeredBackend, *, rewrite: bool) -> Operation[ScrubReport]:
    """Remove old plain text outside the rows.

    The rotation has put all items again, without words and vectors, and removed cached results.
    """
    sealed: Any = store.backend
    index = sealed.below.message_index()
    if index is not None:
        yield from external(partial(_empty, index))
    yield from on(store, call("keep_words", kept=False))
    store.clear_cache(None)
    remains = (_INDEXES,) if store.cold is None else (_INDEXES, _OBJECTS)
    report = ScrubReport(("full-text and vector indexes, cached results",), remains)
    try:
        return report + (yield from on(store, store.scrub(rewrite=rewrite)))
    except ThreadkeepError as error:
        failure = " ".join(str(error).split())
        return report + ScrubReport(remains=(f"Removed rows in the store's files: {failure}",))


def _empty(index: ArchiveIndex) -> None:
    with closing(index):
        if threads := index.threads():
            index.remove(*threads)


def with_keys(
    store: LayeredBackend, engine: Engine, counting: Operation[Stats]
) -> Operation[Stats]:
    """Add the bytes by key to statistics, if the store is encrypted."""
    found = yield from counting
    if store.backend.keys is None or store.whole is not store:
        return found
    report = yield from rotate(store, engine, None, dry_run=True)
    return replace(found, key_bytes=report.key_bytes)


def _pass(
    store: LayeredBackend, progress: Progress | None, *, dry_run: bool
) -> Operation[RotationReport]:
    """Seal all values again. The first pass that changes nothing ends the rotation."""
    from threadkeep._stores import resealing  # noqa: PLC0415 - an extra

    def work(function: Any, *args: Any, **options: Any) -> Operation[Any]:
        return on(store, call("work", function, *args, **options))

    sizes: Counter[str] = Counter()
    threads = changed = 0
    after: str | None = None
    while names := (yield from work(resealing.stored_names, after)):
        for name in names:
            use = yield from work(resealing.reseal, name, dry_run=dry_run)
            sizes += use.bytes
            changed += use.changed
            threads += 1
            if progress is not None:
                progress("rotate", threads, 0)
        after = names[-1]
    place: Any = None
    while True:
        use, place = yield from work(resealing.reseal_page, place, dry_run=dry_run)
        sizes += use.bytes
        changed += use.changed
        if place is None:
            break
    if not (changed or dry_run):
        yield from work(resealing.finish)
    return RotationReport(threads, changed, dict(sizes), dry_run)
