"""What lies in the cold store: a bundle for each archived thread.

Pure functions. Invariants: an archive holds one thread, with its checkpoints' digests; its key
is never used twice.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from io import BytesIO

from threadkeep.cold.archive import Archive
from threadkeep.errors import CorruptionError
from threadkeep.transfer import digest
from threadkeep.transfer.bundle_format import (
    BundleWriter,
    read_bundle,
)
from threadkeep.transfer.bundling import WholeThread

ARCHIVE = ".tkb"
"""What an archive's key ends with."""


def packed(whole: WholeThread, announced: Archive, state: str) -> tuple[bytes, Archive]:
    """A thread as an archive's bytes, and what its entry is to say of them.

    Args:
        whole: the thread.
        announced: what the entry says already.
        state: the thread's own, which it has again when it is back.

    Raises:
        CorruptionError: the thread is damaged.
        UnserializableError: it is too large for a bundle.
    """
    file = BytesIO()
    bundle = BundleWriter(file)
    bundle.add(replace(whole, digests=tuple(digest.of_checkpoints(whole).values())))
    bundle.end()
    data, name = file.getvalue(), f"{secrets.token_hex(8)}{ARCHIVE}"
    sha256 = hashlib.sha256(data).hexdigest()
    return data, Archive(announced.folder, name, state, sha256, len(data))


def unpacked(thread: str, data: bytes, archive: Archive) -> WholeThread:
    """The thread in an archive, if that is byte for byte what was put there.

    Raises:
        CorruptionError: it is not.
        NewerFormatError: a newer release wrote it.
    """
    if hashlib.sha256(data).hexdigest() != archive.sha256:
        raise CorruptionError(
            f"The archive {archive.key} is not what was put there.",
            hint="Put it back from a backup of the cold store.",
            thread=thread,
        )
    (whole,) = read_bundle(BytesIO(data))
    return whole
