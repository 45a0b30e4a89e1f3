"""Files that are complete or absent, and libraries that may not be installed."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from threadkeep.errors import BackendError, DiskFullError, OpenError

_SUFFIXES = ("", "-journal", "-wal", "-shm")  # of files that SQLite may leave


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Create a new file next to this one, which takes its name at the end of the block.

    Only its owner can read it, and others' rights are not copied: a backup holds all that the
    store does.
    """
    file = Path(os.path.realpath(file))  # a link stays a link
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with file_errors(file):
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield part
        with file_errors(file):
            sync(part)
            part.replace(file)
            sync_folder(file.parent)
    finally:
        for suffix in _SUFFIXES:
            with suppress(OSError):
                part.with_name(part.name + suffix).unlink(missing_ok=True)


@contextmanager
def file_errors(file: Path) -> Iterator[None]:
    """Raise the system's errors about a file as ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(hint=f"Free some space for {file}.") from error
        if error.errno == errno.EIO:
            raise BackendError(
                f"{file}: {error.strerror}.", hint="Check its folder and its disk, and try again."
            ) from error
        raise OpenError(
            f"{file} cannot be opened: {error.strerror}.",
            hint="Use a path that this system allows and this process may use.",
        ) from error


def sync(file: Path, flags: int = os.O_RDWR) -> None:
    """Wait until a file is on the disk."""
    descriptor = os.open(file, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable. Some systems cannot."""
    with suppress(OSError):
        sync(folder, os.O_RDONLY)


@contextmanager
def extra(user: str, name: str) -> Iterator[None]:
    """Raise an error that names the extra to install if a library is missing."""
    try:
        yield
    except ImportError as error:
        raise OpenError(
            f"{user} needs a library that is not installed: {error}.",
            hint=how_to_install(name),
        ) from error


def how_to_install(extra: str) -> str:
    """Return the line that installs an extra's libraries.

    It names the libraries, not threadkeep: so it works in a checkout, and beside any release.
    """
    from importlib import metadata  # noqa: PLC0415 - only errors need it

    try:
        needed = metadata.requires("threadkeep") or []
    except metadata.PackageNotFoundError:  # run from its sources
        needed = []
    parts = [each.partition(";") for each in needed]
    libraries = [
        f"'{library.strip()}'" for library, _, marker in parts if f'extra == "{extra}"' in marker
    ]
    line = f": pip install {' '.join(libraries)}" if libraries else ""
    return f"Install the extra {extra}{line}"
