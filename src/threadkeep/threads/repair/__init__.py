"""Quarantine files (`.tkq`): the rows that a repair removed, byte by byte.

The format is a bundle's. Each record is a thread with the removed rows and segments, and the
sound segments that they refer to. Its `more` has `findings`, an array of `[kind, problem,
namespace, checkpoint, channel]`, and `unreadable`, an array of `[table, key, problem, data]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from threadkeep._core.engine.model import UnreadableRow
from threadkeep._core.sealed_files import FileKind, FileWriter, opened_file
from threadkeep._run.layered_backend import store_of
from threadkeep._run.sealers import file_sealer, portable
from threadkeep._stores.external import file_errors, sync_folder
from threadkeep.errors import CorruptionError, OpenError
from threadkeep.threads.repair.check import Finding, Kind
from threadkeep.threads.transfer.bundle_format import (
    BUNDLE,
    UNLIMITED,
    BundleWriter,
    Form,
    read_threads,
)
from threadkeep.threads.transfer.whole_thread import WholeThread

if TYPE_CHECKING:
    from threadkeep._core.sealing import Sealer
    from threadkeep.keys import KeyRing

_FINDINGS, _UNREADABLE = "findings", "unreadable"
QUARANTINE = Form(
    b"\x89TKQ\r\n\x1a\n",
    BUNDLE.names | {_FINDINGS, _UNREADABLE},
    "quarantine file",
    "The repair was interrupted, or the file was damaged later. The threads before this place are"
    " complete. Rows that are not in the file were not removed from the store.",
    UNLIMITED,
)


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows and segments removed from a thread, with their bytes as stored.

    Args:
        whole: the removed checkpoints, writes and damaged segments, and copies of the sound
            segments that they refer to.
        findings: why they were removed.
        unreadable: removed rows that the store cannot read.
    """

    whole: WholeThread
    findings: tuple[Finding, ...]
    unreadable: tuple[UnreadableRow, ...] = ()


class QuarantineFile:
    """Writer of a quarantine file. The first `add` creates the file. None is overwritten."""

    def __init__(self, path: Path, sealer: Sealer | None) -> None:
        self.path = path
        self._sealer = sealer
        self._opened: tuple[BundleWriter, FileWriter, BinaryIO] | None = None
        if path.exists() or path.is_symlink():
            raise _exists(path)
        if not path.absolute().parent.is_dir():
            text = f"There is no folder {path.absolute().parent}."
            raise OpenError(text, hint="Create it first.")

    @property
    def is_used(self) -> bool:
        """True if anything was added."""
        return self._opened is not None

    def add(self, removed: Removed) -> None:
        """Write the rows and segments removed from a thread, durable on return."""
        with file_errors(self.path):
            if self._opened is None:
                self._opened = self._create()
            writer, output, file = self._opened
            writer.add(removed.whole, _more(removed))
            output.flush()
            os.fsync(file.fileno())

    def end(self) -> None:
        """Write the mark of a complete file."""
        if self._opened is not None:
            writer, output, file = self._opened
            with file_errors(self.path):
                writer.end()
                output.end()
                os.fsync(file.fileno())

    def close(self) -> None:
        """Close the file, complete or not. Idempotent."""
        if self._opened is not None:
            self._opened[2].close()

    def _create(self) -> tuple[BundleWriter, FileWriter, BinaryIO]:
        try:
            # (readable by its owner only: it holds conversations)
            number = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError as error:
            raise _exists(self.path) from error
        file = os.fdopen(number, "wb")
        sync_folder(self.path.absolute().parent)
        output = FileWriter(file, FileKind.QUARANTINE, self._sealer)
        return BundleWriter(output, QUARANTINE), output, file


def _exists(path: Path) -> OpenError:
    return OpenError(f"{path} exists already, and was not changed.", hint="Use another file.")


def _more(removed: Removed) -> dict[str, Any]:
    return {
        _FINDINGS: [
            [str(f.kind), f.problem, f.namespace, f.checkpoint, f.channel] for f in removed.findings
        ],
        _UNREADABLE: [list(row) for row in removed.unreadable],
    }


def read_quarantine(
    file: str | os.PathLike[str],
    *,
    keys: KeyRing | None = None,
    tenant: str | None = None,
    saver: Any = None,
) -> Iterator[Removed]:
    """Iterate over the threads of a quarantine file, in the order they were repaired.

    Args:
        file: the quarantine file.
        keys: the keys of the saver, if it has any.
        tenant: the tenant whose saver wrote the file.
        saver: in place of `keys` and `tenant`, the saver that wrote the file, or one like it. The
            file of a tenant's saver needs it if the store has a key store.

    Raises:
        OpenError: it cannot be opened.
        WrongKeyError: it is encrypted with another key.
        NotOursError: it is not a quarantine file.
        NewerFormatError: a newer release wrote it.
        CorruptionError: the rest is damaged or was never written.
    """
    path, sealer = Path(file), None if keys is None else portable(keys, tenant)
    if saver is not None:
        store = store_of(saver)
        sealer = store.run(file_sealer(store))
    with file_errors(path), path.open("rb") as opened:
        plain = opened_file(opened, FileKind.QUARANTINE, sealer)
        for whole, more in read_threads(plain, QUARANTINE):
            try:
                findings = [
                    Finding(problem, whole.thread, ns, checkpoint, channel, Kind(kind))
                    for kind, problem, ns, checkpoint, channel in more[_FINDINGS]
                ]
                unreadable = [UnreadableRow(*row) for row in more[_UNREADABLE]]
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptionError(
                    f"A thread of the quarantine file cannot be read: {error}",
                    hint=QUARANTINE.hint,
                ) from error
            yield Removed(whole, tuple(findings), tuple(unreadable))
