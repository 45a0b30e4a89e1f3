"""Quarantine files (`.tkq`): what a repair took out of threads, byte by byte.

The form is a bundle's. Each record is a thread with only the rows and segments that were taken out
(and sound segments that these refer to). Its `more` has `findings`, an array of `[kind, problem,
namespace, checkpoint, channel]`, and `unreadable`, an array of `[table, key, problem, data]`. A
file that exists is never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from threadkeep._core.engine.model import UnreadableRow
from threadkeep._stores.files import file_errors, sync_folder
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

_FINDINGS, _UNREADABLE = "findings", "unreadable"
QUARANTINE = Form(
    b"\x89TKQ\r\n\x1a\n",
    BUNDLE.names | {_FINDINGS, _UNREADABLE},
    "quarantine file",
    "The repair that wrote it was interrupted, or the file was damaged since: the threads before"
    " this place are whole. What is not in it was not taken out of the store.",
    UNLIMITED,
)


@dataclass(frozen=True, slots=True)
class Removed:
    """The rows and segments that go out of a thread, with their bytes as they are.

    `whole` holds the checkpoints and writes that go, the damaged segments, and a copy of the
    sound ones that they refer to. `unreadable` are rows that the store cannot make sense of.
    """

    whole: WholeThread
    findings: tuple[Finding, ...]
    unreadable: tuple[UnreadableRow, ...] = ()


class QuarantineFile:
    """Writer of a quarantine file, which is made once something is added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[BundleWriter, BinaryIO] | None = None
        if path.exists() or path.is_symlink():
            raise _exists(path)
        if not path.absolute().parent.is_dir():
            raise OpenError(
                f"There is no folder {path.absolute().parent}.", hint="Create it first."
            )

    @property
    def is_used(self) -> bool:
        """True if anything was added."""
        return self._opened is not None

    def add(self, removed: Removed) -> None:
        """Write the rows and segments that go out of a thread; durable on return."""
        with file_errors(self.path):
            if self._opened is None:
                self._opened = self._create()
            writer, file = self._opened
            writer.add(removed.whole, _more(removed))
            _flush(file)

    def end(self) -> None:
        """Write the end: the file is complete."""
        if self._opened is not None:
            writer, file = self._opened
            with file_errors(self.path):
                writer.end()
                _flush(file)

    def close(self) -> None:
        """Close the file, complete or not. Idempotent."""
        if self._opened is not None:
            self._opened[1].close()

    def _create(self) -> tuple[BundleWriter, BinaryIO]:
        try:
            # (of its owner only: it holds what the store does)
            number = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError as error:
            raise _exists(self.path) from error
        file = os.fdopen(number, "wb")
        sync_folder(self.path.absolute().parent)
        return BundleWriter(file, QUARANTINE), file


def _exists(path: Path) -> OpenError:
    return OpenError(f"{path} exists already: it is left as it is.", hint="Use another file.")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _more(removed: Removed) -> dict[str, Any]:
    return {
        _FINDINGS: [
            [str(f.kind), f.problem, f.namespace, f.checkpoint, f.channel] for f in removed.findings
        ],
        _UNREADABLE: [list(row) for row in removed.unreadable],
    }


def read_quarantine(file: str | os.PathLike[str]) -> Iterator[Removed]:
    """Iterate over the threads of a quarantine file, in the order in which they were repaired.

    Args:
        file: the quarantine file.

    Raises:
        OpenError: it cannot be opened.
        NotOursError, NewerFormatError: it is no quarantine file, or of a newer release.
        CorruptionError: from here on it is damaged or was never written.
    """
    path = Path(file)
    with file_errors(path), path.open("rb") as opened:
        for whole, more in read_threads(opened, QUARANTINE):
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
