"""Seals of a thread's objects in the cold store (design note 0026).

Without keys, objects are stored as they are.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO

from threadkeep._core.codec.frame import is_sealed, key_of, not_given
from threadkeep._core.engine.cold_references import Place, name_of
from threadkeep._core.engine.operation import Operation
from threadkeep._core.sealed_files import FileKind, FileWriter, is_sealed_file, opened_file
from threadkeep._run.sealers import asked
from threadkeep.errors import CodecError, WrongKeyError

if TYPE_CHECKING:
    from threadkeep._core.sealing import Sealer
    from threadkeep._stores.cold_store import ColdStore


class ObjectSeal:
    """Seals and opens the objects of one thread.

    Args:
        thread: the thread's id.
        sealer: of files that other stores read, as a restored copy of this one does, None without
            keys.
        allow_plaintext: also return objects that were written before the store had keys.
    """

    def __init__(
        self, thread: str, sealer: Sealer | None = None, *, allow_plaintext: bool = False
    ) -> None:
        self._thread = thread
        self._sealer = sealer
        self._allows_plain = sealer is None or allow_plaintext
        self._group = b"" if sealer is None else sealer.group(f"objects of {thread}")

    def writer(self, file: BinaryIO, key: str) -> FileWriter:
        """Return a writer of the object with this key."""
        return FileWriter(file, FileKind.ARCHIVE, self._sealer, f"{self._thread} {key}")

    def reader(self, data: bytes, key: str) -> BinaryIO:
        """Return a reader of an object. Raises WrongKeyError, TamperedDataError."""
        if not is_sealed_file(data):
            self._check_plain()
        about = f"{self._thread} {key}"
        return opened_file(BytesIO(data), FileKind.ARCHIVE, self._sealer, about)

    def seal(self, data: bytes, where: Place) -> bytes:
        """Seal a part of an object for its place."""
        if self._sealer is None:
            return data
        return self._sealer.seal(data, self._sealer.place(*where), self._group)

    def open(self, data: bytes, where: Place) -> bytes:
        """Open a part of an object. Raises WrongKeyError, TamperedDataError."""
        if not is_sealed(data):
            self._check_plain()
            return data
        try:
            if self._sealer is not None:
                return self._sealer.open(data, self._sealer.place(*where), [self._group])
            raise not_given("The object in the cold store", key_of(data))
        except CodecError as error:
            error.at(thread=self._thread)
            raise

    def _check_plain(self) -> None:
        if not self._allows_plain:
            raise WrongKeyError(
                "An object of this thread in the cold store is not encrypted, and the store has"
                " keys.",
                hint="To read objects that were written before, allow plaintext.",
                thread=self._thread,
            )


def seal_of(cold: ColdStore | None, thread: str) -> Operation[ObjectSeal]:
    """Return the seal of a thread's objects."""
    if cold is None or cold.keys is None:
        return ObjectSeal(thread)
    keys, name = cold.keys, cold.stored(thread)
    sealer = yield from asked(keys, "portable", name, is_thread=True)
    return ObjectSeal(name, sealer, allow_plaintext=keys.allow_plaintext)


def names_of(cold: ColdStore, thread: str, *, writing: bool = False) -> Operation[list[str]]:
    """Return the names of a thread in keys of objects: the present one, and that without keys.

    Args:
        cold: the cold store.
        thread: the thread's id.
        writing: an object will be written under the name.
    """
    thread = cold.stored(thread)
    if cold.keys is None:
        return [name_of(thread)]
    sealer = yield from asked(cold.keys, "writing" if writing else "of")
    return [sealer.digest("object", thread).hex(), name_of(thread)]
