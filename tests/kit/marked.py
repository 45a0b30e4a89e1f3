"""Search files for marked bytes, also inside zstd frames."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import zstandard

_ZSTD = b"\x28\xb5\x2f\xfd"


def holds(data: bytes, marks: Iterable[bytes]) -> list[bytes]:
    """The marks that these bytes hold."""
    parts = [*_opened(data)]
    return [mark for mark in marks if any(mark in part for part in parts)]


def marked_files(folder: Path, marks: Iterable[bytes]) -> dict[str, list[bytes]]:
    """The marks in each file of a folder that holds any."""
    wanted = [*marks]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): holds(path.read_bytes(), wanted) for path in files}
    return {name: some for name, some in found.items() if some}


def _opened(data: bytes) -> Iterator[bytes]:
    yield data
    at = data.find(_ZSTD)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            yield from _opened(zstandard.ZstdDecompressor().decompressobj().decompress(data[at:]))
        at = data.find(_ZSTD, at + 1)
