"""Sealed files: the bytes of any file, sealed in frames (design note 0026).

    head    89 54 4B 45 0D 0A 1A 0A, the version (1 byte), the kind (1 byte), the file's random id
            (16 bytes)
    frame   number of bytes that follow, and LAST in the last frame (4 bytes, little endian);
            sealed bytes (see `sealing`)

A frame holds 64 KiB, or fewer before a flush and at the end. Its place is the file's kind and id,
its number, and whether it is the last: a file that was cut, reordered or joined with another one
does not open.
"""

from __future__ import annotations

import secrets
from enum import Enum
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any, BinaryIO

from threadkeep._core.codec.frame import SEALED_OVERHEAD, is_sealed, key_of, not_given
from threadkeep.errors import NewerFormatError, NotOursError, TamperedDataError

if TYPE_CHECKING:
    from threadkeep._core.sealing import Sealer

MAGIC = b"\x89TKE\r\n\x1a\n"
VERSION = 1
FRAME = 1 << 16  # bytes
_ID = 16  # bytes
_SIZE = 4
_LAST = 1 << 31


class FileKind(Enum):
    """The kinds of sealed files: the byte in the head, and the name in errors."""

    ARCHIVE = b"A", "an archive"
    BUNDLE = b"B", "a bundle"
    ITEMS = b"I", "a file of exported items"
    QUARANTINE = b"Q", "a quarantine file"

    def begins(self, start: bytes) -> bool:
        """Return True if a file that begins with these bytes is a sealed one of this kind."""
        return start.startswith(MAGIC) and start[len(MAGIC) + 1 :][:1] == self.value[0]


class FileWriter:
    """Writes a file in sealed frames, or as it is without a sealer. `end` completes it.

    Args:
        file: the file to write.
        kind: the kind of file.
        sealer: seals the frames.
        about: text that the reader has to give too, such as the name of the object.
    """

    def __init__(
        self, file: BinaryIO, kind: FileKind, sealer: Sealer | None = None, about: str = ""
    ) -> None:
        self._file = file
        self._frames: _FrameSeal | None = None
        self._parts: list[bytes] = []
        self._size = 0
        if sealer is not None:
            name = kind.value[0] + secrets.token_bytes(_ID)
            file.write(MAGIC + bytes((VERSION,)) + name)
            self._frames = _FrameSeal(sealer, name, about)

    def write(self, data: bytes) -> None:
        """Write bytes, or keep them for the next frame."""
        if self._frames is None:
            self._file.write(data)
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size >= FRAME:
            data = b"".join(self._parts)
            rest = len(data) % FRAME
            for start in range(0, len(data) - rest, FRAME):
                self._file.write(self._frames.seal(data[start : start + FRAME]))
            self._parts, self._size = [data[len(data) - rest :]], rest

    def flush(self) -> None:
        """Write all bytes so far."""
        if self._frames is not None and self._size:
            self._file.write(self._frames.seal(b"".join(self._parts)))
            self._parts, self._size = [], 0
        self._file.flush()

    def end(self) -> None:
        """Write the last frame."""
        if self._frames is not None:
            self._file.write(self._frames.seal(b"".join(self._parts), last=True))
        self._file.flush()


class _FrameSeal:
    """Seals and opens the frames of one file, in order."""

    def __init__(self, sealer: Sealer, name: bytes, about: str) -> None:
        self._sealer = sealer
        self._group = sealer.group(f"file {name.hex()}")
        self._name, self._about = name, about
        self._number = 0

    def seal(self, data: bytes, *, last: bool = False) -> bytes:
        sealed = self._sealer.seal(data, self._place(last=last), self._group)
        return (len(sealed) | _LAST * last).to_bytes(_SIZE, "little") + sealed

    def open(self, sealed: bytes, *, last: bool) -> bytes:
        try:
            return self._sealer.open(sealed, self._place(last=last), [self._group])
        except TamperedDataError:
            raise TamperedDataError(
                "The encrypted file was changed, or is another tenant's.", hint=_HINT
            ) from None

    def _place(self, *, last: bool) -> bytes:
        self._number += 1
        return self._sealer.place("file", self._about, self._name, self._number, last)


_HINT = "Use another copy of this file: what follows in it cannot be trusted."


def is_sealed_file(start: bytes) -> bool:
    """Return True if a file that begins with these bytes is a sealed one."""
    return start.startswith(MAGIC)


def opened_file(file: BinaryIO, kind: FileKind, sealer: Sealer | None, about: str = "") -> BinaryIO:
    """Return a reader of the content of a sealed file, or the file itself if it is not sealed.

    Reading raises WrongKeyError without the key of a sealed file, and TamperedDataError if the
    file was changed or is not complete.

    Args:
        file: the file, at its first byte.
        kind: the kind that a sealed file must have.
        sealer: opens the frames.
        about: see `FileWriter`.

    Raises:
        NotOursError: it is of another kind.
        NewerFormatError: a newer release wrote it.
        TamperedDataError: its head is not complete.
    """
    start = file.read(len(MAGIC))
    if not is_sealed_file(start):
        file.seek(0)
        return file
    version, name = file.read(1), file.read(1 + _ID)
    if version and version[0] > VERSION:
        raise NewerFormatError(
            f"The encrypted file has format version {version[0]}; this release reads {VERSION}.",
            hint="Upgrade threadkeep.",
        )
    if len(name) != 1 + _ID:
        raise _cut()
    if not name.startswith(kind.value[0]):
        raise NotOursError(f"This encrypted file is not {kind.value[1]}.", hint="Use another file.")
    frames = None if sealer is None else _FrameSeal(sealer, name, about)
    return BufferedReader(_Opened(file, frames), FRAME)


def _cut() -> TamperedDataError:
    return TamperedDataError("The encrypted file was cut short.", hint=_HINT)


class _Opened(RawIOBase):
    """The content of a file's frames."""

    def __init__(self, file: BinaryIO, frames: _FrameSeal | None) -> None:
        self._file = file
        self._frames = frames
        self._rest = b""
        self._last = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and not self._last:
            self._rest = self._next()
        view = memoryview(buffer).cast("B")
        part, self._rest = self._rest[: len(view)], self._rest[len(view) :]
        view[: len(part)] = part
        return len(part)

    def _next(self) -> bytes:
        size = int.from_bytes(self._file.read(_SIZE), "little")
        last, size = bool(size & _LAST), size & ~_LAST
        sealed = (
            self._file.read(size) if SEALED_OVERHEAD <= size <= FRAME + SEALED_OVERHEAD else b""
        )
        if not is_sealed(sealed) or len(sealed) != size:
            raise _cut()
        if self._frames is None:
            raise not_given("The file", key_of(sealed))
        data = self._frames.open(sealed, last=last)
        if last and self._file.read(1):
            raise TamperedDataError("Bytes were added to the encrypted file.", hint=_HINT)
        self._last = last
        return data
