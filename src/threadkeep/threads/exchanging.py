"""`export` and `import_`: threads into a bundle, and out of one.

Only the checks of what is asked for live here; the steps are `transfer.portable`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from threadkeep import validation
from threadkeep.errors import InvalidArgumentError
from threadkeep.store import workflows
from threadkeep.store.workflows import Plan
from threadkeep.threads.running import Running, quiet
from threadkeep.transfer import portable
from threadkeep.transfer.kinds import check_is_bundle, check_may_be_replaced
from threadkeep.transfer.portable import Exported, Imported, Progress


class Exchanging(Running):
    """Threads to files and back."""

    def export(
        self,
        threads: str | Iterable[str] | None,
        file: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> Exported:
        """Write threads to a bundle, from which any store can be filled.

        Each is written as it is when its turn comes, with the digest of every checkpoint,
        and what was written is read back. Until all is done, what stood there stands there.

        Args:
            threads: the id of one or the ids of several; None for all that hold checkpoints.
            file: the bundle (`.tkb`). One that stands there is replaced, anything else is not.
            progress: called with what is being done, how much is done, and how much there is
                (0 where that is not known).

        Raises:
            ThreadNotFoundError: one of them holds no checkpoint.
            InvalidArgumentError: the ids are none.
            OpenError, DiskFullError: the file cannot be written, or is no bundle.
            ConflictError, CorruptionError: a thread could not be read.
        """
        return workflows.run(self._export(threads, file, progress))

    async def aexport(
        self,
        threads: str | Iterable[str] | None,
        file: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> Exported:
        """See `export`."""
        return await workflows.arun(self._export(threads, file, progress))

    def _export(
        self,
        threads: str | Iterable[str] | None,
        file: str | os.PathLike[str],
        progress: Progress | None,
    ) -> Plan[Exported]:
        names = ids(threads)
        path = Path(file)
        yield from workflows.aside(lambda: check_may_be_replaced(path))
        return (yield from portable.export(self._store.beneath(), names, path, progress or quiet))

    def import_(
        self,
        file: str | os.PathLike[str],
        thread: str | None = None,
        *,
        replace: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Imported:
        """Put the threads of a bundle into this store, under their ids or a new one.

        All of the bundle is verified first. A thread that is there already, whole or in part,
        is completed. Afterwards each is read back, and the digest of every checkpoint compared.

        Args:
            file: the bundle, of any store.
            thread: another id, where the bundle has one thread.
            replace: whether threads that stand in the place may be removed for it.
            dry_run: verify the bundle, change nothing, and say what would be done.
            progress: see `export`.

        Raises:
            ThreadExistsError: something stands in the place that would be lost; nothing was
                changed.
            InvalidArgumentError: a new id was given, and the bundle has several threads.
            OpenError, NotOursError, NewerFormatError, CorruptionError: the bundle cannot be
                read; nothing was changed.
            ThreadkeepError: the store failed; a note of the error says what is there.
        """
        return workflows.run(self._import(file, thread, replace, dry_run, progress))

    async def aimport_(
        self,
        file: str | os.PathLike[str],
        thread: str | None = None,
        *,
        replace: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Imported:
        """See `import_`."""
        return await workflows.arun(self._import(file, thread, replace, dry_run, progress))

    def _import(
        self,
        file: str | os.PathLike[str],
        thread: str | None,
        replace: bool,  # noqa: FBT001 - as the public methods have it
        dry_run: bool,  # noqa: FBT001 - as above
        progress: Progress | None,
    ) -> Plan[Imported]:
        path, told = Path(file), progress or quiet
        new = None if thread is None else validation.text("thread", thread)
        yield from workflows.aside(lambda: check_is_bundle(path))
        names = yield from portable.verified(path, told, digests=True)
        if new is not None and len(names) != 1:
            raise InvalidArgumentError(
                f"{path} holds {len(names)} threads: they cannot all get the id {new!r}.",
                hint="Leave the new id out, or export that thread alone.",
            )
        return (
            yield from portable.fill(
                self._store.beneath(),
                path,
                names,
                told,
                replace=replace,
                thread=new,
                digests=True,
                dry_run=dry_run,
            )
        )


def ids(threads: str | Iterable[str] | None) -> list[str] | None:
    """The ids of threads that a caller names, each once.

    Raises:
        InvalidArgumentError: they are none.
    """
    if threads is None:
        return None
    if isinstance(threads, str):
        return [validation.text("threads", threads)]
    return list(dict.fromkeys(validation.ids("threads", threads)))
