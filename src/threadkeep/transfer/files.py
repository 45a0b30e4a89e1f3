"""Files that are there whole or not at all.

Only that lives here. Invariant: until everything is on the disk, what stood under the name
stands there still; whatever ends it before, no part of the new file is left.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from threadkeep.errors import BackendError, DiskFullError, OpenError


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A new file beside this one, which takes its name at the end of the block.

    It can be read by its owner only, and others' rights are not copied: a backup holds all
    that the store does.

    Raises:
        OpenError, DiskFullError, BackendError: the system refused.
    """
    file = Path(os.path.realpath(file))  # a link goes on pointing where it does
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with told(file):
            os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield beside
        with told(file):
            sync(beside)
            beside.replace(file)
            sync_folder(file.parent)
    finally:
        for left in (beside, *(beside.with_name(beside.name + end) for end in _BESIDE)):
            with suppress(OSError):
                left.unlink(missing_ok=True)


_BESIDE = ("-journal", "-wal", "-shm")  # what SQLite may leave beside its file


@contextmanager
def told(file: Path) -> Iterator[None]:
    """Raise the system's errors as ours, about this file."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(hint=f"Free some space where {file} lies.") from error
        if error.errno == errno.EIO:
            raise BackendError(
                f"{file}: {error.strerror}.", hint="Check its folder and its disk, and try again."
            ) from error
        raise OpenError(
            f"{file} cannot be opened: {error.strerror}.",
            hint="Give a path that this system allows and this process may use.",
        ) from error


def sync(file: Path) -> None:
    """Wait until a file is on the disk."""
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the new name last; some systems cannot do that with a folder."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
