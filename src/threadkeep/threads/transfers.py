"""Public methods that copy threads to files and other stores, and back."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.engine.context import Engine
from threadkeep.progress import Progress
from threadkeep.store import workflows
from threadkeep.store.store import LayeredStore
from threadkeep.transfer import adopt, bundles, mirror
from threadkeep.transfer.adopt import Adopted, AdoptOptions
from threadkeep.transfer.bundles import Exported, Imported
from threadkeep.transfer.mirror import Mirrored, MirrorOptions

if TYPE_CHECKING:
    from threadkeep.saver import Saver


class ThreadTransfers:
    """Threads of a store that are copied elsewhere, and from there."""

    _store: LayeredStore
    _engine: Engine

    def export_bundle(
        self,
        threads: str | Iterable[str] | None,
        file: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> Exported:
        """Write threads to a bundle, which can be imported into any store.

        Each is written as it is when its turn comes, with the digest of every checkpoint, and
        the file is read back before it takes its name.

        Args:
            threads: the id of one or the ids of several; None for all that hold checkpoints.
            file: the bundle (`.tkb`). An older bundle is replaced, anything else is not.
            progress: see `threadkeep.progress`.

        Raises:
            ThreadNotFoundError: one of them holds no checkpoint.
            InvalidArgumentError: an id is invalid.
            OpenError, DiskFullError: the file cannot be written, or is no bundle.
            ConflictError, CorruptionError: a thread could not be read.
        """
        return workflows.run(bundles.export_bundle(self._store, threads, file, progress))

    def import_bundle(
        self,
        file: str | os.PathLike[str],
        thread: str | None = None,
        *,
        replace: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Imported:
        """Put the threads of a bundle into this store, under their ids or a new one.

        All of the bundle is verified first. A thread that exists, whole or in part, is
        completed. Then each is read back, and the digest of every checkpoint compared.

        Args:
            file: the bundle, of any store.
            thread: another id, where the bundle has one thread.
            replace: remove threads that are in the way.
            dry_run: verify the bundle, change nothing, and return what would be done.
            progress: see `threadkeep.progress`.

        Raises:
            ThreadExistsError: a thread that is in the way would be lost; nothing was changed.
            InvalidArgumentError: a new id was given, and the bundle has several threads.
            OpenError, NotOursError, NewerFormatError, CorruptionError: the bundle cannot be
                read; nothing was changed.
            ThreadkeepError: the store failed; a note of the error says what is there.
        """
        return workflows.run(
            bundles.import_bundle(
                self._store, file, thread, progress, replace=replace, dry_run=dry_run
            )
        )

    def adopt(
        self,
        source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
        threads: str | Iterable[str] | None = None,
        *,
        replace: bool = False,
        as_fork: bool = False,
        verify: bool = False,
        key: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> Adopted:
        """Copy threads from LangGraph's SqliteSaver, PostgresSaver or InMemorySaver.

        All of them: namespaces, parents, metadata, versions, pending writes. The source is
        only read, each thread as one state, also while it is written. A repeated call copies
        what has come since, or goes on where the last one was cut off.

        A thread that has diverged here and in the source, or holds one of its checkpoints in
        another state, is left alone and listed in `conflicts`, unless one of `replace` and
        `as_fork` is given.

        Args:
            source: the URL or path of LangGraph's database, or the saver.
            threads: the id of one or the ids of several; None for all but those that were
                deleted here.
            replace: replace a thread that has diverged with the source's.
            as_fork: copy a thread that has diverged into a fork, "<thread>-adopted", which
                begins with the newest checkpoint that both have.
            verify: compare every checkpoint as LangGraph's saver gives it with what this one
                gives. Needs that saver's library.
            key: the key of encrypted values (LANGGRAPH_AES_KEY), 16, 24 or 32 bytes; a saver
                brings its own.
            progress: see `threadkeep.progress`.

        Raises:
            NotLangGraphError: the source is another program's, or threadkeep's own.
            OpenError, InvalidArgumentError: the source cannot be opened; or both of `replace`
                and `as_fork` are given.
            ThreadNotFoundError: the source has no such thread.
            WrongKeyError: a value is encrypted, and the key is missing or another one.
            UnknownTypeError: a value is of a class that this program has not imported or
                allowed; the error names the checkpoint and the line that helps.
            CorruptionError: something is damaged, or not what LangGraph's saver gives.
        """
        options = AdoptOptions(verify, replace, as_fork)
        return workflows.run(
            adopt.adopt(self._store, self._engine, source, threads, key, options, progress)
        )

    def mirror(
        self,
        other: Saver,
        threads: str | Iterable[str] | None = None,
        *,
        replace: bool = False,
        delete: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Mirrored:
        """Copy the threads of this store to another one of any kind.

        Only what is missing there is written: new threads, and the checkpoints and pending
        writes that came since. Each thread that was written is compared on both sides, by the
        digest of every checkpoint. A repeated call goes on where the last one was cut off.

        Args:
            other: the saver of the other store.
            threads: the id of one or the ids of several; None for all.
            replace: replace a thread that has diverged there with this store's.
            delete: delete threads there that were deleted here.
            dry_run: change nothing, and return what would be done.
            progress: see `threadkeep.progress`.

        Raises:
            InvalidArgumentError: the other is no saver of threadkeep, or is this store.
            ThreadNotFoundError: there is no such thread here.
            CorruptionError: a thread is damaged, or did not arrive as it is here.
            ConflictError: a thread is written there all the time.
        """
        options = MirrorOptions(replace, delete, dry_run)
        return workflows.run(mirror.mirror(self._store, other, threads, options, progress))
