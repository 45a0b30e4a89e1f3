"""What lies in the cold store: a bundle for each archived thread.

Pure functions. Invariants: an archive holds one thread, with its checkpoints' digests; its key
begins with what its thread's name alone decides, and is never used twice.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from io import BytesIO

from threadkeep.bundles import BundleWriter, read_bundle
from threadkeep.engine.operations import digest
from threadkeep.engine.operations.archiving import Archive, folder_of
from threadkeep.engine.operations.bundling import WholeThread
from threadkeep.errors import CorruptionError


def new_key(thread: str) -> str:
    """A key that no archive has."""
    return f"{folder_of(thread)}{secrets.token_hex(8)}.tkb"


def packed(whole: WholeThread, key: str, state: str) -> tuple[bytes, Archive]:
    """A thread as an archive's bytes, and what its entry is to say of them.

    Raises:
        CorruptionError: the thread is damaged.
        UnserializableError: it is too large for a bundle.
    """
    file = BytesIO()
    bundle = BundleWriter(file)
    bundle.add(replace(whole, digests=tuple(digest.of_checkpoints(whole).values())))
    bundle.end()
    data = file.getvalue()
    count = len(whole.checkpoints)
    return data, Archive(key, state, hashlib.sha256(data).hexdigest(), len(data), count)


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
